"""Reading the data source without Spark: what its planning and its tasks give, as rows."""

import asyncio
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter

from gantry.model.group import SubscriptionGroup
from gantry.model.message import encode_properties
from gantry.remoting.bodies import encode_subscription_group
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers import UpdateConsumerOffsetHeader
from spark.datasource.backlog import BacklogReader
from spark.datasource.groups import GroupsReader
from spark.datasource.heads import HeadsReader
from spark.datasource.offsets import OffsetsReader
from spark.datasource.options import read_options
from spark.datasource.pushdown import NarrowedReader
from spark.datasource.schema import BY_KIND
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, Peer, peer_of

READERS: dict[str, Any] = {
    "offsets": OffsetsReader,
    "heads": HeadsReader,
    "groups": GroupsReader,
    "backlog": BacklogReader,
}


def reader(kind: str, **options: Any) -> NarrowedReader:
    """Return a reader of the given options; `start` stands for `from`."""
    texts = {"from" if name == "start" else name: str(value) for name, value in options.items()}
    made: NarrowedReader = READERS[kind](read_options({"kind": kind, **texts}), BY_KIND[kind])
    return made


def read(made: NarrowedReader, filters: Sequence[Filter] = ()) -> list[dict[str, Any]]:
    """Plan and read as Spark does: push down, plan, and hand reader and tasks to other processes."""
    left = made.narrow(filters)
    assert all(any(one is given for given in filters) for one in left)
    tasks = pickle.loads(pickle.dumps(list(made.partitions())))
    return [row for task in tasks for row in read_task(made, task)]


def read_task(made: DataSourceReader, task: Any) -> list[dict[str, Any]]:
    """Read one task."""
    return [row for batch in pickle.loads(pickle.dumps(made)).read(task) for row in batch.to_pylist()]


def rows(kind: str, filters: Sequence[Filter] = (), **options: Any) -> list[dict[str, Any]]:
    """Return all rows of a kind."""
    return read(reader(kind, **options), filters)


class LiveCluster:
    """A name server and brokers, each a process, with what a test puts into them."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.namesrv = NamesrvProcess(folder / "namesrv")
        self.folder = folder
        self.names = names
        self.brokers: dict[str, BrokerProcess] = {}

    def start(self) -> None:
        """Start all."""
        self.namesrv.start()
        for name in self.names:
            broker = BrokerProcess(self.folder / name, namesrv=self.namesrv.address, name=name)
            self.brokers[name] = broker
            broker.start()

    def stop(self) -> None:
        """Kill all."""
        for process in (*self.brokers.values(), self.namesrv):
            process.kill()

    def put(self, work: Any) -> None:
        """Run `work(name → peer)` to its end."""
        asyncio.run(self._put(work))

    async def _put(self, work: Any) -> None:
        peers = {name: Peer(broker.address) for name, broker in self.brokers.items()}
        try:
            await work(peers)
        finally:
            for peer in peers.values():
                await peer.client.close()


async def send(peer: Peer, topic: str, queue_id: int, *tags: str | None) -> None:
    """Send a message for each tag."""
    for number, tag in enumerate(tags):
        properties = encode_properties({} if tag is None else {"TAGS": tag}).decode()
        answer = await peer.send(topic, b"body %d" % number, queue_id=queue_id, properties=properties)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def make_group(peer: Peer, group: str, **settings: Any) -> None:
    """Create a group."""
    body = encode_subscription_group(SubscriptionGroup(group, **settings))
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def commit(peer: Peer, group: str, topic: str, queue_id: int, offset: int) -> None:
    """Commit an offset."""
    header = UpdateConsumerOffsetHeader(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
    answer = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


__all__ = ["LiveCluster", "commit", "make_group", "peer_of", "read", "read_task", "reader", "rows", "send"]
