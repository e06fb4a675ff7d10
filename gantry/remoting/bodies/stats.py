"""Statistics: the responses to 202, 208 and 315."""

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
    """The offsets of a group in one queue. last_timestamp: store time (ms) of the last consumed message; 0: unknown."""

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
    """208: the offsets of a group in all its queues."""

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
    """The offsets of one queue. last_update_timestamp: store time (ms) of the last message; 0 if the queue is empty."""

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
    """202: the queues of a topic."""

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
    """One counter over one period. avgpt: average per call."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStatsData(JsonBody, kw_only=True):
    """315: the values of a counter for the last minute, hour and day."""

    stats_day: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_minute: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
