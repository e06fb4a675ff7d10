"""Heartbeats as clients send them."""

from typing import TYPE_CHECKING

from gantry.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData, parse_tag_expression
from gantry.remoting.bodies import ConsumerData, HeartbeatData
from gantry.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from tests.support.brokerunit import BrokerUnit


def consumer_beat(
    client_id: str,
    group: str,
    *topics: str,
    expression: str = "*",
    version: int = 1,
    message_model: str = "CLUSTERING",
    producer_groups: tuple[str, ...] = (),
    fingerprint: int = 0,
    without_sub: bool = False,
    subscriptions: tuple[SubscriptionData, ...] | None = None,
) -> bytes:
    """Return the body of a consumer's heartbeat."""
    consumer = ConsumerData(
        group,
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel(message_model),
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        subscriptions or tuple(parse_tag_expression(topic, expression, version) for topic in topics),
    )
    return HeartbeatData(
        client_id, producer_groups, (consumer,), heartbeat_fingerprint=fingerprint, without_sub=without_sub
    ).encode()


async def subscribe(
    unit: "BrokerUnit",
    group: str,
    *topics: str,
    expression: str = "*",
    version: int = 1,
    message_model: str = "CLUSTERING",
) -> None:
    """Send one heartbeat of client `1@2`."""
    body = consumer_beat("1@2", group, *topics, expression=expression, version=version, message_model=message_model)
    answer = await unit.ask(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
