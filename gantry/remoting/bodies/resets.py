"""Resets of committed offsets: the bodies of 220, 222, 303, 308, and Gantry's own, 900020 and 900022."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec

from gantry.model.message import MessageQueue
from gantry.remoting.bodies.fastjson import (
    JsonBody,
    MessageQueueBean,
    decode_json,
    encode_json,
    integer_keys,
    queue_keys,
    queue_table,
)


class _ReadResetOffsets(JsonBody, kw_only=True):
    offset_table: list[tuple[MessageQueueBean, int]] | dict[str, int] = msgspec.field(default_factory=dict)


class _WrittenResetOffsets(JsonBody, kw_only=True):
    offset_table: msgspec.Raw


class _CppOffset(JsonBody, kw_only=True):
    broker_name: str
    offset: int
    queue_id: int
    topic: str


class _CppResetOffsets(JsonBody, kw_only=True):
    offset_table: list[_CppOffset]


@dataclass(frozen=True, slots=True)
class ResetOffsets:
    """220 and the response to 222: the new committed offset of each queue."""

    offset_table: Mapping[MessageQueue, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(_WrittenResetOffsets(offset_table=queue_keys(self.offset_table.items())))

    def encode_for_cpp(self) -> bytes:
        """Return the encoded body in the form that C++ clients read: a list instead of a map with objects as keys."""
        return encode_json(
            _CppResetOffsets(
                offset_table=[
                    _CppOffset(broker_name=queue.broker_name, offset=offset, queue_id=queue.queue_id, topic=queue.topic)
                    for queue, offset in self.offset_table.items()
                ]
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not a table of offsets.
        """
        return cls(queue_table(decode_json(_ReadResetOffsets, data).offset_table))


class QueueTimeSpan(JsonBody, kw_only=True):
    """303: the store times (wall ms) of one queue; -1 if there is no such message, or if it can't be read.

    Attributes:
        consume_time_stamp: The last message that the group has consumed, or the first of the queue if there is none.
        delay_time: Time since the first unconsumed message was stored; 0 if there is none.
        max_time_stamp: The last message.
        min_time_stamp: The first message.
        message_queue: The queue.
    """

    consume_time_stamp: int
    delay_time: int
    max_time_stamp: int
    message_queue: MessageQueueBean
    min_time_stamp: int


class ConsumeTimeSpans(JsonBody, kw_only=True):
    """303: the store times of all queues of a topic."""

    consume_time_span_set: list[QueueTimeSpan]


class _ReadCorrectionOffsets(JsonBody, kw_only=True):
    correction_offsets: dict[int, int]


class _WrittenCorrectionOffsets(JsonBody, kw_only=True):
    correction_offsets: msgspec.Raw


@dataclass(frozen=True, slots=True)
class CorrectionOffsets:
    """308: queue id → smallest offset of all groups."""

    offsets: Mapping[int, int]

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(_WrittenCorrectionOffsets(correction_offsets=integer_keys(self.offsets)))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not a table of offsets.
        """
        return cls(decode_json(_ReadCorrectionOffsets, data).correction_offsets)


class ResetQueue(JsonBody, kw_only=True):
    """900020: one queue of the request.

    Attributes:
        offset: Offset to go to; None together with `undo_epoch`.
        queue_id: The queue.
        undo_epoch: Epoch of the reset that is to be undone; None for a reset.
    """

    offset: int | None = None
    queue_id: int
    undo_epoch: int | None = None


class ResetQueues(JsonBody, kw_only=True):
    """900020: the queues; with `dry_run`, nothing is changed."""

    dry_run: bool = False
    queues: list[ResetQueue]


NO_QUEUE: Final = "NO_QUEUE"
OUT_OF_RANGE: Final = "OUT_OF_RANGE"
UNKNOWN_RESET: Final = "UNKNOWN_RESET"
SUPERSEDED: Final = "SUPERSEDED"
CONSUMED: Final = "CONSUMED"
HAS_MEMBERS: Final = "HAS_MEMBERS"


class ResetResult(JsonBody, kw_only=True):
    """900020: one queue of the response.

    Attributes:
        from_offset: Committed offset before the reset; None if there was none.
        max_offset: End of the queue.
        min_offset: First readable offset.
        offset: Committed offset after the reset; None if it was removed, or with a problem.
        problem: Reason why the queue can't be reset; None if it can. NO_QUEUE: the topic has no such queue.
            OUT_OF_RANGE: the offset is not within the queue. UNKNOWN_RESET: the broker does not remember the reset
            that is to be undone. SUPERSEDED: the queue was reset again since. CONSUMED: the group has committed another
            offset since. HAS_MEMBERS: the undo would remove the offset, because there was none before, but the group is
            connected.
        queue_id: The queue.
    """

    from_offset: int | None = None
    max_offset: int
    min_offset: int
    offset: int | None = None
    problem: str | None = None
    queue_id: int


class ResetResults(JsonBody, kw_only=True):
    """900020: the queues, in the order of the request. If any has a problem, or with `dry_run`, none was reset.

    Attributes:
        epoch: Epoch of the reset; None if nothing was reset.
    """

    epoch: int | None = None
    queues: list[ResetResult]


class MovedQueue(JsonBody, kw_only=True):
    """900022: one queue of a reset. An offset is None if there was none, or if the reset removed it."""

    from_offset: int | None = None
    offset: int | None = None
    queue_id: int


class MadeReset(JsonBody, kw_only=True):
    """900022: a reset, with those of its queues that were not reset again since."""

    epoch: int
    group: str
    queues: list[MovedQueue]
    topic: str


class MadeResets(JsonBody, kw_only=True):
    """900022: the resets, by epoch. If `more` is true, there are later ones."""

    more: bool = False
    resets: list[MadeReset]
