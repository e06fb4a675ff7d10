"""What a round of samples asks for, and what is put together of the answers: the decisions, pure.

The first message that a group has not consumed stays the first until the group commits beyond it, or retention does.
So what was found is kept, and only what has moved is asked for again: a group that stands still costs nothing.

| known of the queue | the group now stands | then |
|---|---|---|
| nothing, too old, or of another filter | anywhere behind the end | search from there |
| a message | before it or at it | nothing: it still is the first |
| a message | beyond it | search from there |
| that it could not be found | where it stood | nothing for a while |
| that nothing passed up to some offset | not before where that search began | search on from that offset |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gantry.client.backlog import Head
from gantry.model.errors import InvalidExpressionError
from gantry.model.group import TAG_EXPRESSION, parse_tag_expression

HEAD_KEPT_MS: Final = 300_000
"""What was found is asked for again after this long, whatever happened: a topic may have been deleted and made anew."""

# As the wire takes them; a filter of more tags is not searched for.
_CODES_MAX: Final = 1_024
JUMP_MESSAGES_MIN: Final = 1_000
"""A commit that goes forward by so much at once may have been set; reports ask whether somebody was connected (jump_messages_min)."""
_EVERYWHERE: Final = 2**63 - 1

Codes = tuple[int, ...] | None
Pair = tuple[str | None, str, str]
"""Group, topic and broker; without a group it is the topic's own, where no group is sampled."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The tags a group asks for: their codes, None for everything; `is_known` False where nobody can say by codes."""

    codes: Codes = None
    is_known: bool = True


EVERYTHING: Final = Filter()
UNSEARCHABLE: Final = Filter(is_known=False)


@dataclass(frozen=True, slots=True)
class Extent:
    """What a queue holds: from `min_offset` up to, but without, `max_offset`."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class KnownHead:
    """What a search found.

    Attributes:
        begun_at: The offset it began at.
        reached: The message's offset; where it found none, how far it looked; where it failed, up to where that counts.
        is_found: Whether it found a message.
        stored_at_ms: When that was stored; None where there is none or it can't be read.
        is_given_up: It failed, and is not tried again before HEAD_KEPT_MS are over or the group is beyond `reached`.
        codes: Of the filter it was made with.
        at_ms: When, in monotonic ms.
    """

    begun_at: int
    reached: int
    is_found: bool
    stored_at_ms: int | None
    is_given_up: bool
    codes: Codes
    at_ms: int


@dataclass(slots=True)
class PairState:
    """What is kept of one group, topic and broker from round to round.

    Attributes:
        heads: Queue id → what is known of the first unconsumed message.
        committed: Queue id → committed offset; None before the first look.
        is_served: As in a sample.
    """

    heads: dict[int, KnownHead] = field(default_factory=dict)
    committed: Mapping[int, int] | None = None
    is_served: bool | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen of one group, topic and broker; the tuples stand in the order of `queue_ids`.

    `group` is None for the topic itself: then nothing is committed, and no message is the first. `is_served` says whether somebody
    was connected for the group and topic when its commits were last seen to move; None where that is not known.
    """

    group: str | None
    topic: str
    broker: str
    queue_ids: tuple[int, ...]
    min_offsets: tuple[int, ...]
    max_offsets: tuple[int, ...]
    committed_offsets: tuple[int | None, ...]
    first_stored_at_ms: tuple[int | None, ...]
    is_served: bool | None = None


def filter_of(expression_type: str, expression: str) -> Filter:
    """Return how a subscription's filter is searched for."""
    if expression_type not in (TAG_EXPRESSION, ""):
        return UNSEARCHABLE
    try:
        parsed = parse_tag_expression("", expression)
    except InvalidExpressionError:
        return UNSEARCHABLE
    if parsed.is_all:
        return EVERYTHING
    return Filter(tuple(sorted(parsed.code_set))) if len(parsed.code_set) <= _CODES_MAX else UNSEARCHABLE


def find_search(known: KnownHead | None, committed: int, extent: Extent, codes: Codes, now_ms: int) -> int | None:
    """Return the offset from which to search for the first unconsumed message, None where there is nothing to ask."""
    start = max(committed, extent.min_offset)
    if start >= extent.max_offset:
        return None
    if known is None or known.codes != codes or now_ms - known.at_ms >= HEAD_KEPT_MS:
        return start
    if known.is_given_up:
        return None if start <= known.reached else start
    if start < known.begun_at or known.reached > extent.max_offset:
        return start  # The group was rewound, or the topic was made anew.
    if known.is_found:
        return None if start <= known.reached < extent.max_offset else start
    return max(start, known.reached) if known.reached < extent.max_offset else None


def learned(head: Head | None, begun_at: int, codes: Codes, now_ms: int) -> KnownHead:
    """Return what a search that began at an offset has found; None for one that did not end."""
    if head is None:
        # Wherever the group is next, it would take as long again.
        return KnownHead(begun_at, _EVERYWHERE, False, None, True, codes, now_ms)
    if head.error is not None or head.max_offset is None:
        return KnownHead(begun_at, begun_at, False, None, True, codes, now_ms)
    if head.queue_offset is None:
        return KnownHead(begun_at, max(begun_at, head.max_offset), False, None, False, codes, now_ms)
    return KnownHead(begun_at, head.queue_offset, True, head.stored_at_ms, False, codes, now_ms)


def first_stored_at(known: KnownHead | None, committed: int | None, extent: Extent) -> int | None:
    """Return when the first unconsumed message was stored; None where there is none, or it is not known."""
    if known is None or committed is None or not known.is_found:
        return None
    return known.stored_at_ms if max(committed, extent.min_offset) <= known.reached < extent.max_offset else None


def note_commits(state: PairState, committed: Mapping[int, int]) -> bool:
    """Note what a pair has committed; say whether commits went so far that it has to be found out who is connected.

    Args:
        state: Of the pair. Who is connected is not known any more where commits moved.
        committed: Queue id → committed offset.
    """
    before, state.committed = state.committed, committed
    if before == committed:
        return False
    state.is_served = None
    return before is not None and any(
        offset - before.get(queue, offset) >= JUMP_MESSAGES_MIN for queue, offset in committed.items()
    )


def sample_of(
    pair: Pair,
    extents: Mapping[int, Extent],
    committed: Mapping[int, int],
    heads: Mapping[int, KnownHead],
    *,
    is_served: bool | None = None,
) -> Sample:
    """Put together what was seen of one (group, topic, broker).

    Args:
        pair: Group or None, topic and broker.
        extents: Of the queues that could be looked at.
        committed: Queue id → committed offset; a queue without one was never committed.
        heads: Queue id → what is known of the first unconsumed message.
        is_served: Whether somebody was connected when commits were last seen to move.
    """
    queue_ids = sorted(extents)
    offsets = [committed.get(queue_id) for queue_id in queue_ids]
    return Sample(
        *pair,
        queue_ids=tuple(queue_ids),
        min_offsets=tuple(extents[queue_id].min_offset for queue_id in queue_ids),
        max_offsets=tuple(extents[queue_id].max_offset for queue_id in queue_ids),
        committed_offsets=tuple(offsets),
        first_stored_at_ms=tuple(
            first_stored_at(heads.get(queue_id), offset, extents[queue_id])
            for queue_id, offset in zip(queue_ids, offsets, strict=True)
        ),
        is_served=is_served,
    )
