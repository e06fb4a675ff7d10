"""Settling messages by receipt: one request a broker, one result a receipt, in order."""

import pytest

from gantry.client.errors import BrokerError, ConnectionFailedError, RequestTimeoutError
from gantry.model.group import SubscriptionGroup
from gantry.model.popreceipt import PopReceipt
from gantry.model.retrypolicy import ListedDelays, write_retry_policy
from gantry.remoting.bodies import BatchAckRequest, BatchAckResponse, RefusedAck
from gantry.remoting.bodies.config import encode_subscription_group
from gantry.remoting.codes import RequestCode, ResponseCode
from services.gateway.auth.receiptkey import ReceiptKey
from services.gateway.auth.receipts import Receipt, Receipts
from services.gateway.errors import ProblemError
from services.gateway.usecases.configs.kinds import GroupKind
from services.gateway.usecases.receiving.settling import Settling, judge, retry_delay_ms, sort_receipts
from tests.support.scriptedpeer import ok, refuse

KEY = bytes(range(32))


class KnownKey:
    def require(self) -> bytes:
        return KEY


def pop(offset: int, broker: str = "a") -> PopReceipt:
    return PopReceipt(4, 1_000, 60_000, 3, "0", broker, 0, offset)


def receipt(offset: int, broker: str = "a", *, group: str = "g", topic: str = "T", times: int = 0) -> str:
    return Receipts(KEY, group).sign(Receipt(topic, times, pop(offset, broker)))


def anything(topic: str) -> bool:
    return True


def outcomes(settled):
    return [(one.outcome, one.problem.kind.name if one.problem else None) for one in settled]


@pytest.fixture
def settling(engine, brokers, cluster):
    cluster.topic("T", "a", "b")
    return Settling(engine, brokers, GroupKind(engine), KnownKey())


def test_receipts_are_sorted_by_broker_and_bad_ones_reach_none():
    texts = [receipt(4), "forged", receipt(5, "b"), receipt(6, group="other"), receipt(4), receipt(7, topic="SECRET")]
    found = sort_receipts(KEY, "g", texts, lambda topic: topic == "T")
    assert [(index, one.pop.broker_name, one.pop.queue_offset) for index, one in found.receipts()] == [
        (0, "a", 4), (2, "b", 5),
    ]  # fmt: skip
    assert list(found.by_broker) == ["a", "b"]
    assert [result and result.outcome for result in found.results] == [
        None, "refused", None, "refused", "gone", "refused",
    ]  # fmt: skip
    assert [result.problem.field for result in found.results if result and result.problem] == [
        "/receipts/1", "/receipts/3", "/receipts/5",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, ("acked", None)),
        (BrokerError(ResponseCode.NO_MESSAGE, "expired", "a:1"), ("gone", None)),
        (BrokerError(ResponseCode.NO_PERMISSION, "no", "a:1"), ("refused", "refused-by-broker")),
        (RequestTimeoutError("a:1", "late", sent=True), ("refused", "outcome-unknown")),
        (ConnectionFailedError("a:1", "down", sent=False), ("refused", "broker-unavailable")),
    ],
)
def test_the_answer_of_a_broker_decides_about_a_receipt(error, expected):
    assert outcomes([judge("text", 3, error, "acked")]) == [expected]


def test_a_failed_message_waits_as_its_group_says():
    own = SubscriptionGroup("g", group_retry_policy=write_retry_policy(ListedDelays([7_000, 9_000])))
    assert [retry_delay_ms(own, failures) for failures in (0, 1, 5)] == [7_000, 9_000, 9_000]
    levels = [
        retry_delay_ms(group, failures) for group in (None, SubscriptionGroup("g")) for failures in (0, 1, 15, 99)
    ]
    assert levels == [10_000, 30_000, 7_200_000, 7_200_000] * 2


async def test_acks_are_one_request_a_broker_and_answered_in_order(settling, transport):
    gone = RefusedAck(ack=0, code=ResponseCode.NO_MESSAGE, offset=6, remark="expired")
    transport.at(
        "a:10911", {RequestCode.BATCH_ACK_MESSAGE: lambda r: ok(r, body=BatchAckResponse(refused=[gone]).encode())}
    )
    transport.at("b:10911", {RequestCode.BATCH_ACK_MESSAGE: refuse(ResponseCode.SYSTEM_BUSY, "busy")})
    texts = [receipt(4), receipt(5, "b"), receipt(6), "forged", receipt(7)]
    settled = await settling.ack("g", texts, anything)
    assert [one.receipt for one in settled] == texts
    assert outcomes(settled) == [
        ("acked", None), ("refused", "broker-busy"), ("gone", None), ("refused", "invalid-field"), ("acked", None),
    ]  # fmt: skip
    (request,) = transport.sent(RequestCode.BATCH_ACK_MESSAGE, "a:10911")
    (ack,) = BatchAckRequest.decode(request.body_bytes).acks
    assert (ack.topic, ack.group, ack.offsets()) == ("T", "g", [4, 6, 7])


async def test_forged_receipts_reach_no_broker(settling, transport):
    assert (
        outcomes(await settling.ack("g", ["x", receipt(4, group="h")], anything)) == [("refused", "invalid-field")] * 2
    )
    assert transport.sent(RequestCode.BATCH_ACK_MESSAGE) == []


def changed(request):
    return ok(request, ext={"popTime": "2000", "invisibleTime": request.ext_fields["invisibleTime"], "reviveQid": "5"})


async def test_an_extension_gives_new_receipts_in_order(settling, transport):
    transport.at("a:10911", {RequestCode.CHANGE_MESSAGE_INVISIBLETIME: changed})
    transport.at("b:10911", {RequestCode.CHANGE_MESSAGE_INVISIBLETIME: refuse(ResponseCode.NO_MESSAGE, "expired")})
    settled = await settling.extend("g", [receipt(4, "b"), receipt(5)], anything, invisible_ms=90_000)
    assert outcomes(settled) == [("gone", None), ("extended", None)]
    assert settled[0].new_receipt is None
    assert Receipts(KEY, "g").open(settled[1].new_receipt) == Receipt(
        "T", 0, PopReceipt(5, 2_000, 90_000, 5, "0", "a", 0, 5)
    )


async def test_a_message_that_is_returned_waits_for_the_delay_or_as_its_group_says(settling, transport):
    group = SubscriptionGroup("g", group_retry_policy=write_retry_policy(ListedDelays([7_000, 9_000])))
    scripts = {
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: changed,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: lambda request: ok(request, body=encode_subscription_group(group)),
    }
    transport.at("a:10911", scripts)
    assert outcomes(await settling.nack("g", [receipt(4)], anything, delay_ms=1_500)) == [("nacked", None)]
    assert outcomes(await settling.nack("g", [receipt(5, times=1)], anything, delay_ms=None)) == [("nacked", None)]
    sent = transport.sent(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert [request.ext_fields["invisibleTime"] for request in sent] == ["1500", "9000"]
    assert len(transport.sent(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)) == 1


async def test_without_the_key_nothing_is_touched(engine, brokers, transport):
    settling = Settling(engine, brokers, GroupKind(engine), ReceiptKey("never read"))
    with pytest.raises(ProblemError) as caught:
        await settling.ack("g", [receipt(4)], anything)
    assert caught.value.kind.name == "metadata-unavailable"
    assert transport.sent(RequestCode.BATCH_ACK_MESSAGE) == []
