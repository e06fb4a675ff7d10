"""Resets of offsets as values: the planned and the finished move of each queue, and the token of an undo. Pure.

The token names the queues and the epoch of each reset. The brokers keep the offsets from before it, and check that the
group has not moved since; so the token needs no signature.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from gantry.remoting.bodies import resets as bodies
from services.gateway.errors import CONFLICT, ProblemError
from services.gateway.schemas.times import format_time
from services.gateway.usecases.reading.messages import ReadMessage

PLANNED: Final = "planned"
RESET: Final = "reset"
NOT_RESET: Final = "not_reset"
UNKNOWN: Final = "unknown"

_SHOWN_CHARS_MAX: Final = 40
# An undo names at most this many reasons.
_REFUSALS_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class QueueMove:
    """The move of a group in one queue.

    Attributes:
        queue: The queue.
        outcome: `planned` in a dry run; `reset`, `not_reset`, or `unknown` if the broker has not answered.
        before: Committed offset before; None if there was none, or if it is unknown.
        after: Committed offset after; None if there is none any more, or without a reset.
        max_offset: End of the queue; None if it is unknown.
        note: Remark about the target for people.
        problem: Reason why the queue was not reset, or why it is not known.
        first: First message of those that will be consumed again, or are skipped; None if there is none, or if it was
            not read.
        last: Last message of them.
        epoch: Epoch of the reset.
    """

    queue: MessageQueue
    outcome: str
    before: int | None = None
    after: int | None = None
    max_offset: int | None = None
    note: str | None = None
    problem: ProblemError | None = None
    first: ReadMessage | None = None
    last: ReadMessage | None = None
    epoch: int | None = None

    @property
    def messages(self) -> int | None:
        """The number of offsets that the group goes back; negative if it goes forward, None if it is unknown."""
        return None if self.before is None or self.after is None else self.before - self.after

    def span(self) -> tuple[int, int]:
        """Return the offsets from the first to the last message that the move repeats or skips, end excluded."""
        if self.after is None or self.max_offset is None:
            return 0, 0
        if self.before is None:
            return self.after, self.max_offset
        return min(self.before, self.after), max(self.before, self.after)

    def failed(self, problem: ProblemError, *, is_certain: bool) -> "QueueMove":
        """Return the move for a broker that refused, or that did not answer."""
        return replace(self, outcome=NOT_RESET if is_certain else UNKNOWN, after=None, problem=problem)


@dataclass(frozen=True, slots=True)
class ResetReport:
    """The moves of all queues.

    Attributes:
        moves: The moves, by topic, broker and queue.
        undo: Token for the undo; None if nothing was reset.
        is_truncated: Whether messages were left out because there are too many, or because they are too large.
    """

    moves: Sequence[QueueMove]
    undo: str | None = None
    is_truncated: bool = False

    @property
    def messages(self) -> int | None:
        """The sum over all queues; None if it is unknown for one of them."""
        counts = [move.messages for move in self.moves]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


class _Token(msgspec.Struct, array_like=True):
    group: str
    queues: list[tuple[str, str, int, int]]


def undo_token(group: str, moves: Iterable[QueueMove]) -> str | None:
    """Return the token for the undo of the moves that were made; None if there are none."""
    queues = [
        (move.queue.topic, move.queue.broker_name, move.queue.queue_id, move.epoch)
        for move in moves
        if move.outcome == RESET and move.epoch is not None
    ]
    if not queues:
        return None
    return urlsafe_b64encode(msgspec.msgpack.encode(_Token(group, queues))).decode().rstrip("=")


def read_token(text: str, group: str) -> dict[MessageQueue, int]:
    """Return the epoch of each queue in a token. Raises InvalidValueError if it is no token of this group."""
    shown = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
    try:
        token = msgspec.msgpack.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
    except (ValueError, msgspec.DecodeError):
        raise InvalidValueError("/undo", shown, "is not a token of an offset reset") from None
    if token.group != group:
        raise InvalidValueError("/undo", shown, f"belongs to group {token.group!r}")
    found = {MessageQueue(topic, broker, number): epoch for topic, broker, number, epoch in token.queues}
    if not found:
        raise InvalidValueError("/undo", shown, "names no queue")
    return found


def refusal(queue: MessageQueue, result: bodies.ResetResult) -> str:
    """Return why a broker can't reset a queue or undo its reset."""
    at = f"queue {queue.broker_name}/{queue.queue_id} of topic {queue.topic}"
    committed = result.from_offset
    return {
        bodies.NO_QUEUE: f"{at} does not exist any more",
        bodies.OUT_OF_RANGE: f"the offset is outside {at}, which now has {result.min_offset} to {result.max_offset}",
        bodies.UNKNOWN_RESET: f"the broker no longer knows the reset of {at}; it can be undone for a day",
        bodies.SUPERSEDED: f"{at} was reset again since",
        bodies.CONSUMED: f"the group has committed offset {committed} in {at} since",
        bodies.HAS_MEMBERS: f"{at} had no committed offset before, and consumers of the group are connected",
    }.get(result.problem or "", f"{at}: {result.problem}")


def refused_move(move: QueueMove, reason: str) -> QueueMove:
    """Return the move of a queue that its broker did not reset, with the reason."""
    return move.failed(
        ProblemError(CONFLICT, f"{reason}; no queue of broker {move.queue.broker_name} was reset"), is_certain=True
    )


def named_refusals(moves: Sequence[QueueMove]) -> str:
    """Return the reasons why moves were refused. A broker gives all its queues one reason, which is named once."""
    reasons = dict.fromkeys(move.problem.detail for move in moves if move.problem is not None)
    return "; ".join(list(reasons)[:_REFUSALS_NAMED_MAX])


def time_note(
    at_ms: int, *, target: int, min_offset: int, max_offset: int, first_stored_at_ms: int | None
) -> str | None:
    """Return a remark for a time outside the messages of a queue; None for a time within them.

    Args:
        at_ms: The time.
        target: Offset of the first message stored then or later.
        min_offset: First readable offset.
        max_offset: End of the queue.
        first_stored_at_ms: Store time of the first readable message; None if there is none.
    """
    if max_offset == min_offset:
        return "the queue has no message"
    if target >= max_offset:
        return f"no message was stored at {format_time(at_ms)} or later"
    if target == min_offset and first_stored_at_ms is not None and at_ms < first_stored_at_ms:
        return f"the first message that the queue still has was stored at {format_time(first_stored_at_ms)}, after this time"
    return None
