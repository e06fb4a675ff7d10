"""Reading the data source without Spark: the rows that its planning and its tasks return."""

import asyncio
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter
from pyspark.sql.streaming.datasource import ReadAllAvailable

from gantry.model.group import SubscriptionGroup
from gantry.model.message import encode_properties
from gantry.remoting.bodies import encode_subscription_group
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers import UpdateConsumerOffsetHeader
from spark.datasource.kinds.backlog import BacklogReader
from spark.datasource.kinds.groups import GroupsReader
from spark.datasource.kinds.heads import HeadsReader
from spark.datasource.kinds.offsets import OffsetsReader
from spark.datasource.options import read_options
from spark.datasource.pushdown import NarrowedReader
from spark.datasource.schema import BY_KIND
from spark.datasource.stream.reader import MessageStreamReader
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, Peer, peer_of

READERS: dict[str, Any] = {
    "offsets": OffsetsReader,
    "heads": HeadsReader,
    "groups": GroupsReader,
    "backlog": BacklogReader,
}


def reader(kind: str, **options: Any) -> NarrowedReader:
    """Return a reader with the given options; the argument `start` sets the option `from`."""
    texts = {"from" if name == "start" else name: str(value) for name, value in options.items()}
    made: NarrowedReader = READERS[kind](read_options({"kind": kind, **texts}), BY_KIND[kind])
    return made


def read(made: NarrowedReader, filters: Sequence[Filter] = ()) -> list[dict[str, Any]]:
    """Plan and read as Spark does: push filters down, plan, and hand reader and tasks to other processes."""
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


class Stream:
    """A query over `readStream` without Spark: reader, offsets and tasks cross processes as texts and pickles.

    Attributes:
        batches: The end offset of each batch, as the checkpoint stores it.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.batches: list[str] = []

    def reader(self) -> MessageStreamReader:
        """Return a reader, as Spark makes one with each start of a query."""
        texts = {"from" if name == "start" else name: str(value) for name, value in self.options.items()}
        return MessageStreamReader(read_options({"kind": "messages", **texts}), BY_KIND["messages"])

    def plan(self, made: MessageStreamReader) -> bool:
        """Record the end of the next batch; return whether there is one."""
        start = self.batches[-1] if self.batches else json.dumps(made.initialOffset())
        end = json.dumps(made.latestOffset(json.loads(start), ReadAllAvailable()))
        if end != start:
            self.batches.append(end)
        return end != start

    def read_last(self, made: MessageStreamReader) -> list[dict[str, Any]]:
        """Read the last planned batch; repeated calls read it again."""
        start = self.batches[-2] if len(self.batches) > 1 else json.dumps(made.initialOffset())
        tasks = pickle.loads(pickle.dumps(made.partitions(json.loads(start), json.loads(self.batches[-1]))))
        return [
            row for task in tasks for batch in pickle.loads(pickle.dumps(made)).read(task) for row in batch.to_pylist()
        ]

    def run(self, **options: Any) -> list[dict[str, Any]]:
        """Start the query, read all available messages, and end it; `options` replace the earlier ones for this run."""
        before, self.options = self.options, {**self.options, **options}
        made = self.reader()
        self.options = before
        found: list[dict[str, Any]] = []
        made.prepareForTriggerAvailableNow()
        while self.plan(made):
            found += self.read_last(made)
        return found


class LiveCluster:
    """A name server and brokers, each a process, with the messages that a test sends to them."""

    def __init__(self, folder: Path, *names: str, environment: dict[str, str] | None = None) -> None:
        self.namesrv = NamesrvProcess(folder / "namesrv")
        self.folder = folder
        self.names = names
        self.environment = environment
        self.brokers: dict[str, BrokerProcess] = {}

    def start(self) -> None:
        """Start all processes."""
        self.namesrv.start()
        for name in self.names:
            broker = BrokerProcess(
                self.folder / name, namesrv=self.namesrv.address, name=name, environment=self.environment
            )
            self.brokers[name] = broker
            broker.start()

    def stop(self) -> None:
        """Kill all processes."""
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
    """Send one message for each tag."""
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


__all__ = ["LiveCluster", "Stream", "commit", "make_group", "peer_of", "read", "read_task", "reader", "rows", "send"]
