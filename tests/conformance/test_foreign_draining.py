"""Producers that send all the time while a broker is drained and comes back: Apache's Java client and Gantry's own.

Nothing is lost, nothing is stored twice, and nothing is stored on the broker once the drain has been answered.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.sendrequest import SendResult
from gantry.client.settings import ClientSettings
from gantry.model.message import Message
from gantry.model.record import iter_records
from gantry.remoting.bodies import TopicRouteData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers import GetRouteInfoHeader
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support import foreign
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, Peer, peer_of

TOPIC = "DrainedTopic"
QUEUES = 4
# Clients ask for a new route at most once a second here; the machine may be slow.
TIMEOUT_S = 60.0
MORE = 100
DRAINED, OPEN = b"brokerPermission=4\n", b"brokerPermission=6\n"


class Place(NamedTuple):
    broker: str
    queue_id: int
    queue_offset: int


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    foreign.java_classpath()
    with (
        NamesrvProcess(tmp_path) as namesrv,
        BrokerProcess(tmp_path / "a", namesrv=namesrv.address, name="broker-a") as one,
        BrokerProcess(tmp_path / "b", namesrv=namesrv.address, name="broker-b") as two,
    ):
        yield namesrv.address, {"broker-a": one.address, "broker-b": two.address}


class OwnProducers:
    """Send with Gantry's client: one message after the other, and one batch after the other. No send may fail."""

    def __init__(self, engine: ClientEngine) -> None:
        self._producer = Producer(engine, "PID_own")
        self.places: dict[str, Place] = {}
        self.is_ended = False

    async def send_messages(self) -> None:
        number = 0
        while not self.is_ended:
            body = f"own-{number}"
            self._placed(body, await self._producer.send(Message(TOPIC, body.encode())))
            number += 1
            await asyncio.sleep(0.002)

    async def send_batches(self) -> None:
        number = 0
        while not self.is_ended:
            bodies = [f"own-batch-{number}-{item}" for item in range(3)]
            results = await self._producer.send_batch(TOPIC, [Message(TOPIC, body.encode()) for body in bodies])
            for body, result in zip(bodies, results, strict=True):
                self._placed(body, result)
            number += 1
            await asyncio.sleep(0.005)

    def _placed(self, body: str, result: SendResult) -> None:
        self.places[body] = Place(result.queue.broker_name, result.queue.queue_id, result.queue_offset)


class Results:
    """The results of all producers so far."""

    def __init__(self, own: OwnProducers, log: Path) -> None:
        self._own = own
        self._log = log

    def java(self) -> list[dict[str, Any]]:
        return foreign.json_lines(self._log.read_text(errors="replace").rpartition("\n")[0])

    def places(self) -> dict[str, Place]:
        """Return the place of each message whose producer was told that it is stored."""
        lines = [line for line in self.java() if line.get("status") == "SEND_OK"]
        java = {line["body"]: Place(line["broker"], line["queue_id"], line["queue_offset"]) for line in lines}
        return self._own.places | java

    def counts(self) -> Counter[tuple[str, str]]:
        """Return the number of messages for each kind of producer and each broker."""
        return Counter((body.rpartition("-")[0].partition("-batch")[0], p.broker) for body, p in self.places().items())

    def is_more(self, before: Counter[tuple[str, str]], *brokers: str) -> bool:
        """Whether each producer has stored more messages on each of the brokers since then."""
        now = self.counts()
        return all(
            now[kind, broker] >= before[kind, broker] + MORE
            for kind in ("own", "sync-a", "sync-b", "async")
            for broker in brokers
        )

    def goes_elsewhere(self) -> bool:
        """Whether the last sends of the asynchronous producer were not refused: it has learned of the drain."""
        lines = [line for line in self.java() if str(line.get("body", "")).startswith("async")]
        return not any("error" in line for line in lines[-2 * MORE :])


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.1)


async def set_permission(peer: Peer, change: bytes) -> None:
    answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=change)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def end_of_log(peer: Peer) -> int:
    """Return the end of a broker's log, which every stored message moves."""
    answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return int(json.loads(answer.body_bytes)["table"]["commitLogMaxOffset"])


async def stored(brokers: dict[str, str]) -> dict[Place, str]:
    """Return the body of each message by its place."""
    found: dict[Place, str] = {}
    for name, address in brokers.items():
        async with peer_of(address) as peer:
            for queue_id in range(QUEUES):
                offset = 0
                while True:
                    answer = await peer.pull(TOPIC, offset, queue_id=queue_id, max_msg_nums=32)
                    if answer.code != ResponseCode.SUCCESS:
                        break
                    for message in iter_records(answer.body_bytes):
                        found[Place(name, queue_id, message.queue_offset)] = message.body.decode()
                    offset = int(answer.ext_fields["nextBeginOffset"])
    return found


@pytest.mark.java
async def test_producers_use_the_other_broker_and_nothing_is_lost(
    cluster: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    namesrv, brokers = cluster
    log = tmp_path / "java.log"
    engine = ClientEngine(ClientSettings(namesrv=(namesrv,)), clock=SystemClock(), rng=Rng())
    await engine.start()
    own = OwnProducers(engine)
    results = Results(own, log)
    try:
        async with peer_of(brokers["broker-a"]) as one, asyncio.TaskGroup() as tasks:
            for address in brokers.values():
                async with peer_of(address) as peer:
                    await peer.make_topic(TOPIC, queues=QUEUES)
            with foreign.java_stream_producer(namesrv, TOPIC, log) as end_java:
                tasks.create_task(own.send_messages())
                tasks.create_task(own.send_batches())
                await until(lambda: results.is_more(Counter(), *brokers), "messages of all producers on both brokers")
                await drain(one, namesrv, results)
                before = results.counts()
                await set_permission(one, OPEN)
                await until(lambda: results.is_more(before, *brokers), "messages on both brokers again")
                await asyncio.to_thread(end_java)
                own.is_ended = True
    finally:
        await engine.stop()
    check(results, await stored(brokers))


async def drain(broker: Peer, namesrv: str, results: Results) -> None:
    """Drain a broker until all producers have left it; check that it stores nothing from then on."""
    await set_permission(broker, DRAINED)
    end_when_drained = await end_of_log(broker)
    before = results.counts()

    async def route_says_drained() -> bool:
        header = GetRouteInfoHeader(topic=TOPIC)
        answer = await broker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, address=namesrv)
        datas = TopicRouteData.decode(answer.body_bytes).route.queue_datas
        return [bool(data.perm & 2) for data in datas if data.broker_name == "broker-a"] == [False]

    await until(route_says_drained, "the route to name the drain")
    await until(lambda: results.is_more(before, "broker-b"), "messages on the other broker")
    await until(results.goes_elsewhere, "the asynchronous producer to leave the drained broker")
    assert await end_of_log(broker) == end_when_drained, "a drained broker has stored a message"


def check(results: Results, found: dict[Place, str]) -> None:
    """Check that each message is stored once, at the place that its producer was told, and that no refused one is."""
    lines = results.java()
    assert lines.pop() == {"pending": 0}
    places = results.places()
    assert {body: found.get(place) for body, place in places.items() if found.get(place) != body} == {}
    refused = {line["body"]: line["error"] for line in lines if "error" in line}
    assert [body for body in refused if not body.startswith("async")] == [], refused
    assert [error for error in refused.values() if "CODE: 16" not in error] == []
    copies = Counter(found.values())
    assert copies == dict.fromkeys(places, 1), "the messages that were acknowledged, each once"
    assert not set(refused) & set(copies)
