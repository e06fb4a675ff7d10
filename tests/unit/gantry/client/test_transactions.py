"""Transactional sends of the client: the half message, the decision, and the answers to checks."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gantry.client.errors import BrokerError, InvalidArgumentError, SendError
from gantry.client.transactionchecks import CHECKS_MAX, Decision
from gantry.client.transactions import TransactionProducer
from gantry.model.address import Address, pack_host
from gantry.model.message import Message, StoredMessage, decode_properties, encode_properties
from gantry.model.messageid import encode_stored_id
from gantry.model.record import encode_record
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import CheckTransactionStateHeader
from tests.support.scriptedpeer import Script, ScriptedOutcome, ok, refuse

END = RequestCode.END_TRANSACTION
SEND = RequestCode.SEND_MESSAGE_V2
STORED_ID = encode_stored_id(Address("10.0.0.1", 10911), 4096)


def store(request: RemotingCommand) -> ScriptedOutcome:
    ext = {"msgId": STORED_ID, "queueId": request.ext_fields["e"], "queueOffset": "7", "transactionId": "X"}
    return ok(request, ext=ext)


def store_unsafely(request: RemotingCommand) -> ScriptedOutcome:
    answer = store(request)
    assert isinstance(answer, RemotingCommand)
    answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
    return answer


@pytest.fixture
def broker(cluster, transport) -> Callable[..., None]:
    def set_up(send: Script = store, end: Script = ok) -> None:
        cluster.topic("T", "a")
        transport.at("a:10911", {SEND: send, END: end})

    return set_up


async def forget(half: StoredMessage) -> Decision:
    return Decision.UNKNOWN


def deciding(decision: Decision) -> Any:
    async def execute(half: object) -> Decision:
        return decision

    return execute


@pytest.mark.parametrize("decision", Decision)
async def test_the_half_message_is_sent_and_then_the_decision(engine, broker, transport, decision):
    broker()
    producer = TransactionProducer(engine, "pg", forget)
    message = Message("T", b"x", {"TAGS": "A", "DELAY": "3"})
    result = await producer.send_transaction(message, deciding(decision))
    assert (result.decision, result.half.queue_offset) == (decision, 7)
    (half,) = transport.sent(SEND)
    properties = decode_properties(half.ext_fields["i"].encode())
    assert properties == {
        "TAGS": "A", "TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": result.half.message_id,
    }  # fmt: skip
    assert half.ext_fields["f"] == "4"
    (end,) = transport.sent(END)
    assert end.is_one_way
    assert end.ext_fields == {
        "producerGroup": "pg", "tranStateTableOffset": "7", "commitLogOffset": "4096", "topic": "T", "bname": "a",
        "commitOrRollback": str(int(decision)), "msgId": result.half.message_id, "transactionId": "X",
        "fromTransactionCheck": "false",
    }  # fmt: skip


async def test_a_half_message_that_is_not_safe_is_rolled_back(engine, broker, transport):
    broker(store_unsafely)
    producer = TransactionProducer(engine, "pg", forget)
    result = await producer.send_transaction(Message("T", b"x"), deciding(Decision.COMMIT))
    assert result.decision is Decision.ROLLBACK
    assert transport.sent(END)[0].ext_fields["commitOrRollback"] == "12"


async def test_a_half_message_that_is_refused_has_no_decision(engine, broker, transport):
    broker(refuse(ResponseCode.NO_PERMISSION))
    producer = TransactionProducer(engine, "pg", forget)
    with pytest.raises(SendError):
        await producer.send_transaction(Message("T", b"x"), deciding(Decision.COMMIT))
    assert transport.sent(END) == []


async def test_an_error_of_the_application_leaves_the_transaction_open(engine, broker, transport):
    broker()

    async def fail(half: object) -> Decision:
        raise KeyError("no account")

    producer = TransactionProducer(engine, "pg", forget)
    with pytest.raises(KeyError):
        await producer.send_transaction(Message("T", b"x"), fail)
    (end,) = transport.sent(END)
    assert end.ext_fields["commitOrRollback"] == "0"
    assert end.remark == "executeLocalTransactionBranch exception: KeyError('no account')"


async def test_a_lost_decision_is_left_to_the_check(engine, broker, transport):
    broker()

    async def lose(half: object) -> Decision:
        transport.down("a:10911")
        return Decision.COMMIT

    producer = TransactionProducer(engine, "pg", forget)
    assert (await producer.send_transaction(Message("T", b"x"), lose)).decision is Decision.COMMIT


async def test_a_decision_with_a_reply_reports_a_refusal(engine, broker):
    broker(end=refuse(ResponseCode.TRANSACTION_SHOULD_COMMIT, "committed already"))
    producer = TransactionProducer(engine, "pg", forget)
    half = await producer.send_half(Message("T", b"x"))
    with pytest.raises(BrokerError, match="committed already"):
        await producer.decide(half, Decision.ROLLBACK)
    with pytest.raises(InvalidArgumentError):
        await producer.decide(half, Decision.UNKNOWN)


class FakeChannel:
    address = "a:10911"

    def __init__(self) -> None:
        self.sent: list[RemotingCommand] = []

    def send_one_way(self, command: RemotingCommand) -> None:
        self.sent.append(command)


def check(group: str = "pg") -> RemotingCommand:
    host = pack_host(Address("10.0.0.1", 10911))
    properties = encode_properties({"PGROUP": group, "UNIQ_KEY": "K"})
    body = encode_record(1, 0, 9, 500, 0, 1, host, 2, host, 0, 0, b"hello", b"T", properties)
    header = CheckTransactionStateHeader(tran_state_table_offset=9, commit_log_offset=500, msg_id="K", broker_name="a")
    return RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header, body=body, one_way=True)


async def test_a_check_is_answered_by_the_listener_of_the_group(engine):
    asked: list[StoredMessage] = []

    async def listener(half: StoredMessage) -> Decision:
        asked.append(half)
        return Decision.COMMIT

    producer, channel = TransactionProducer(engine, "pg", listener), FakeChannel()
    await producer.start()
    engine.transaction_checks.answer(channel, check())
    engine.transaction_checks.answer(channel, check("other"))
    await asyncio.sleep(0.1)
    (half,) = asked
    assert (half.topic, half.queue_id, half.body) == ("T", 1, b"hello")
    (answer,) = channel.sent
    assert (answer.code, answer.is_one_way) == (END, True)
    assert answer.ext_fields == {
        "producerGroup": "pg", "tranStateTableOffset": "9", "commitLogOffset": "500", "commitOrRollback": "8",
        "msgId": "K", "fromTransactionCheck": "true", "topic": "T", "bname": "a",
    }  # fmt: skip
    await producer.close()
    engine.transaction_checks.answer(channel, check())
    await asyncio.sleep(0.1)
    assert (len(channel.sent), engine.transaction_checks.dropped_count) == (1, 2)


async def test_a_listener_that_fails_answers_unknown(engine):
    async def listener(half: StoredMessage) -> Decision:
        raise ValueError("no such order")

    producer, channel = TransactionProducer(engine, "pg", listener), FakeChannel()
    await producer.start()
    engine.transaction_checks.answer(channel, check())
    await asyncio.sleep(0.1)
    assert channel.sent[0].ext_fields["commitOrRollback"] == "0"
    assert "no such order" in str(channel.sent[0].remark)


async def test_checks_beyond_the_limit_are_dropped(engine):
    gate = asyncio.Event()

    async def listener(half: StoredMessage) -> Decision:
        await gate.wait()
        return Decision.ROLLBACK

    producer, channel = TransactionProducer(engine, "pg", listener), FakeChannel()
    await producer.start()
    for _ in range(CHECKS_MAX + 5):
        engine.transaction_checks.answer(channel, check())
    assert engine.transaction_checks.dropped_count == 5
    gate.set()
    await asyncio.sleep(0.1)
    assert len(channel.sent) == CHECKS_MAX


async def test_a_group_without_answers_delays_no_other_group(engine):
    async def silent(half: StoredMessage) -> Decision:
        await asyncio.sleep(3_600)
        return Decision.UNKNOWN

    async def good(half: StoredMessage) -> Decision:
        return Decision.COMMIT

    channel = FakeChannel()
    for group, listener in (("silent", silent), ("pg", good)):
        await TransactionProducer(engine, group, listener).start()
    for _ in range(CHECKS_MAX):
        engine.transaction_checks.answer(channel, check("silent"))
    engine.transaction_checks.answer(channel, check())
    await asyncio.sleep(0.1)
    assert [answer.ext_fields["producerGroup"] for answer in channel.sent] == ["pg"]


async def test_a_damaged_check_is_ignored(engine):
    producer, channel = TransactionProducer(engine, "pg", forget), FakeChannel()
    await producer.start()
    request = check()
    request.body = request.body_bytes[:50]
    engine.transaction_checks.answer(channel, request)
    await asyncio.sleep(0.1)
    assert channel.sent == []
