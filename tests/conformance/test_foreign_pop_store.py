"""A store with pops goes from our broker to Apache's and back: messages that are out come again, no other ones do."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support import foreign
from tests.support.brokerprocess import SMALL_STORE, BrokerProcess, Peer, peer_of
from tests.support.pops import Popped, ack, bodies, change, pop_header, popped

LONG_MS = 100_000
APACHES_SETTINGS = {
    "brokerClusterName": "C",
    "mappedFileSizeCommitLog": SMALL_STORE["GANTRY_BROKER_MAPPED_FILE_SIZE_COMMIT_LOG"],
    "mappedFileSizeConsumeQueue": SMALL_STORE["GANTRY_BROKER_MAPPED_FILE_SIZE_CONSUME_QUEUE"],
    "maxHashSlotNum": SMALL_STORE["GANTRY_BROKER_MAX_HASH_SLOT_NUM"],
    "maxIndexNum": SMALL_STORE["GANTRY_BROKER_MAX_INDEX_NUM"],
    "timerWheelEnable": "true",
}


async def pop(peer: Peer, invisible_ms: int) -> list[Popped]:
    answer = await peer.ask(RequestCode.POP_MESSAGE, pop_header(invisible_time=invisible_ms, poll_time=500))
    return popped(answer)


async def collect(peer: Peer, count: int, *, within_s: float, invisible_ms: int) -> dict[str, Popped]:
    """Pop until there are `count` messages, or the time is over."""
    found: dict[str, Popped] = {}
    deadline = time.monotonic() + within_s
    while len(found) < count and time.monotonic() < deadline:
        for item in await pop(peer, invisible_ms):
            found[bodies([item])[0]] = item
    return found


async def acknowledge(peer: Peer, *items: Popped) -> None:
    for item in items:
        answer = await ack(peer, item.receipt)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def begin(address: str) -> None:
    """Leave two messages acknowledged, one hidden for long, and three that are due soon."""
    async with peer_of(address) as peer:
        await peer.make_topic("T", queues=1)
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g"}')
        for number in range(6):
            assert (await peer.send("T", b"m%d" % number)).code == ResponseCode.SUCCESS
        items = await collect(peer, 6, within_s=10, invisible_ms=4_000)
        await acknowledge(peer, items["m0"], items["m1"])
        assert (await change(peer, items["m2"].receipt, LONG_MS)).code == ResponseCode.SUCCESS


async def go_on(address: str) -> None:
    """Apache's broker gives out the three, and no other one."""
    async with peer_of(address) as peer:
        items = await collect(peer, 3, within_s=40, invisible_ms=45_000)
        assert sorted(items) == ["m3", "m4", "m5"]
        assert {item.message.reconsume_times for item in items.values()} == {1}
        await acknowledge(peer, items["m3"])


async def end(address: str) -> None:
    """Our broker gives out what Apache's has not got back, and the message that was hidden for long."""
    async with peer_of(address) as peer:
        items = await collect(peer, 3, within_s=LONG_MS / 1000, invisible_ms=60_000)
        assert sorted(items) == ["m2", "m4", "m5"]
        assert (items["m4"].message.reconsume_times, items["m2"].message.reconsume_times) == (2, 1)
        await acknowledge(peer, *items.values())
        assert await collect(peer, 1, within_s=2, invisible_ms=1_000) == {}


@pytest.mark.java
def test_pops_go_to_apaches_broker_and_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        asyncio.run(begin(broker.address))
        assert broker.terminate() == 0
        store = broker.store
    with foreign.java_broker(tmp_path, store, APACHES_SETTINGS, end=signal.SIGTERM) as (_, address):
        asyncio.run(go_on(address))
    with BrokerProcess(tmp_path) as broker:
        asyncio.run(end(broker.address))
        assert broker.terminate() == 0
