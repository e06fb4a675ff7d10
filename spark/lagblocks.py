"""Sample blocks as numpy columns: combines a block that gantry/model/sampleblock.py has decoded with its base.

This module makes no Python object for a queue, because the samples of a day have millions of queues.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gantry.model.sampleblock import AGE_NONE, AGE_UNKNOWN, Block, Kind, Pair, SampleBlockError, Section, Words

Longs: TypeAlias = NDArray[np.int64]
UNKNOWN: Final = np.iinfo(np.int64).min
"""The value for a group without a commit, and for an unknown first message."""
NO_MESSAGE: Final = np.iinfo(np.int64).max
"""The store time of the first message of a group if no unconsumed message passes its filter."""


@dataclass(frozen=True, slots=True)
class BlockContent:
    """The content of a block, in absolute numbers.

    A block lists pairs of a group and a topic. The columns of queues hold the queues of one listed pair after the
    other.

    Attributes:
        at_ms: The time of the block.
        pairs: The pairs of the base at their places in the base; then other pairs.
        places: The place in `pairs` of each listed pair.
        counts: The number of queues of each listed pair; 0 if the pair is gone.
        first_ms: The store time of each listed pair's oldest unconsumed message, or UNKNOWN or NO_MESSAGE.
        served: Whether a client was connected when the pair's commits last moved: a place in SERVED for each listed
            pair.
        queue_ids, min_offsets, max_offsets: Columns of all queues.
        committed: Likewise; UNKNOWN if there is no commit.
    """

    at_ms: int
    pairs: Sequence[Pair]
    places: Longs
    counts: Longs
    first_ms: Longs
    served: Longs
    queue_ids: Longs
    min_offsets: Longs
    max_offsets: Longs
    committed: Longs

    def only(self, wanted: NDArray[np.bool_]) -> "BlockContent":
        """Return a copy that lists only the pairs for which `wanted` is true."""
        if wanted.all():
            return self
        queues = np.repeat(wanted, self.counts)
        return BlockContent(
            self.at_ms,
            self.pairs,
            *(column[wanted] for column in (self.places, self.counts, self.first_ms, self.served)),
            *(column[queues] for column in (self.queue_ids, self.min_offsets, self.max_offsets, self.committed)),
        )


def block_content(block: Block, kind: Kind, *, at_ms: int, base: BlockContent | None = None) -> BlockContent:
    """Return the content of a block.

    Args:
        block: The decoded block.
        kind: The kind of the block. A block of STATE or a higher kind lists all pairs; others list the pairs that
            changed, and those that are gone.
        at_ms: The time of the block.
        base: The content of the block's full block; None if the block is a full block.

    Raises:
        SampleBlockError: The block does not match its base.
    """
    whole = _whole(block.pairs, block.whole, at_ms)
    if base is None:
        if block.bases or block.gone:
            raise SampleBlockError("it has differences but no base")
        return whole
    bases = _plain(block.bases)
    if max(bases, default=-1) >= len(base.pairs) or max(block.gone, default=-1) >= len(base.pairs):
        raise SampleBlockError(f"it refers to a pair beyond the {len(base.pairs)} pairs of its base")
    counts = _plain(block.changed.counts)
    if not np.array_equal(counts, base.counts[bases]):
        raise SampleBlockError("the queues of a pair are not those of its base")
    at = _queues_of(base.counts, bases)
    ends, begins, behind = (_signed(column) for column in block.changed.columns)
    max_offsets = base.max_offsets[at] + ends
    code = _behind(base.max_offsets[at], base.committed[at]) + behind
    changed = BlockContent(
        at_ms,
        base.pairs,
        bases,
        counts,
        _first(block.changed.ages, at_ms),
        _plain(block.changed.served),
        base.queue_ids[at],
        base.min_offsets[at] + begins,
        max_offsets,
        _committed(max_offsets, code),
    )
    if kind >= Kind.STATE:
        still = np.ones(len(base.pairs), dtype=np.bool_)
        still[bases] = False
        still[_plain(block.gone)] = False
        return _joined(at_ms, [base.only(still), changed, whole], base.pairs)
    if block.gone:
        named = set(block.pairs)
        ended = [place for place in block.gone if base.pairs[place] not in named]
        return _joined(at_ms, [changed, _gone(ended, base, at_ms), whole], base.pairs)
    return _joined(at_ms, [changed, whole], base.pairs)


def _gone(places: Sequence[int], base: BlockContent, at_ms: int) -> BlockContent:
    zeros, none = np.zeros(len(places), dtype=np.int64), np.empty(0, dtype=np.int64)
    return BlockContent(
        at_ms,
        base.pairs,
        np.array(places, dtype=np.int64),
        zeros,
        np.full(len(places), UNKNOWN, dtype=np.int64),
        zeros,
        none,
        none,
        none,
        none,
    )


def _joined(at_ms: int, parts: Sequence[BlockContent], base: Sequence[Pair]) -> BlockContent:
    """Join several parts into one. The pairs of the last part come after the pairs of the base."""
    *known, others = parts
    names: dict[str, Any] = {}
    for name in ("counts", "first_ms", "served", "queue_ids", "min_offsets", "max_offsets", "committed"):
        names[name] = np.concatenate([getattr(part, name) for part in parts])
    places = np.concatenate([*(part.places for part in known), others.places + len(base)])
    pairs = [*base, *others.pairs] if others.pairs else base
    return BlockContent(at_ms, pairs, places, **names)


def _whole(pairs: Sequence[Pair], section: Section, at_ms: int) -> BlockContent:
    ids, ends, held, behind = section.columns
    max_offsets = _signed(ends)
    return BlockContent(
        at_ms,
        pairs,
        np.arange(len(pairs), dtype=np.int64),
        _plain(section.counts),
        _first(section.ages, at_ms),
        _plain(section.served),
        _plain(ids),
        max_offsets - _signed(held),
        max_offsets,
        _committed(max_offsets, _signed(behind)),
    )


def _queues_of(counts: Longs, places: Longs) -> Longs:
    """Return the indexes of the queues of some pairs in the columns of all queues."""
    starts = np.cumsum(counts) - counts
    wanted = counts[places]
    before = np.cumsum(wanted) - wanted
    result: Longs = np.repeat(starts[places] - before, wanted) + np.arange(int(wanted.sum()), dtype=np.int64)
    return result


def _plain(column: Words) -> Longs:
    return np.frombuffer(column, dtype=np.uint64).astype(np.int64)


def _signed(column: Words) -> Longs:
    """Decode zigzag words."""
    raw = np.frombuffer(column, dtype=np.uint64)
    result: Longs = (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64)
    return result


def _behind(max_offsets: Longs, committed: Longs) -> Longs:
    """Return the `behind_code` of each queue."""
    lag = max_offsets - committed
    return np.where(committed == UNKNOWN, 0, np.where(lag >= 0, lag + 1, lag))


def _committed(max_offsets: Longs, code: Longs) -> Longs:
    """Return the committed offsets that `behind_code` stands for."""
    return np.where(code == 0, UNKNOWN, max_offsets - np.where(code > 0, code - 1, code))


def _first(ages: Words, at_ms: int) -> Longs:
    """Return the store times that `age_code` stands for."""
    code = _signed(ages)
    stored_at = at_ms - np.where(code > 0, code - 2, code)
    return np.where(code == AGE_UNKNOWN, UNKNOWN, np.where(code == AGE_NONE, NO_MESSAGE, stored_at))
