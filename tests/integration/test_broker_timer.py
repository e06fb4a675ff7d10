"""Messages for a set time on a real broker, in real time: delivery, recall, and a kill while messages wait."""

import asyncio
import time
from pathlib import Path

from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.timer import RecallMessageHeader
from tests.support.brokerprocess import BrokerProcess, Peer, peer_of, properties_text, wait_until

LATE_MS_MAX = 3000
"""A loaded test machine may be late; idle ones are at most a second late."""


async def received(peer: Peer) -> dict[bytes, list[int]]:
    """Return the store times of the delivered messages, by body."""
    found: dict[bytes, list[int]] = {}
    offset = 0
    while True:
        answer = await peer.pull("T", offset)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
            return found
        for message in iter_records(answer.body_bytes):
            found.setdefault(message.body, []).append(message.stored_at_ms)
        offset = int(answer.ext_fields["nextBeginOffset"])


async def send(peer: Peer, body: bytes, due_ms: int) -> str:
    reply = await peer.send("T", body, properties=properties_text(TIMER_DELIVER_MS=str(due_ms)))
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return reply.ext_fields["recallHandle"]


async def test_timed_messages_arrive_in_real_time_and_a_kill_loses_none(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        async with peer_of(broker.address) as peer:
            await peer.make_topic("T", queues=1)
            now_ms = int(time.time() * 1000)
            due = {b"%d" % number: now_ms + 1500 + 100 * number for number in range(60)}
            handles = {body: await send(peer, body, due_ms) for body, due_ms in due.items()}
            header = RecallMessageHeader(topic="T", recall_handle=handles.pop(b"59"))
            answer = await peer.ask(RequestCode.RECALL_MESSAGE, header)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

            async def some_arrived() -> bool:
                return len(await received(peer)) >= 10

            await wait_until(some_arrived, "some messages are delivered")
        broker.kill()
        broker.start()
        async with peer_of(broker.address) as peer:

            async def all_arrived() -> bool:
                return len(await received(peer)) >= len(handles)

            await wait_until(all_arrived, "all messages are delivered")
            await asyncio.sleep(1.5)
            found = await received(peer)
        assert set(found) == set(handles)
        for body, stored in found.items():
            assert len(stored) <= 2
            assert all(at_ms >= due[body] for at_ms in stored)
        assert found[b"0"][0] - due[b"0"] <= LATE_MS_MAX
