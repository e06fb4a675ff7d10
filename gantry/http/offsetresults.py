"""Results of the calls that reset offsets of groups."""

from typing import Any

import msgspec

from gantry.http.errors import Problem


class OffsetMove(msgspec.Struct, frozen=True, kw_only=True):
    """The move of a group in one queue.

    Attributes:
        from_: Committed offset before; None if there was none.
        to: Committed offset after; None if there is none.
        messages: Number of offsets by which the group goes back; negative if it goes forward, None if it is unknown.
        first: First message that is consumed again or skipped, in its JSON form; None if there is none.
        last: Last message that is consumed again or skipped.
        note: Remark about the target.
        outcome: `planned`, `reset`, `not_reset` or `unknown`.
        problem: Reason why the queue was not reset.
    """

    topic: str
    broker: str
    queue_id: int
    from_: int | None = msgspec.field(name="from")
    to: int | None
    messages: int | None
    first: dict[str, Any] | None
    last: dict[str, Any] | None
    note: str | None
    outcome: str
    problem: Problem | None = None


class OffsetReset(msgspec.Struct, frozen=True, kw_only=True):
    """The moves of a reset. `undo` is the token for `undo_offset_reset`; None if nothing was reset.

    Attributes:
        items: The moves.
        messages: Sum of their messages; None if it is unknown for one of them.
        undo: Token for the undo.
        truncated: Whether some first and last messages were left out.
    """

    items: list[OffsetMove]
    messages: int | None
    undo: str | None
    truncated: bool
