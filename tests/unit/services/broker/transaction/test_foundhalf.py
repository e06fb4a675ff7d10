"""Half messages in memory: a commit stores the same bytes as one that reads the half message from the log."""

import asyncio
from typing import Any

import pytest

from gantry.model import sysflag
from gantry.model.address import Address, pack_host
from gantry.model.message import CrcState
from gantry.model.names import TRANS_OP_HALF_TOPIC
from gantry.model.record import decode_record
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.send import SendMessageHeader
from gantry.remoting.headers.transaction import EndTransactionHeader
from services.broker.transaction.decisions import COMMIT, ROLLBACK, Decisions
from services.broker.transaction.foundhalf import FoundHalf, RecentHalves
from tests.support.brokerunit import BrokerUnit, send_header

KEY = "UNIQ_KEY\x01C0A8000100002A139055000000000001\x02"
HALF = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02"
SENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (KEY + HALF, {"sys_flag": 4}),
    "with tag and keys": (KEY + "TAGS\x01a\x02KEYS\x01k l\x02" + HALF, {"sys_flag": 4}),
    "with two tags": (KEY + "TAGS\x01a\x02TAGS\x01b\x02" + HALF, {"sys_flag": 4}),
    "group first and twice": ("PGROUP\x01other\x02" + KEY + HALF, {"sys_flag": 4}),
    "group at the end, not terminated": (KEY + "TRAN_MSG\x01true\x02PGROUP\x01pg", {"sys_flag": 4}),
    "compressed, with a flag": (KEY + HALF, {"sys_flag": 5, "flag": 7}),
    "without a sysFlag": (KEY + HALF, {}),
    "to any queue": (KEY + HALF, {"sys_flag": 4, "queue_id": -1}),
    "with characters": (KEY + "a\x01köln 東京\x02" + HALF, {"sys_flag": 4}),
    "with an immunity time": (KEY + "CHECK_IMMUNITY_TIME\x0160\x02" + HALF, {"sys_flag": 4}),
    "with an immunity time that is over": (KEY + "CHECK_IMMUNITY_TIME\x011\x02" + HALF, {"sys_flag": 4}),
    "consumed before": (KEY + HALF, {"sys_flag": 4, "reconsume_times": 3}),
}
DECISIONS: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "commit": [(COMMIT, {})],
    "commit twice": [(COMMIT, {}), (COMMIT, {})],
    "commit, then roll back": [(COMMIT, {}), (ROLLBACK, {})],
    "roll back, then commit": [(ROLLBACK, {}), (COMMIT, {})],
    "another group, then commit": [(COMMIT, {"producer_group": "other"}), (COMMIT, {})],
    "another queue offset, then commit": [(COMMIT, {"tran_state_table_offset": 9}), (COMMIT, {})],
    "another offset": [(COMMIT, {"commit_log_offset": 11})],
}


async def decide(unit: BrokerUnit, half: RemotingCommand, decision: int, **changes: Any) -> RemotingCommand:
    values: dict[str, Any] = {
        "producer_group": "pg",
        "tran_state_table_offset": int(half.ext_fields["queueOffset"]),
        "commit_log_offset": int(half.ext_fields["msgId"][-16:], 16),
        "commit_or_rollback": decision,
        "msg_id": half.ext_fields["transactionId"],
    }
    return await unit.ask(RequestCode.END_TRANSACTION, EndTransactionHeader(**{**values, **changes}))


async def outcome(properties: str, changes: dict[str, Any], decisions: list[tuple[int, dict[str, Any]]]) -> Any:
    """Return the answers to the decisions, and everything that is stored."""
    async with BrokerUnit() as unit:
        await unit.make_topic()
        await asyncio.sleep(1)  # Until then, decisions wait for the start.
        half = await unit.send(properties=properties, **changes)
        assert half.code == ResponseCode.SUCCESS, half.remark
        answers = [await decide(unit, half, decision, **wrong) for decision, wrong in decisions]
        records, at = [], 0
        while (record := unit.store.record_at(at)) is not None:
            message = decode_record(record)
            assert message.crc is CrcState.OK
            # The second of two runs begins later.
            is_op = message.topic == TRANS_OP_HALF_TOPIC
            records.append(message._replace(stored_at_ms=0, born_at_ms=0 if is_op else message.born_at_ms))
            at += len(record)
        queues = [unit.store.units("T", queue_id, 0, 10) for queue_id in range(4)]
        return [(answer.code, answer.remark) for answer in answers], records, queues


@pytest.mark.parametrize("name", SENDS)
async def test_a_commit_stores_what_a_read_of_the_log_would(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    properties, changes = SENDS[name]
    quick = await outcome(properties, changes, DECISIONS["commit"])
    monkeypatch.setattr(RecentHalves, "take", lambda self, offset: None)
    assert quick == await outcome(properties, changes, DECISIONS["commit"])


@pytest.mark.parametrize("name", DECISIONS)
async def test_decisions_are_judged_as_with_a_read_of_the_log(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = await outcome(*SENDS["plain"], DECISIONS[name])
    monkeypatch.setattr(RecentHalves, "take", lambda self, offset: None)
    assert quick == await outcome(*SENDS["plain"], DECISIONS[name])


async def test_a_usual_commit_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Decisions, physical_offset: int) -> FoundHalf | None:
        raise AssertionError(f"{physical_offset} is read")

    monkeypatch.setattr(Decisions, "find_half", fail)
    codes, _, _ = await outcome(*SENDS["with tag and keys"], DECISIONS["commit"])
    assert codes == [(ResponseCode.SUCCESS, None)]


def note(halves: RecentHalves, at: int, body: bytes) -> None:
    header = send_header(properties=KEY + HALF)
    assert isinstance(header, SendMessageHeader)
    host = pack_host(Address("10.0.0.9", 1))
    halves.note(header, 0, body, (b"p" * 10, "", "", "u"), host, sysflag.TRANSACTION_NONE, at, at)


def test_the_oldest_half_messages_make_room() -> None:
    halves = RecentHalves(count_max=3, bytes_max=1000)
    for at in range(5):
        note(halves, at, b"x")
    assert len(halves) == 3
    assert [halves.take(at) is not None for at in range(5)] == [False, False, True, True, True]
    assert (len(halves), halves.size_bytes) == (0, 0)


def test_large_half_messages_make_room_for_each_other() -> None:
    halves = RecentHalves(count_max=100, bytes_max=1000)
    note(halves, 1, bytes(600))
    note(halves, 2, bytes(300))
    assert halves.size_bytes == 920
    note(halves, 3, bytes(600))
    assert (halves.take(1), len(halves), halves.size_bytes) == (None, 2, 920)
    note(halves, 4, bytes(2000))
    assert (len(halves), halves.size_bytes) == (0, 0), "one that is larger than the limit is not kept"
