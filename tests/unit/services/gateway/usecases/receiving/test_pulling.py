"""Pulls for a group: the first broker that has something answers, and a client that leaves loses nothing."""

import asyncio
from contextlib import contextmanager

import pytest

from gantry.client.errors import ClientError
from gantry.model.address import Address
from gantry.model.group import parse_tag_expression
from gantry.model.message import CrcState, StoredMessage
from gantry.model.record import encode_message
from gantry.remoting.codes import RequestCode, ResponseCode
from services.gateway.auth.receipts import Receipts
from services.gateway.errors import ProblemError
from services.gateway.usecases.receiving.pulling import Pull, Pulling
from services.gateway.usecases.receiving.turns import in_turn
from tests.support.scriptedpeer import in_turn as steps
from tests.support.scriptedpeer import ok, refuse

KEY = bytes(range(32))
HOST = Address("127.0.0.1", 10911)
POP, WAIT, CHANGE = RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION, RequestCode.CHANGE_MESSAGE_INVISIBLETIME


def record(offset: int, body: bytes = b"body") -> bytes:
    message = StoredMessage(
        "T", 0, offset, offset * 200, 0, 0, 0, 0, 1_000, HOST, 2_000, HOST, 0, 0, body,
        {"UNIQ_KEY": f"ID{offset}"}, 1, CrcState.OK,
    )  # fmt: skip
    return encode_message(message, whole_record_crc=True)


def found(*records: bytes, start: int = 0):
    ext = {
        "popTime": "1000", "invisibleTime": "60000", "reviveQid": "3", "restNum": "0", "startOffsetInfo": f"0 0 {start}",
        "msgOffsetInfo": f"0 0 {start}",
    }  # fmt: skip
    return lambda request: ok(request, ext=ext, body=b"".join(records))


nothing = refuse(ResponseCode.POLLING_TIMEOUT, "none")


def notified(has_message: bool):
    return lambda request: ok(request, ext={"hasMsg": str(has_message).lower(), "pollingFull": "false"})


def held(request):
    return None


class KnownKey:
    def require(self) -> bytes:
        return KEY


class Caller:
    key_id = "key-1"

    def __init__(self):
        self.waits = 0

    def require_presence(self):
        pass

    def require_room(self):
        pass

    @contextmanager
    def waiting(self):
        self.waits += 1
        yield

    async def take_turn(self):
        pass


@pytest.fixture
async def pulling(engine, reader, metrics, clock, cluster):
    cluster.topic("T", "a", "b")
    pulls = []
    pulling = Pulling(
        engine,
        reader,
        metrics,
        KnownKey(),
        clock=clock,
        is_stopping=lambda: False,
        on_pull=lambda *one: pulls.append(one),
    )
    pulling.pulls = pulls
    yield pulling
    await pulling.close()


def wanted(*, wait_ms: int = 0, messages_max: int = 32, **more) -> Pull:
    return Pull("g", parse_tag_expression("T", "*"), messages_max, wait_ms, 60_000, **more)


async def pull(pulling, pull_wanted):
    async with pulling.pull(pull_wanted, Caller()) as pulled:
        return pulled


def test_pulls_begin_at_another_broker_each_time():
    assert [in_turn(["b", "c", "a"], turn, None) for turn in range(4)] == [
        ["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"],
    ]  # fmt: skip


def test_a_broker_that_has_a_message_is_asked_first():
    assert in_turn(["a", "b", "c"], 0, "c") == ["c", "a", "b"]
    assert in_turn(["a", "b"], 0, "gone") == ["a", "b"]


async def test_a_pull_that_a_broker_answers_is_noted(pulling, transport):
    transport.at("a:10911", {POP: nothing})
    transport.at("b:10911", {POP: nothing})
    asked = wanted()
    await pull(pulling, asked)
    assert set(pulling.pulls) == {("g", asked.subscription)}
    pulling.pulls.clear()
    transport.down("a:10911")
    transport.down("b:10911")
    with pytest.raises(ClientError):
        await pull(pulling, asked)
    assert pulling.pulls == []


async def test_the_first_broker_that_has_something_answers(pulling, transport):
    transport.at("a:10911", {POP: nothing})
    transport.at("b:10911", {POP: found(record(7), record(8), start=7)})
    pulled = await pull(pulling, wanted())
    assert [message.record[2] for message in pulled.messages] == [7, 8]
    receipt = Receipts(KEY, "g").open(pulled.messages[1].receipt)
    assert (receipt.topic, receipt.pop.broker_name, receipt.pop.queue_offset) == ("T", "b", 8)


async def test_a_large_pull_pops_until_the_broker_has_no_more(pulling, transport):
    first = [record(offset, b"x") for offset in range(32)]
    transport.at("a:10911", {POP: steps(found(*first), found(record(32), start=32))})
    transport.at("b:10911", {POP: nothing})
    assert len((await pull(pulling, wanted(messages_max=100))).messages) == 33
    assert [request.ext_fields["maxMsgNums"] for request in transport.sent(POP)] == ["32", "32"]


async def test_a_pull_that_waits_is_answered_when_any_broker_has_a_message(pulling, transport, clock):
    transport.at("a:10911", {POP: nothing, WAIT: held})
    transport.at("b:10911", {POP: steps(nothing, found(record(7), start=7)), WAIT: notified(True)})
    before_ms = clock.monotonic_ms()
    assert len((await pull(pulling, wanted(wait_ms=30_000))).messages) == 1
    assert clock.monotonic_ms() - before_ms < 1_000


async def test_a_pull_without_messages_ends_after_its_wait(pulling, transport, clock):
    for broker in "ab":
        transport.at(f"{broker}:10911", {POP: nothing, WAIT: held})
    before_ms = clock.monotonic_ms()
    assert (await pull(pulling, wanted(wait_ms=3_000))).messages == []
    assert 3_000 <= clock.monotonic_ms() - before_ms < 3_200


async def test_clients_that_wait_for_the_same_share_one_request(pulling, transport):
    for broker in "ab":
        transport.at(f"{broker}:10911", {POP: nothing, WAIT: held})
    await asyncio.gather(*(pull(pulling, wanted(wait_ms=3_000)) for _ in range(20)))
    assert len(transport.sent(WAIT)) == 2


async def test_a_client_that_leaves_while_it_waits_takes_no_message(pulling, transport):
    for broker in "ab":
        transport.at(f"{broker}:10911", {POP: nothing, WAIT: held})
    task = asyncio.create_task(pull(pulling, wanted(wait_ms=30_000)))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    count = len(transport.sent(POP))
    transport.at("a:10911", {POP: found(record(1), start=1)})
    await asyncio.sleep(30)
    assert len(transport.sent(POP)) == count


async def test_messages_of_a_client_that_leaves_during_the_pop_become_visible_at_once(pulling, transport):
    changed = {"popTime": "1", "invisibleTime": "0", "reviveQid": "1"}
    transport.at("a:10911", {POP: found(record(7), start=7), CHANGE: lambda request: ok(request, ext=changed)})
    transport.latency_s["a:10911"] = 0.5
    task = asyncio.create_task(pull(pulling, wanted()))
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(2)
    (request,) = transport.sent(CHANGE)
    assert (request.ext_fields["offset"], request.ext_fields["invisibleTime"]) == ("7", "0")


async def test_a_named_pull_keeps_its_messages_for_the_repetition(pulling, transport):
    transport.at("a:10911", {POP: found(record(7), start=7)})
    transport.latency_s["a:10911"] = 0.5
    task = asyncio.create_task(pull(pulling, wanted(attempt_id="one")))
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(2)
    assert transport.sent(CHANGE) == []


async def test_a_broker_that_is_down_costs_the_others_nothing(pulling, transport):
    transport.down("a:10911")
    transport.at("b:10911", {POP: found(record(7), start=7)})
    assert len((await pull(pulling, wanted())).messages) == 1


@pytest.mark.parametrize("attempt_id", [None, "one"])
async def test_a_broker_that_hangs_delays_only_the_pulls_that_find_out(pulling, transport, clock, attempt_id):
    one = found(record(7), start=7)
    transport.at("a:10911", {POP: held})
    transport.at("b:10911", {POP: steps(*[nothing, one] * 20) if attempt_id else one})
    assert len((await pull(pulling, wanted(attempt_id=attempt_id))).messages) == 1
    before_ms = clock.monotonic_ms()
    for number in range(6):
        name = attempt_id and f"{attempt_id}-{number}"
        assert len((await pull(pulling, wanted(attempt_id=name))).messages) == 1
    assert clock.monotonic_ms() - before_ms < 500


async def test_pulls_in_line_at_a_broker_that_hangs_go_to_another_one_together(pulling, transport, clock):
    transport.at("a:10911", {POP: held})
    transport.at("b:10911", {POP: found(record(7), start=7)})
    before_ms = clock.monotonic_ms()
    pulls = await asyncio.gather(*(pull(pulling, wanted()) for _ in range(100)))
    assert all(len(pulled.messages) == 1 for pulled in pulls)
    assert clock.monotonic_ms() - before_ms < 6_000


async def test_a_broker_that_answers_again_is_asked_again(pulling, transport, clock):
    transport.at("a:10911", {POP: held, WAIT: held})
    transport.at("b:10911", {POP: nothing})
    before_ms = clock.monotonic_ms()
    assert (await pull(pulling, wanted())).messages == []
    waited_ms = clock.monotonic_ms() - before_ms
    for _ in range(40):
        assert (await pull(pulling, wanted())).messages == []
        await asyncio.sleep(0.5)
    assert clock.monotonic_ms() - before_ms < waited_ms + 21_000
    assert (len(transport.sent(WAIT)), len(transport.sent(POP))) == (2, 42)
    transport.at("a:10911", {POP: found(record(7), start=7), WAIT: notified(True)})
    await asyncio.sleep(6)
    assert (await pull(pulling, wanted())).messages == []
    await asyncio.sleep(0.1)
    assert len((await pull(pulling, wanted())).messages) == 1
    transport.at("b:10911", {POP: found(record(8), start=8)})
    brokers = {(await pull(pulling, wanted())).broker for _ in range(2)}
    assert brokers == {"a", "b"}


async def test_if_all_brokers_hang_each_pull_asks_all(pulling, transport):
    for broker in "ab":
        transport.at(f"{broker}:10911", {POP: held})
    for _ in range(2):
        with pytest.raises(ClientError):
            await pull(pulling, wanted())
    transport.at("b:10911", {POP: found(record(7), start=7)})
    assert len((await pull(pulling, wanted())).messages) == 1


async def test_a_pull_fails_if_no_broker_answers(pulling, transport):
    transport.down("a:10911")
    transport.down("b:10911")
    with pytest.raises(Exception, match="refused"):
        await pull(pulling, wanted())


async def test_a_damaged_record_is_reported_and_has_no_receipt(pulling, transport):
    damaged = bytearray(record(7))
    damaged[-40] ^= 1
    transport.at("a:10911", {POP: found(bytes(damaged), record(8), start=7)})
    pulled = await pull(pulling, wanted())
    assert [message.record[2] for message in pulled.messages] == [8]
    assert [(pulled.broker, one.queue_offset) for one in pulled.damaged] == [("a", 7)]


async def test_a_group_of_the_system_is_refused(pulling):
    with pytest.raises(ProblemError, match="belongs to the system"):
        await pull(pulling, Pull("CID_RMQ_SYS_X", parse_tag_expression("T", "*"), 1, 0, 60_000))
