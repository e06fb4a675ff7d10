"""Pops against a broker without a process: requests, and what their answers hold."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gantry.model.group import SubscriptionGroup
from gantry.model.message import StoredMessage
from gantry.model.popreceipt import NOT_RETRY, PopReceipt, decode_pop_receipt, decode_start_offsets, encode_pop_receipt
from gantry.model.record import iter_records
from gantry.remoting.bodies import encode_subscription_group
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    PopMessageHeader,
    PopMessageResponseHeader,
)
from tests.support.brokerunit import BrokerUnit


class Popped(NamedTuple):
    """A message and its receipt."""

    message: StoredMessage
    receipt: PopReceipt


def pop_header(topic: str = "T", group: str = "g", **changes: Any) -> PopMessageHeader:
    """Return the header of a pop of any queue: 32 messages for 10 s, no waiting."""
    values: dict[str, Any] = {
        "queue_id": -1,
        "max_msg_nums": 32,
        "invisible_time": 10_000,
        "poll_time": 0,
        "born_time": 0,
        "init_mode": 0,
    }
    return PopMessageHeader(consumer_group=group, topic=topic, **{**values, **changes})


async def ask_pop(unit: BrokerUnit, topic: str = "T", group: str = "g", **changes: Any) -> RemotingCommand:
    """Pop, and return the answer."""
    connection = changes.pop("connection", None)
    header = pop_header(topic, group, **changes)
    return await unit.ask(RequestCode.POP_MESSAGE, header, connection=connection)


async def pop(unit: BrokerUnit, topic: str = "T", group: str = "g", **changes: Any) -> list[Popped]:
    """Pop, and return the messages; none if the broker has none now."""
    return popped(await ask_pop(unit, topic, group, **changes))


def popped(answer: RemotingCommand) -> list[Popped]:
    """Return the messages of an answer to a pop."""
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
    header = PopMessageResponseHeader.from_ext(answer.ext_fields)
    starts = decode_start_offsets(header.start_offset_info)
    return [Popped(message, _receipt(message, header, starts)) for message in iter_records(answer.body_bytes)]


def _receipt(message: StoredMessage, header: PopMessageResponseHeader, starts: Any) -> PopReceipt:
    text = message.properties.get("POP_CK")
    if text is not None:
        return decode_pop_receipt(text)
    return PopReceipt(
        starts[NOT_RETRY, message.queue_id], header.pop_time, header.invisible_time, header.revive_qid, NOT_RETRY,
        "broker-a", message.queue_id, message.queue_offset,
    )  # fmt: skip


async def ack(unit: BrokerUnit, item: PopReceipt, topic: str = "T", group: str = "g") -> RemotingCommand:
    """Acknowledge a message, and return the answer."""
    header = AckMessageHeader(
        consumer_group=group,
        topic=item.real_topic(topic, group),
        queue_id=item.queue_id,
        extra_info=encode_pop_receipt(item),
        offset=item.queue_offset,
    )
    return await unit.ask(RequestCode.ACK_MESSAGE, header)


async def acked(unit: BrokerUnit, items: Sequence[Popped], topic: str = "T", group: str = "g") -> None:
    """Acknowledge messages; every one must be taken."""
    for item in items:
        answer = await ack(unit, item.receipt, topic, group)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def change(
    unit: BrokerUnit, item: PopReceipt, invisible_ms: int, topic: str = "T", group: str = "g"
) -> RemotingCommand:
    """Change the invisible time of a message, and return the answer."""
    header = ChangeInvisibleTimeHeader(
        consumer_group=group,
        topic=item.real_topic(topic, group),
        queue_id=item.queue_id,
        extra_info=encode_pop_receipt(item),
        offset=item.queue_offset,
        invisible_time=invisible_ms,
    )
    return await unit.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)


async def make_group(unit: BrokerUnit, group: str = "g", **config: Any) -> None:
    """Create a group."""
    body = encode_subscription_group(SubscriptionGroup(group, **config))
    answer = await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def bodies(items: Sequence[Popped]) -> list[str]:
    """Return the bodies of messages as texts."""
    return [item.message.body.decode() for item in items]
