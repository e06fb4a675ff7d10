"""The questions of a sampling round, and the samples built from the answers: the decisions, pure.

The first unconsumed message of a group stays the same until the group commits beyond it or retention deletes it. So a
search result is kept, and only what has moved is searched again: a group that stands still costs nothing.

| known result for the queue | committed offset now | action |
|---|---|---|
| none, too old, or for another filter | anywhere before the end | search from the committed offset |
| a message | before the message or at it | none: it is still the first |
| a message | beyond it | search from the committed offset |
| search failed | where it was | none until the result expires |
| no matching message up to an offset | not before the start of that search | continue the search at that offset |

A search for an SQL filter reads records. So it may take several rounds, each of which continues it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gantry.client.backlog import SQL_BYTES_MAX, FirstUnconsumed
from gantry.model.errors import InvalidExpressionError
from gantry.model.group import SQL92_EXPRESSION, TAG_EXPRESSION, parse_tag_expression

HEAD_KEPT_MS: Final = 300_000
"""Age at which a result is searched again in any case: the topic may have been deleted and created again."""
SQL_KEPT_MS: Final = 3_600_000
"""The same for SQL filters, because a search of millions of messages takes many rounds."""

# The limit of the wire format; a filter with more tags is not searched for.
_CODES_MAX: Final = 1_024
JUMP_MESSAGES_MIN: Final = 1_000
"""Messages that a commit advances by at once, from which it may be an offset reset.

Reports then check whether a client was connected (jump_messages_min).
"""
_EVERYWHERE: Final = 2**63 - 1

Pair = tuple[str | None, str, str]
"""Group, topic and broker; the group is None for a topic without sampled groups."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A group's filter: all messages, or those with some tags codes, or those that an SQL92 expression accepts.

    `is_known` is False if the broker can't be asked for its first message.
    """

    codes: tuple[int, ...] | None = None
    sql: str | None = None
    is_known: bool = True

    @property
    def kept_ms(self) -> int:
        """Age at which the result of a search is searched again."""
        return HEAD_KEPT_MS if self.sql is None else SQL_KEPT_MS


EVERYTHING: Final = Filter()
UNSEARCHABLE: Final = Filter(is_known=False)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The range of a queue: from `min_offset` up to, but without, `max_offset`."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class HeadSearchResult:
    """The result of a search for the first unconsumed message.

    Attributes:
        begun_at: Offset from which on the messages are searched.
        reached: Offset of the message; without a message, the offset up to which the search has come; after a failure,
            the last offset that the failure covers.
        is_found: Whether the search found a message.
        stored_at_ms: Store time of the message; None if there is none or it cannot be read.
        is_given_up: Whether the search failed; it is repeated after the filter's `kept_ms`, or once the group is beyond
            `reached`.
        filter: The filter.
        at_ms: Monotonic time of the search, in ms.
    """

    begun_at: int
    reached: int
    is_found: bool
    stored_at_ms: int | None
    is_given_up: bool
    filter: Filter
    at_ms: int


@dataclass(slots=True)
class PairState:
    """The state of one group, topic and broker that is kept between rounds.

    Attributes:
        heads: Queue id → last search result for the first unconsumed message.
        committed: Queue id → committed offset; None before the first survey.
        is_served: As in Sample.
    """

    heads: dict[int, HeadSearchResult] = field(default_factory=dict)
    committed: Mapping[int, int] | None = None
    is_served: bool | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The sample of one group, topic and broker; the tuples are in the order of `queue_ids`.

    `group` is None for a sample of the topic itself, which has no commits and no first unconsumed message. `is_served`
    is whether a client was connected for the group and topic when its commits last moved; None if unknown.
    `is_age_known` is whether the first unconsumed messages of all queues are known, or known not to exist.
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
    is_age_known: bool = False


def filter_of(expression_type: str, expression: str) -> Filter:
    """Return the filter to search with for a subscription's expression."""
    if expression_type == SQL92_EXPRESSION:
        return Filter(sql=expression) if len(expression.encode()) <= SQL_BYTES_MAX else UNSEARCHABLE
    if expression_type not in (TAG_EXPRESSION, ""):
        return UNSEARCHABLE
    try:
        parsed = parse_tag_expression("", expression)
    except InvalidExpressionError:
        return UNSEARCHABLE
    if parsed.is_all:
        return EVERYTHING
    return Filter(tuple(sorted(parsed.code_set))) if len(parsed.code_set) <= _CODES_MAX else UNSEARCHABLE


def find_search(
    known: HeadSearchResult | None, committed: int, extent: OffsetRange, wanted: Filter, now_ms: int
) -> int | None:
    """Return the offset to search from for the first unconsumed message, or None if no search is needed."""
    start = max(committed, extent.min_offset)
    if start >= extent.max_offset:
        return None
    if known is None or known.filter != wanted or now_ms - known.at_ms >= wanted.kept_ms:
        return start
    if known.is_given_up:
        return None if start <= known.reached else start
    if start < known.begun_at or known.reached > extent.max_offset:
        return start  # The group was rewound, or the topic was created again.
    if known.is_found:
        return None if start <= known.reached < extent.max_offset else start
    return max(start, known.reached) if known.reached < extent.max_offset else None


def search_result(head: FirstUnconsumed | None, begun_at: int, wanted: Filter, now_ms: int) -> HeadSearchResult:
    """Return the result of a search that began at an offset; `head` is None if the broker did not answer."""
    if head is None:
        # A search from any later offset would take as long again.
        return HeadSearchResult(begun_at, _EVERYWHERE, False, None, True, wanted, now_ms)
    if head.error is not None or head.max_offset is None:
        return HeadSearchResult(begun_at, begun_at, False, None, True, wanted, now_ms)
    if head.queue_offset is None:
        reached = head.max_offset if head.scanned_to is None else head.scanned_to
        return HeadSearchResult(begun_at, max(begun_at, reached), False, None, False, wanted, now_ms)
    return HeadSearchResult(begun_at, head.queue_offset, True, head.stored_at_ms, False, wanted, now_ms)


def is_unfinished(head: FirstUnconsumed) -> bool:
    """Return whether a search can be continued at `scanned_to`."""
    if head.error is not None or head.queue_offset is not None or head.scanned_to is None or head.max_offset is None:
        return False
    return head.scanned_to < head.max_offset


def first_stored_at(known: HeadSearchResult | None, committed: int | None, extent: OffsetRange) -> int | None:
    """Return the store time of the first unconsumed message; None if there is none or it is unknown."""
    if known is None or committed is None or not known.is_found:
        return None
    start = max(committed, extent.min_offset)
    return known.stored_at_ms if known.begun_at <= start <= known.reached < extent.max_offset else None


def is_first_known(known: HeadSearchResult | None, committed: int | None, extent: OffsetRange) -> bool:
    """Return whether the store time of the first unconsumed message is known, or that there is no such message."""
    if extent.min_offset == extent.max_offset:
        return committed is None or committed <= extent.max_offset
    if committed is None or committed > extent.max_offset:
        return False
    start = max(committed, extent.min_offset)
    if start >= extent.max_offset or first_stored_at(known, committed, extent) is not None:
        return True
    if known is None or known.is_given_up or known.is_found:
        return False
    return known.begun_at <= start and known.reached == extent.max_offset


def record_commits(state: PairState, committed: Mapping[int, int]) -> bool:
    """Record a pair's commits; return whether they moved so far that the connected clients must be looked up.

    Args:
        state: State of the pair. Its `is_served` is reset to None if the commits moved.
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
    extents: Mapping[int, OffsetRange],
    committed: Mapping[int, int],
    heads: Mapping[int, HeadSearchResult],
    *,
    is_served: bool | None = None,
) -> Sample:
    """Build the sample of one (group, topic, broker).

    Args:
        pair: Group or None, topic and broker.
        extents: Queue id → range, for the queues that could be read.
        committed: Queue id → committed offset; queues without a commit are missing.
        heads: Queue id → last search result for the first unconsumed message.
        is_served: Whether a client was connected when the commits last moved.
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
        is_age_known=pair[0] is not None
        and all(
            is_first_known(heads.get(queue_id), offset, extents[queue_id])
            for queue_id, offset in zip(queue_ids, offsets, strict=True)
        ),
    )
