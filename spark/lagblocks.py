"""Sample blocks as columns of numpy: what gantry/model/sampleblock.py decodes, put together with their base.

Nothing here makes a Python object for a queue: a day of samples has millions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gantry.model.sampleblock import Block, Kind, Pair, SampleBlockError, Section, Words

Longs: TypeAlias = NDArray[np.int64]
UNKNOWN: Final = np.iinfo(np.int64).min
"""Stands for a commit that there is none of, and for a message that there is none of or that is not known."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a block says of its pairs, in absolute numbers.

    Attributes:
        at_ms: Its moment.
        pairs: Of the base first, at their places there; others behind.
        places: Place in `pairs` of each pair that is listed.
        counts: How many queues each listed pair has.
        first_ms: When its oldest unconsumed message was stored, or UNKNOWN.
        served: Whether somebody was connected when its commits were last seen to move: a place in SERVED.
        queue_ids, min_offsets, max_offsets: Of all queues, one listed pair's after the other.
        committed: Likewise, UNKNOWN where nothing was committed.
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

    def only(self, wanted: NDArray[np.bool_]) -> "Looked":
        """Return it with those listed pairs only for which `wanted` is true."""
        if wanted.all():
            return self
        queues = np.repeat(wanted, self.counts)
        return Looked(
            self.at_ms,
            self.pairs,
            *(column[wanted] for column in (self.places, self.counts, self.first_ms, self.served)),
            *(column[queues] for column in (self.queue_ids, self.min_offsets, self.max_offsets, self.committed)),
        )


def looked_of(block: Block, kind: Kind, *, at_ms: int, base: Looked | None = None) -> Looked:
    """Return what a block says.

    Args:
        block: As decoded.
        kind: From STATE on all pairs are listed, else those that are in the block.
        at_ms: The block's moment.
        base: What its full block says; None for a full block.

    Raises:
        SampleBlockError: It does not fit to its base.
    """
    whole = _whole(block.pairs, block.whole, at_ms)
    if base is None:
        if block.bases or block.gone:
            raise SampleBlockError("it has differences, and there is no base")
        return whole
    bases = _plain(block.bases)
    if max(bases, default=-1) >= len(base.pairs) or max(block.gone, default=-1) >= len(base.pairs):
        raise SampleBlockError(f"it has a pair that its base of {len(base.pairs)} has not")
    counts = _plain(block.changed.counts)
    if not np.array_equal(counts, base.counts[bases]):
        raise SampleBlockError("a pair has other queues than in its base")
    at = _queues_of(base.counts, bases)
    ends, begins, behind = (_signed(column) for column in block.changed.columns)
    max_offsets = base.max_offsets[at] + ends
    code = _behind(base.max_offsets[at], base.committed[at]) + behind
    changed = Looked(
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
    return _joined(at_ms, [changed, whole], base.pairs)


def _joined(at_ms: int, parts: Sequence[Looked], base: Sequence[Pair]) -> Looked:
    """Return several as one; of the last one the pairs stand behind those of the base."""
    *known, others = parts
    names: dict[str, Any] = {}
    for name in ("counts", "first_ms", "served", "queue_ids", "min_offsets", "max_offsets", "committed"):
        names[name] = np.concatenate([getattr(part, name) for part in parts])
    places = np.concatenate([*(part.places for part in known), others.places + len(base)])
    pairs = [*base, *others.pairs] if others.pairs else base
    return Looked(at_ms, pairs, places, **names)


def _whole(pairs: Sequence[Pair], section: Section, at_ms: int) -> Looked:
    ids, ends, held, behind = section.columns
    max_offsets = _signed(ends)
    return Looked(
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
    """Return where the queues of some pairs lie among all."""
    starts = np.cumsum(counts) - counts
    wanted = counts[places]
    before = np.cumsum(wanted) - wanted
    result: Longs = np.repeat(starts[places] - before, wanted) + np.arange(int(wanted.sum()), dtype=np.int64)
    return result


def _plain(column: Words) -> Longs:
    return np.frombuffer(column, dtype=np.uint64).astype(np.int64)


def _signed(column: Words) -> Longs:
    """Return numbers of zigzag words."""
    raw = np.frombuffer(column, dtype=np.uint64)
    result: Longs = (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64)
    return result


def _behind(max_offsets: Longs, committed: Longs) -> Longs:
    """Return `behind_code` of each queue."""
    lag = max_offsets - committed
    return np.where(committed == UNKNOWN, 0, np.where(lag >= 0, lag + 1, lag))


def _committed(max_offsets: Longs, code: Longs) -> Longs:
    """Return committed offsets of `behind_code`."""
    return np.where(code == 0, UNKNOWN, max_offsets - np.where(code > 0, code - 1, code))


def _first(ages: Words, at_ms: int) -> Longs:
    """Return store times of `age_code`."""
    code = _signed(ages)
    return np.where(code == 0, UNKNOWN, at_ms - np.where(code > 0, code - 1, code))
