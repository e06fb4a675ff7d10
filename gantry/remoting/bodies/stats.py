"""Statistics: the bodies of the responses to 202, 208 and 315.

The docstrings begin with the request code: 202 GET_TOPIC_STATS_INFO, 208 GET_CONSUME_STATS, 315 VIEW_BROKER_STATS_DATA.

Maps with a MessageQueue as key are read and written in different shapes (fastjson.py), so such a body has a _Read… and
a _Written… class.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import msgspec

from gantry.model.message import MessageQueue
from gantry.remoting.bodies.fastjson import (
    JsonBody,
    MessageQueueBean,
    decode_json,
    encode_json,
    queue_keys,
    queue_table,
)


class OffsetWrapper(JsonBody, kw_only=True):
    """The offsets of a group in one queue.

    Attributes:
        broker_offset: The queue's max offset.
        consumer_offset: The group's committed offset. `broker_offset` minus it is the lag.
        last_timestamp: Store time (wall ms) of the last consumed message; 0 if it is not known.
        pull_offset: The offset up to which the group has pulled; at least `consumer_offset`.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


class _ReadConsumeStats(JsonBody, kw_only=True):
    consume_tps: float = 0.0
    offset_table: list[tuple[MessageQueueBean, OffsetWrapper]] | dict[str, OffsetWrapper] = msgspec.field(
        default_factory=dict
    )


class _WrittenConsumeStats(JsonBody, kw_only=True):
    consume_tps: float
    offset_table: msgspec.Raw


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """208: the offsets of a group in all its queues; consume_tps: messages that it gets per second."""

    offset_table: Mapping[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(
            _WrittenConsumeStats(
                consume_tps=float(self.consume_tps), offset_table=queue_keys(self.offset_table.items())
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not the statistics of a group.
        """
        bean = decode_json(_ReadConsumeStats, data)
        return cls(offset_table=queue_table(bean.offset_table), consume_tps=bean.consume_tps)


class TopicOffset(JsonBody, kw_only=True):
    """The offsets of one queue.

    Attributes:
        last_update_timestamp: Store time (wall ms) of the last message; 0 if the queue is empty.
        max_offset: The offset after the last message.
        min_offset: The offset of the first readable message.
    """

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class _ReadTopicStats(JsonBody, kw_only=True):
    offset_table: list[tuple[MessageQueueBean, TopicOffset]] | dict[str, TopicOffset] = msgspec.field(
        default_factory=dict
    )
    topic_put_tps: float = 0.0


class _WrittenTopicStats(JsonBody, kw_only=True):
    offset_table: msgspec.Raw
    topic_put_tps: float


@dataclass(frozen=True, slots=True)
class TopicStatsTable:
    """202: the offsets of a topic's queues; topic_put_tps: messages that the topic gets per second."""

    offset_table: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(
            _WrittenTopicStats(
                offset_table=queue_keys(self.offset_table.items()), topic_put_tps=float(self.topic_put_tps)
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not the statistics of a topic.
        """
        bean = decode_json(_ReadTopicStats, data)
        return cls(offset_table=queue_table(bean.offset_table), topic_put_tps=bean.topic_put_tps)


class BrokerStatsItem(JsonBody, kw_only=True):
    """One counter over one period.

    Attributes:
        avgpt: The average amount that one call added ("average per time").
        sum: The amount added in the period.
        tps: The amount per second.
    """

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStatsData(JsonBody, kw_only=True):
    """315: one counter over the last minute, the last hour and the last day."""

    stats_day: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_minute: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
