"""One pair's lag out of sample blocks, without the numbers of all others being put together.

Pure. Readers of many pairs at once (spark/lagblocks.py) say the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from gantry.model.sampleblock import Block, Kind, Pair, SampleBlockError, Section


@dataclass(frozen=True, slots=True)
class PairQueues:
    """What a block says of the queues of a pair: words of the full block, signed, and when its oldest message was stored.

    Attributes:
        held: Messages in each queue.
        behind: `behind_code` of each: 0 where nothing was committed.
        first_ms: Store time of the oldest unconsumed message in ms; None where there is none, or it is not known.
    """

    held: Sequence[int]
    behind: Sequence[int]
    first_ms: int | None

    @property
    def lag(self) -> int | None:
        """Unconsumed messages of all queues; None where nothing was committed in a queue that holds some."""
        if any(code == 0 and held for code, held in zip(self.behind, self.held, strict=True)):
            return None
        return sum(min(max(0, code - 1), held) for code, held in zip(self.behind, self.held, strict=True))


def read_full(block: Block, pair: Pair, *, at_ms: int) -> PairQueues | None:
    """Return what a block says of a pair that it has with numbers as they are; None where it has not."""
    if pair not in block.pairs:
        return None
    index = block.pairs.index(pair)
    queues = _queues_of(block.whole, index)
    _, _, held, behind = (column[queues] for column in block.whole.columns)
    return PairQueues(
        [_signed(word) for word in held], [_signed(word) for word in behind], _stored(block.whole.ages[index], at_ms)
    )


def read_pair(block: Block, kind: Kind, pair: Pair, *, at_ms: int, base: Block, base_ms: int) -> PairQueues | None:
    """Return what a block of differences says of a pair; None where it says nothing, or that the pair is gone.

    Raises:
        SampleBlockError: It does not fit to its base.
    """
    whole = read_full(block, pair, at_ms=at_ms)
    if whole is not None:
        return whole
    before = read_full(base, pair, at_ms=base_ms)
    if before is None:
        return None
    place = base.pairs.index(pair)
    if place not in block.bases:
        return before if kind >= Kind.STATE and place not in block.gone else None
    index = block.bases.index(place)
    queues = _queues_of(block.changed, index)
    ends, begins, behind = ([_signed(word) for word in column[queues]] for column in block.changed.columns)
    if len(ends) != len(before.held):
        raise SampleBlockError("a pair has other queues than in its base")
    return PairQueues(
        [held + end - begin for held, end, begin in zip(before.held, ends, begins, strict=True)],
        [code + more for code, more in zip(before.behind, behind, strict=True)],
        _stored(block.changed.ages[index], at_ms),
    )


def _queues_of(section: Section, index: int) -> slice:
    start = sum(islice(section.counts, index))
    return slice(start, start + section.counts[index])


def _signed(word: int) -> int:
    return -(word >> 1) - 1 if word & 1 else word >> 1


def _stored(word: int, at_ms: int) -> int | None:
    """Return the store time that an age says."""
    code = _signed(word)
    if code == 0:
        return None
    return at_ms - (code - 1 if code > 0 else code)
