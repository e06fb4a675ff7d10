"""Reads the lag of one pair from sample blocks, without decoding the numbers of the other pairs.

Pure functions. spark/lagblocks.py reads many pairs at once and returns the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from gantry.model.sampleblock import AGE_NONE, AGE_UNKNOWN, Block, Kind, Pair, SampleBlockError, Section, stored_at


@dataclass(frozen=True, slots=True)
class PairQueues:
    """The queues of a pair in a block, as signed numbers, and the store time of its oldest message.

    Attributes:
        held: Number of messages in each queue.
        behind: `behind_code` of each queue; 0 without a commit.
        first_ms: Store time of the oldest unconsumed message in ms; None if there is none, or if it is unknown.
        is_none_waiting: Whether no unconsumed message passes the group's filter.
    """

    held: Sequence[int]
    behind: Sequence[int]
    first_ms: int | None
    is_none_waiting: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether the pair ceased to exist."""
        return not self.held

    @property
    def lag(self) -> int | None:
        """Number of unconsumed messages in all queues; None if a queue with messages has no commit."""
        if any(code == 0 and held for code, held in zip(self.behind, self.held, strict=True)):
            return None
        return sum(min(max(0, code - 1), held) for code, held in zip(self.behind, self.held, strict=True))


def read_full(block: Block, pair: Pair, *, at_ms: int) -> PairQueues | None:
    """Return the queues of a pair that a block has with absolute numbers; None if it does not have it so."""
    if pair not in block.pairs:
        return None
    index = block.pairs.index(pair)
    queues = _queues_of(block.whole, index)
    _, _, held, behind = (column[queues] for column in block.whole.columns)
    return PairQueues(
        [_signed(word) for word in held], [_signed(word) for word in behind], *_stored(block.whole.ages[index], at_ms)
    )


def read_pair(block: Block, kind: Kind, pair: Pair, *, at_ms: int, base: Block, base_ms: int) -> PairQueues | None:
    """Return the queues of a pair from a block of differences; None if the block does not describe it.

    A block of changes describes a pair that is gone, as one without queues; a block of all pairs does not.

    Raises:
        SampleBlockError: The block does not match its base.
    """
    whole = read_full(block, pair, at_ms=at_ms)
    if whole is not None:
        return whole
    before = read_full(base, pair, at_ms=base_ms)
    if before is None:
        return None
    place = base.pairs.index(pair)
    if place not in block.bases:
        if kind < Kind.STATE:
            return PairQueues([], [], None) if place in block.gone else None
        return None if place in block.gone else before
    index = block.bases.index(place)
    queues = _queues_of(block.changed, index)
    ends, begins, behind = ([_signed(word) for word in column[queues]] for column in block.changed.columns)
    if len(ends) != len(before.held):
        raise SampleBlockError("a pair has other queues than in the base of its block")
    return PairQueues(
        [held + end - begin for held, end, begin in zip(before.held, ends, begins, strict=True)],
        [code + more for code, more in zip(before.behind, behind, strict=True)],
        *_stored(block.changed.ages[index], at_ms),
    )


def _queues_of(section: Section, index: int) -> slice:
    start = sum(islice(section.counts, index))
    return slice(start, start + section.counts[index])


def _signed(word: int) -> int:
    return -(word >> 1) - 1 if word & 1 else word >> 1


def _stored(word: int, at_ms: int) -> tuple[int | None, bool]:
    """Return the store time of a message with this zigzag age, if there is one, and whether it is known that none is."""
    code = _signed(word)
    is_time = code not in (AGE_UNKNOWN, AGE_NONE)
    return stored_at(code, at_ms) if is_time else None, code == AGE_NONE
