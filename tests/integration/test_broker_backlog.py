"""A backlog as reports read it, from a real broker: it has exactly the sent messages, before and after a restart."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gantry.client.backlog import UNIT_ROW, Backlog, FirstUnconsumedQuery
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, NoAnswerError, NoRouteError
from gantry.client.settings import ClientSettings
from gantry.model.javahash import tags_code
from gantry.model.message import MessageQueue
from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, Peer, peer_of, properties_text, wait_until

QUEUE = MessageQueue("T", "broker-a", 0)
COUNT = 5_000


@pytest.fixture
async def backlog(tmp_path: Path) -> AsyncIterator[tuple[Backlog, Peer, BrokerProcess]]:
    with (
        NamesrvProcess(tmp_path / "ns") as namesrv,
        BrokerProcess(tmp_path / "broker", namesrv=namesrv.address) as broker,
    ):
        engine = ClientEngine(ClientSettings(namesrv=(namesrv.address,)), clock=SystemClock(), rng=Rng(1))
        await engine.start()
        async with peer_of(broker.address) as peer:
            await peer.make_topic("T", queues=2)
            yield Backlog(engine), peer, broker
        await engine.stop()


async def send(peer: Peer, count: int, tag: str) -> None:
    for at in range(0, count, 500):
        await asyncio.gather(
            *(peer.send("T", b"x" * 100, properties=properties_text(TAGS=tag)) for _ in range(min(500, count - at)))
        )


async def all_units(backlog: Backlog) -> list[tuple[int, ...]]:
    rows: list[tuple[int, ...]] = []
    while True:
        units = await backlog.units(QUEUE, len(rows), count=4_096)
        assert units.first_offset == len(rows)
        rows += UNIT_ROW.iter_unpack(units.rows)
        assert units.next_offset == len(rows)
        if units.next_offset == units.max_offset:
            return rows


async def test_every_unit_has_the_time_of_its_message(backlog: tuple[Backlog, Peer, BrokerProcess]) -> None:
    calls, peer, broker = backlog
    await send(peer, COUNT, "red")
    rows = await all_units(calls)
    told = {row[0]: row[1:] for row in rows}
    offset = 0
    while offset < COUNT:
        answer = await peer.pull("T", offset, max_msg_nums=1_024)
        for message in iter_records(answer.body_bytes):
            expected = (message.size_bytes, tags_code("red"), message.stored_at_ms)
            assert told.pop(message.physical_offset) == expected
        offset = int(answer.ext_fields["nextBeginOffset"])
    assert not told
    broker.kill()
    broker.start()
    await wait_until(lambda: _answers(calls), "the broker to answer again")
    assert await all_units(calls) == rows, "the same after a crash"


async def test_first_messages_by_filter(backlog: tuple[Backlog, Peer, BrokerProcess]) -> None:
    calls, peer, _ = backlog
    await send(peer, 700, "red")
    begun_ms = time.time_ns() // 1_000_000
    await send(peer, 1, "blue")
    blue = (tags_code("blue"),)
    queries = [
        FirstUnconsumedQuery("T", 0, 3),
        FirstUnconsumedQuery("T", 0, 3, blue),
        FirstUnconsumedQuery("T", 1, 0),
        FirstUnconsumedQuery("U", 0, 0),
    ]
    heads = await calls.first_unconsumed("broker-a", queries * 100)
    assert len(heads) == 400
    first, wanted, empty, unknown = heads[:4]
    assert (first.queue_offset, first.max_offset) == (3, 701)
    assert wanted.queue_offset == 700
    assert begun_ms <= (wanted.stored_at_ms or 0) <= wanted.now_ms
    # 72 hours, then 4 o'clock.
    assert 72 * 3_600_000 <= (wanted.expires_at_ms or 0) - wanted.now_ms + 10_000 <= 97 * 3_600_000
    assert wanted.expires_at_is_earliest
    assert (empty.queue_offset, empty.error, empty.max_offset) == (None, None, 0)
    assert unknown.error == "topic[U] not exist"
    (states,) = [state for state in await calls.queue_states("T", "broker-a") if state.queue_id == 0]
    assert (states.max_offset, states.last_stored_at) == (701, wanted.stored_at_ms)


async def test_committed_offsets_and_a_deleted_topic(backlog: tuple[Backlog, Peer, BrokerProcess]) -> None:
    calls, peer, broker = backlog
    await send(peer, 3, "red")
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g"}')).code == 0
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "2"}
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext)).code == 0
    assert (await calls.committed_offsets("broker-a"))["g"] == {"T": {0: 2}}
    assert (await calls.units(QUEUE, 2)).next_offset == 3
    await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
    with pytest.raises(BrokerError, match="TOPIC_NOT_EXIST"):
        await calls.units(QUEUE, 2)
    (head,) = await calls.first_unconsumed("broker-a", [FirstUnconsumedQuery("T", 0, 2)])
    assert (head.error, head.max_offset) == ("topic[T] not exist", None)
    broker.kill()
    with pytest.raises(NoAnswerError):
        await calls.first_unconsumed("broker-a", [FirstUnconsumedQuery("T", 0, 2)])


async def _answers(calls: Backlog) -> bool:
    try:
        await calls._engine.route("T", refresh=True)  # The broker comes back on another port.
        await calls.first_unconsumed("broker-a", [FirstUnconsumedQuery("T", 0, 2)])
    except (NoAnswerError, NoRouteError):
        return False
    return True
