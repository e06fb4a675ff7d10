"""kill -9 of a broker while clients pop, acknowledge and extend.

A message is out to one client at a time, one whose acknowledgement was answered never comes again, and in the end every
message is acknowledged once.

GANTRY_TEST_KILLS=<n> kills the broker n times instead of the few that every test run can afford.
"""

import asyncio
import os
import time
from pathlib import Path

import pytest

from gantry.model.popreceipt import PopReceipt
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.errors import RemotingError
from gantry.remoting.headers import ChangeInvisibleTimeResponseHeader
from gantry.runtime.rng import Rng
from tests.support.brokerprocess import BrokerProcess, Peer, peer_of
from tests.support.pops import ack, bodies, change, pop_header, popped

KILLS = int(os.environ.get("GANTRY_TEST_KILLS") or 3)
CLIENTS = 4
LOAD_MS_MAX = 900
INVISIBLE_MS = 8_000
MESSAGES = 400
DRAINED_S = 60
NEW_GROUPS = 12
SETTINGS = {"GANTRY_BROKER_FLUSH_DISK_TYPE": "SYNC_FLUSH", "GANTRY_BROKER_FLUSH_CONSUMER_OFFSET_INTERVAL": "400"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Ledger:
    """The knowledge of the clients.

    Attributes:
        out: Latest receipt by body, while it is not acknowledged.
        acked: Bodies whose acknowledgement was answered.
        unsure: Bodies for which a request got no answer.
    """

    def __init__(self) -> None:
        self.out: dict[str, PopReceipt] = {}
        self.acked: set[str] = set()
        self.unsure: set[str] = set()

    async def work(self, peer: Peer, rng: Rng, *, only_ack: bool = False) -> int:
        """Pop once, and acknowledge, extend or forget each message. Return the number of messages."""
        began_ms = now_ms()
        header = pop_header(max_msg_nums=1 + rng.below(8), invisible_time=INVISIBLE_MS, poll_time=200)
        items = popped(await peer.ask(RequestCode.POP_MESSAGE, header))
        for item in items:
            (body,) = bodies([item])
            assert body not in self.acked, f"{body} comes again after its acknowledgement"
            earlier = self.out.get(body)
            assert earlier is None or body in self.unsure or earlier.expires_at_ms <= now_ms(), (
                f"{body} is out to another client for {earlier.expires_at_ms - began_ms} ms more"
            )
            self.out[body] = item.receipt
        for item in items:
            (body,) = bodies([item])
            way = 0 if only_ack else rng.below(4)
            self.unsure.add(body)
            if way < 2:
                answer = await ack(peer, item.receipt)
                assert answer.code == ResponseCode.SUCCESS, f"{body}: {answer.remark}"
                self.acked.add(body)
            elif way == 2:
                answer = await change(peer, item.receipt, INVISIBLE_MS)
                assert answer.code == ResponseCode.SUCCESS, f"{body}: {answer.remark}"
                new = ChangeInvisibleTimeResponseHeader.from_ext(answer.ext_fields)
                self.out[body] = item.receipt._replace(
                    start_offset=item.receipt.queue_offset,
                    popped_at_ms=new.pop_time,
                    invisible_ms=new.invisible_time,
                    revive_queue_id=new.revive_qid,
                )
            self.unsure.discard(body)
        return len(items)


async def load(address: str, ledger: Ledger, rng: Rng) -> None:
    """Pop until the broker is killed."""
    async with peer_of(address) as peer:
        try:
            while True:
                await ledger.work(peer, rng)
        except RemotingError:
            return


async def prepare(address: str) -> None:
    async with peer_of(address) as peer:
        await peer.make_topic("T")
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g"}')
        for number in range(MESSAGES):
            answer = await peer.send("T", b"m%d" % number, queue_id=number % 4)
            assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_a_broker_is_killed_while_clients_pop(tmp_path: Path, rng: Rng) -> None:
    ledger = Ledger()
    process = BrokerProcess(tmp_path, environment=SETTINGS)
    try:
        process.start()
        await prepare(process.address)
        for _ in range(KILLS):
            clients = [
                asyncio.ensure_future(load(process.address, ledger, Rng(rng.below(1 << 60)))) for _ in range(CLIENTS)
            ]
            await asyncio.sleep(0.1 + rng.below(LOAD_MS_MAX) / 1000)
            process.kill()
            await asyncio.gather(*clients)
            process.start()
        async with peer_of(process.address) as peer:
            deadline = time.monotonic() + DRAINED_S
            quiet_since = time.monotonic()
            while time.monotonic() - quiet_since < 2 * INVISIBLE_MS / 1000:
                assert time.monotonic() < deadline, f"{len(ledger.acked)} of {MESSAGES} are acknowledged"
                if await ledger.work(peer, rng, only_ack=True):
                    quiet_since = time.monotonic()
        missing = {f"m{number}" for number in range(MESSAGES)} - ledger.acked - ledger.unsure
        assert not missing, f"lost: {sorted(missing)}"
        print(f"{len(ledger.acked)} acknowledged, {len(ledger.unsure)} requests without an answer")
    finally:
        process.kill()


@pytest.mark.parametrize("mode", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_new_group(tmp_path: Path, mode: str) -> None:
    """A pop that creates its group is answered, and its message acknowledged, right before a kill -9."""
    process = BrokerProcess(tmp_path, environment={"GANTRY_BROKER_FLUSH_DISK_TYPE": mode})
    groups = [f"new-{number}" for number in range(NEW_GROUPS)]
    acked: set[str] = set()

    async def pop_and_ack(group: str) -> None:
        async with peer_of(process.address) as peer:
            (item,) = popped(await peer.ask(RequestCode.POP_MESSAGE, pop_header(group=group)))
            answer = await ack(peer, item.receipt, group=group)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            acked.add(group)
            process.kill()

    try:
        process.start()
        async with peer_of(process.address) as peer:
            await peer.make_topic("T")
            await peer.send("T", b"once")
        for first in range(0, NEW_GROUPS, 3):
            outcomes = await asyncio.gather(*map(pop_and_ack, groups[first : first + 3]), return_exceptions=True)
            assert all(outcome is None or isinstance(outcome, RemotingError) for outcome in outcomes), outcomes
            process.start()
        assert len(acked) >= NEW_GROUPS // 3
        async with peer_of(process.address) as peer:
            for group in sorted(acked):
                again = popped(await peer.ask(RequestCode.POP_MESSAGE, pop_header(group=group)))
                assert not again, f"group {group} gets its message again after it has acknowledged it"
    finally:
        process.kill()
