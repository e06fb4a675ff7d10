"""Promises of transactional messages: what a decision does, when the broker asks, and what it never does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.model import sysflag
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.errors import RequestTimeoutError
from tests.support.brokerunit import BrokerUnit
from tests.support.transactions import (
    COMMIT,
    GIVEN_UP,
    HALF,
    OP,
    ROLLBACK,
    UNKNOWN,
    TransactionProducer,
    bodies,
    messages,
)

CHECK_S = 2
SETTINGS: dict[str, Any] = {
    "transaction_check_interval": 1000 * CHECK_S,
    "transaction_time_out": 1000,
    "transaction_op_batch_interval": 300,
    # The producers of these tests send one heart-beat each.
    "channel_expired_timeout": 1 << 30,
}
"""A tenth of the defaults or less: virtual time is cheap, but the timers of a broker are not."""


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit(**SETTINGS) as unit:
        await unit.make_topic("T")
        yield unit


@pytest.fixture
async def producer(unit: BrokerUnit) -> TransactionProducer:
    producer = TransactionProducer(unit)
    await producer.join()
    return producer


def progress(unit: BrokerUnit) -> tuple[int | None, int | None]:
    offsets = unit.broker.tables.offsets
    return tuple(offsets.find(topic, "CID_RMQ_SYS_TRANS", 0) for topic in (HALF, OP))  # type: ignore[return-value]


async def test_an_undecided_message_is_not_delivered(unit, producer):
    await producer.begin()
    assert bodies(unit) == []
    assert bodies(unit, HALF) == [b"hello"]


async def test_a_committed_message_is_delivered_once(unit, producer):
    half = await producer.begin(body=b"paid")
    answer = await producer.end(half, COMMIT)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert bodies(unit) == [b"paid"]
    await asyncio.sleep(20 * CHECK_S)
    assert (bodies(unit), producer.checks) == ([b"paid"], [])
    assert progress(unit) == (1, 1)


@pytest.mark.parametrize(
    "properties", [{"TIMER_DELAY_MS": "3456000001"}, {"TIMER_DELIVER_MS": "9" * 15}, {"TIMER_DELIVER_MS": "soon"}]
)
async def test_a_time_that_no_commit_could_keep_is_refused_before_anything_is_stored(unit, producer, properties):
    sent = {"TRAN_MSG": "true", "PGROUP": producer.group, **properties}
    answer = await unit.send("T", b"far", properties=sent, sys_flag=sysflag.TRANSACTION_PREPARED)
    assert (answer.code, (answer.remark or "")[:21]) == (ResponseCode.MESSAGE_ILLEGAL, "timer message illegal")
    assert bodies(unit, HALF) == []
    half = await producer.begin(body=b"soon", properties={"TIMER_DELAY_MS": "5000"})
    assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
    assert bodies(unit) == []
    await asyncio.sleep(8)
    assert bodies(unit) == [b"soon"]


async def test_a_rolled_back_message_is_never_delivered(unit, producer):
    half = await producer.begin()
    assert (await producer.end(half, ROLLBACK)).code == ResponseCode.SUCCESS
    await asyncio.sleep(20 * CHECK_S)
    assert (bodies(unit), producer.checks) == ([], [])
    assert progress(unit) == (1, 1)


async def test_an_unknown_decision_gets_no_answer_and_leaves_the_transaction_open(unit, producer):
    half = await producer.begin()
    with pytest.raises(RequestTimeoutError):
        await unit.ask(
            RequestCode.END_TRANSACTION,
            ext={
                "producerGroup": "pg", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "0",
                "msgId": half.ext_fields["transactionId"],
            },
            timeout_ms=1000,
        )  # fmt: skip
    assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS


async def test_a_decision_is_made_once(unit, producer):
    half, other = await producer.begin(body=b"a"), await producer.begin(body=b"b")
    for _ in range(2):
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert (await producer.end(other, ROLLBACK)).code == ResponseCode.SUCCESS
    late = await producer.end(half, ROLLBACK)
    assert (late.code, late.remark) == (ResponseCode.TRANSACTION_SHOULD_COMMIT, "the transaction is committed already")
    late = await producer.end(other, COMMIT)
    assert late.code == ResponseCode.TRANSACTION_SHOULD_ROLLBACK
    assert bodies(unit) == [b"a"]


async def test_an_open_transaction_is_checked_after_its_time_out_at_each_interval(unit, producer):
    half = await producer.begin(properties={"UNIQ_KEY": "K1", "KEYS": "k"}, queue_id=2)
    await asyncio.sleep(CHECK_S - 0.5)
    assert producer.checks == []
    await asyncio.sleep(1)
    ((header, message),) = producer.checks
    assert (message.topic, message.queue_id, message.body) == ("T", 2, b"hello")
    assert (header.msg_id, header.transaction_id) == ("K1", "K1")
    assert header.tran_state_table_offset == message.queue_offset == 1
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert half.ext_fields["queueOffset"] == "0"
    await asyncio.sleep(CHECK_S)
    assert [message.properties["TRANSACTION_CHECK_TIMES"] for _, message in producer.checks] == ["1", "2"]
    assert progress(unit)[0] == 2


async def test_the_default_times_are_those_of_apache():
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        producer = TransactionProducer(unit)
        await producer.join()
        await asyncio.sleep(20)
        await producer.begin(body=b"old")
        await asyncio.sleep(5)
        await producer.begin(body=b"young")
        await asyncio.sleep(6)
        assert [half.body for _, half in producer.checks] == [b"old"]
        await asyncio.sleep(30)
        assert [half.body for _, half in producer.checks] == [b"old", b"young", b"old"]


async def test_a_transaction_younger_than_the_time_out_is_not_checked(unit, producer):
    await asyncio.sleep(CHECK_S - 0.5)
    await producer.begin()
    await asyncio.sleep(1)
    assert producer.checks == []
    await asyncio.sleep(CHECK_S)
    assert len(producer.checks) == 1


@pytest.mark.parametrize(("decision", "delivered"), [(COMMIT, [b"hello"]), (ROLLBACK, [])])
async def test_the_answer_to_a_check_decides(unit, producer, decision, delivered):
    producer.decide = lambda half: decision
    await producer.begin()
    await asyncio.sleep(10 * CHECK_S)
    assert (bodies(unit), len(producer.checks)) == (delivered, 1)
    assert progress(unit) == (2, unit.store.max_offset(OP, 0))


async def test_after_fifteen_checks_the_message_moves_to_the_topic_of_given_up_ones(unit, producer):
    await producer.begin(properties={"UNIQ_KEY": "K1"})
    await asyncio.sleep(20 * CHECK_S)
    assert len(producer.checks) == 15
    (given_up,) = messages(unit, GIVEN_UP)
    assert (given_up.body, given_up.message_id) == (b"hello", "K1")
    assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "15"
    assert bodies(unit) == []
    config = unit.broker.tables.topics.find(GIVEN_UP)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


async def test_a_late_commit_of_a_given_up_transaction_is_delivered(unit, producer):
    half = await producer.begin()
    while not messages(unit, GIVEN_UP):  # noqa: ASYNC110 - virtual time; the broker has no event for it.
        await asyncio.sleep(0.1)
    assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
    await asyncio.sleep(2 * CHECK_S)
    assert bodies(unit) == [b"hello"]


async def test_a_given_up_transaction_can_be_checked_again(unit, producer):
    await producer.begin()
    await asyncio.sleep(17 * CHECK_S)
    (given_up,) = messages(unit, GIVEN_UP)
    producer.decide = lambda half: COMMIT
    for expected in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR):
        answer = await unit.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext={"msgId": given_up.stored_id, "topic": "T"})
        assert answer.code == expected, answer.remark
    await asyncio.sleep(2 * CHECK_S)
    assert bodies(unit) == [b"hello"]
    answer = await unit.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext={"msgId": "no id", "topic": "T"})
    assert answer.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(("text", "checked_at"), [("7", 8), ("0", 2), ("x", 2), ("-1", 2), ("60", 60)])
async def test_the_immunity_time_delays_the_first_check_and_costs_none(unit, producer, text, checked_at):
    await producer.begin(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": text})
    await asyncio.sleep(checked_at - 0.5)
    assert producer.checks == []
    await asyncio.sleep(1)
    ((_, half),) = producer.checks
    assert half.properties["TRANSACTION_CHECK_TIMES"] == "1"
    if checked_at > CHECK_S:
        assert half.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"


async def test_a_decision_on_an_immune_message_ends_its_copies(unit, producer):
    half = await producer.begin(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"})
    await asyncio.sleep(2 * CHECK_S + 1)
    assert len(bodies(unit, HALF)) == 3
    assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
    await asyncio.sleep(20 * CHECK_S)
    assert (bodies(unit), producer.checks) == ([b"hello"], [])


async def test_a_producer_that_is_later_than_its_immunity_time_must_wait_for_the_check(unit, producer):
    half = await producer.begin(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "10"})
    await asyncio.sleep(11)
    assert (await producer.end(half, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
    assert (await producer.end(half, COMMIT, from_transaction_check=True)).code == ResponseCode.SUCCESS


async def test_a_late_decision_that_names_the_first_half_message_ends_the_transaction(unit, producer):
    half = await producer.begin()
    await asyncio.sleep(3 * CHECK_S + 0.5)
    assert len(producer.checks) == 3
    assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
    await asyncio.sleep(20 * CHECK_S)
    assert (bodies(unit), len(producer.checks)) == ([b"hello"], 3)


async def test_one_open_transaction_does_not_hold_back_the_others(unit, producer):
    await producer.begin(body=b"open")
    producer.decide = lambda half: COMMIT if half.body == b"late" else UNKNOWN
    for number in range(100):
        half = await producer.begin(body=b"late" if number == 50 else b"%d" % number)
        if number != 50:
            await producer.end(half, COMMIT)
    await asyncio.sleep(5 * CHECK_S)
    assert len(bodies(unit)) == 100
    assert bodies(unit)[-1] == b"late"


async def test_checks_go_to_random_live_producers_of_the_group(unit):
    producers = [TransactionProducer(unit) for _ in range(3)]
    stranger = TransactionProducer(unit, group="other")
    for producer in (*producers, stranger):
        await producer.join()
    for _ in range(60):
        await producers[0].begin()
    await asyncio.sleep(CHECK_S + 0.5)
    assert sum(len(producer.checks) for producer in producers) == 60
    assert all(len(producer.checks) > 5 for producer in producers)
    producers[0].connection.client.close("gone")
    await asyncio.sleep(CHECK_S)
    assert sum(len(producer.checks) for producer in producers[1:]) + len(producers[0].checks) == 120
    assert stranger.checks == []


async def test_without_a_producer_the_transaction_stays_open_until_the_last_check(unit, producer):
    other = TransactionProducer(unit, group="away")
    await other.begin(body=b"later")
    await asyncio.sleep(5 * CHECK_S + 0.5)
    other.decide = lambda half: COMMIT
    await other.join()
    await asyncio.sleep(CHECK_S)
    assert bodies(unit) == [b"later"]
    assert other.checks[0][1].properties["TRANSACTION_CHECK_TIMES"] == "6"


async def test_a_commit_to_a_deleted_topic_is_refused(unit, producer):
    half = await producer.begin()
    assert (await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})).code == ResponseCode.SUCCESS
    answer = await producer.end(half, COMMIT)
    assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist")


async def test_the_answer_to_a_half_message_is_that_of_apache(unit, producer):
    await producer.begin()
    answer = await producer.begin(queue_id=3, properties={"UNIQ_KEY": "K1"})
    (_, half) = messages(unit, HALF)
    assert answer.ext_fields["msgId"] == half.stored_id
    assert answer.ext_fields["transactionId"] == "K1"
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("3", "1")


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"commit_log_offset": 7}, 1, "Find prepared transaction message failed"),
        ({"commit_log_offset": -7}, 1, "Find prepared transaction message failed"),
        ({"commit_log_offset": 1 << 60}, 1, "Find prepared transaction message failed"),
        ({"producer_group": "pg2"}, 1, "The producer group wrong"),
        ({"tran_state_table_offset": 5}, 1, "The transaction state table offset wrong"),
        ({"decision": 4}, 29, "commitOrRollback=4: is not 0, 8 or 12"),
    ],
)
async def test_a_wrong_decision_is_refused_by_name(unit, producer, changes: dict[str, Any], code, remark):
    half = await producer.begin()
    for decision in (COMMIT, ROLLBACK):
        answer = await producer.end(half, **{"decision": decision, **changes})
        assert (answer.code, answer.remark) == (code, remark)
    assert bodies(unit) == []
    assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS


async def test_a_message_that_is_no_half_message_can_not_be_committed(unit, producer):
    plain = await unit.send("T", b"plain", properties={"PGROUP": "pg"})
    answer = await producer.end(plain, COMMIT)
    assert (answer.code, answer.remark) == (1, "Find prepared transaction message failed")
    assert bodies(unit) == [b"plain"]


async def test_rejected_transactions_are_refused():
    async with BrokerUnit(reject_transaction_message=True) as unit:
        await unit.make_topic("T")
        answer = await unit.send("T", b"x", properties={"TRAN_MSG": "true", "PGROUP": "pg"})
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the broker[10.0.0.5] sending transaction message is forbidden"


@pytest.mark.parametrize(
    ("sys_flag", "properties", "code"),
    [
        (4, {"a": "b"}, 13),
        (4, {"TRAN_MSG": "false"}, 13),
        (8, {"TRAN_MSG": "true", "PGROUP": "pg"}, 13),
        (12, {"TRAN_MSG": "true", "PGROUP": "pg"}, 13),
        (4, {"TRAN_MSG": "true"}, 13),
        (4, {"TRAN_MSG": "true", "PGROUP": "pg", "big": "x" * 32_500}, 13),
        (0, {"TRAN_MSG": "true", "PGROUP": "pg"}, 0),
        (4, {"TRAN_MSG": "TRUE", "PGROUP": "pg"}, 0),
    ],
)
async def test_a_message_with_a_wrong_mark_is_refused(unit, sys_flag, properties, code):
    answer = await unit.send("T", b"x", properties=properties, sys_flag=sys_flag)
    assert answer.code == code, answer.remark
    assert len(bodies(unit, HALF)) == (code == 0)
    assert bodies(unit) == []


async def test_op_messages_are_written_in_batches(unit, producer):
    halves = [await producer.begin() for _ in range(25)]
    for half in halves:
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
    assert bodies(unit, OP) == []
    await asyncio.sleep(0.4)
    (op,) = messages(unit, OP)
    assert op.body == b"".join(b"%d," % number for number in range(25))
    assert (op.properties, op.queue_id, op.sys_flag) == ({"WAIT": "true", "TAGS": "d"}, 0, 0)
    assert op.born_host == op.store_host


async def test_a_large_batch_of_op_messages_is_written_at_once():
    async with BrokerUnit(transaction_op_msg_max_size=40) as unit:
        await unit.make_topic("T")
        producer = TransactionProducer(unit)
        for half in [await producer.begin() for _ in range(25)]:
            await producer.end(half, COMMIT)
        # 10 offsets of two bytes and 7 of three are the first that take more than 40 bytes.
        assert bodies(unit, OP) == [b"".join(b"%d," % number for number in range(17))]


async def test_decisions_survive_an_orderly_restart():
    async with BrokerUnit(**SETTINGS) as unit:
        await unit.make_topic("T")
        producer = TransactionProducer(unit)
        halves = [await producer.begin(body=b"%d" % number) for number in range(4)]
        await producer.end(halves[1], COMMIT)
        await producer.end(halves[2], ROLLBACK)
        files = unit.files
    async with BrokerUnit(files=files, **SETTINGS) as unit:
        producer = TransactionProducer(unit)
        await producer.join()
        assert bodies(unit) == [b"1"]
        answer = await producer.end(halves[1], COMMIT)
        assert answer.code == ResponseCode.TRANSACTION_STATE_UNKNOWN
        assert (await producer.end(halves[0], COMMIT)).code == ResponseCode.SUCCESS
        await asyncio.sleep(CHECK_S + 0.5)
        assert [half.body for _, half in producer.checks] == [b"3"]
        assert bodies(unit) == [b"1", b"0"]


async def test_a_late_decision_after_a_restart_ends_the_newest_copy():
    async with BrokerUnit(**SETTINGS) as unit:
        await unit.make_topic("T")
        producer = TransactionProducer(unit)
        half = await producer.begin()
        await asyncio.sleep(3 * CHECK_S)
        files = unit.files
    async with BrokerUnit(files=files, **SETTINGS) as unit:
        producer = TransactionProducer(unit)
        await producer.join()
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
        await asyncio.sleep(20 * CHECK_S)
        assert (bodies(unit), producer.checks) == ([b"hello"], [])


async def test_a_damaged_half_message_does_not_stop_the_check(unit, producer):
    for number in range(5):
        await producer.begin(body=b"half %d" % number)
    damaged = messages(unit, HALF)[2]
    folder = "/data/store/commitlog"
    memory = unit.files.find(f"{folder}/{min(unit.files.list_files(folder))[0]}").memory
    at = damaged.physical_offset + damaged.size_bytes // 2
    memory[at : at + 1] = bytes([memory[at : at + 1][0] ^ 0xFF])
    await asyncio.sleep(2 * CHECK_S)
    assert {half.body for _, half in producer.checks} == {b"half 0", b"half 1", b"half 3", b"half 4"}
    assert progress(unit)[0] == 5


async def test_half_messages_that_retention_removed_do_not_stop_the_check():
    settings = {**SETTINGS, "mapped_file_size_commit_log": 64 * 1024, "file_reserved_time": 1}
    settings["transaction_time_out"] = 60_000
    async with BrokerUnit(**settings) as unit:
        await unit.make_topic("T")
        producer = TransactionProducer(unit)
        await producer.begin(body=b"removed")
        for _ in range(10):
            await unit.send("T", bytes(30_000))
        await asyncio.sleep(12)  # The files are removed only after everything that is derived from them is on the disk.
        unit.clock.set_wall(unit.clock.now_ms() + 10 * 3_600_000)
        assert unit.store.clean_expired()
        await asyncio.sleep(1)
        assert messages(unit, HALF) == []
        await producer.join()
        await producer.begin(body=b"later", born_timestamp=unit.clock.now_ms() - 60_000)
        await asyncio.sleep(2 * CHECK_S)
        assert {half.body for _, half in producer.checks} == {b"later"}
