"""The blocks that are written from surveys of one broker (gantry/model/sampleblock.py): the decisions, pure.

| since the last | a survey is written as |
|---|---|
| full block: FULL_EVERY_MS, or there is none | full: all pairs, with names |
| block of all pairs: STATE_EVERY_MS | state: all pairs, as differences to the full block |
| block: something changed | changes: the pairs that changed |
| block: nothing changed | nothing |

So each pair is in a block at least every five minutes, which is how far readers look back for a pair that does not
change, and an idle broker costs a few bytes. A pair that appears between two full blocks, or whose queues change, is
written with its name and absolute numbers until the next full block.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from typing import Final, TypeAlias

from gantry.model.sampleblock import (
    AGE_NONE,
    SERVED,
    Block,
    Kind,
    Pair,
    Section,
    Words,
    age_code,
    behind_code,
    empty_section,
    encode_block,
    words,
    zigzag,
)
from services.gateway.usecases.sampling.rounds import Sample

FULL_EVERY_MS: Final = 3_600_000
STATE_EVERY_MS: Final = 240_000
"""With the longest interval and a slow round, this stays within the five minutes that readers look back."""

_NO_MESSAGE: Final = -1
_UNKNOWN_MESSAGE: Final = -2

Figures: TypeAlias = "array[int]"
"""Figures of a pair.

Queue ids, max offsets, min offsets and behind codes, all of one length; then the store time of the oldest message in
wall ms (or _NO_MESSAGE or _UNKNOWN_MESSAGE), and the index of `is_served` in SERVED.
"""
_GONE: Final[Figures] = array("q", [_UNKNOWN_MESSAGE, 0])
"""The figures of a pair that ceased to exist: it has no queues."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A block to write.

    Attributes:
        kind: CHANGES, STATE or FULL.
        at_ms: Wall time of the block, in ms.
        based_at_ms: Wall time of its base block, in ms; None for a full block.
        queues: Number of queue rows that readers make of it.
        data: Encoded block.
        figures: Figures of all pairs at this time.
    """

    kind: Kind
    at_ms: int
    based_at_ms: int | None
    queues: int
    data: bytes
    figures: Mapping[Pair, Figures]


class BlockWriter:
    """Decides which blocks are written for one broker.

    `plan` returns the block for a survey and changes nothing; `keep` records that it was written. Without `keep`, the
    next plan is made as if the survey had not happened.

    Concurrency: one call at a time, on any thread.
    """

    def __init__(self) -> None:
        self._base_at_ms = 0
        self._base: dict[Pair, tuple[int, Figures]] = {}
        self._last: Mapping[Pair, Figures] = {}
        self._full_ms: int | None = None
        self._state_ms = 0

    def is_whole_due(self, now_ms: int) -> bool:
        """Return whether the next block contains all pairs."""
        return (
            self._full_ms is None
            or max(now_ms - self._full_ms - FULL_EVERY_MS, now_ms - self._state_ms - STATE_EVERY_MS) >= 0
        )

    def plan(self, samples: Sequence[Sample], *, at_ms: int, now_ms: int) -> Plan | None:
        """Return the block to write for a survey, or None if nothing changed.

        Args:
            samples: All samples of the broker.
            at_ms: Wall time of the numbers, in ms; later than the previous survey's.
            now_ms: Monotonic time, in ms.

        Raises:
            OverflowError: A number does not fit 64 bits.
            SampleBlockError: There are too many pairs.
        """
        seen = {(sample.group, sample.topic): figures_of(sample) for sample in samples}
        # Unchanged figures share one array: of tens of thousands of pairs, few change.
        figures = {pair: last if (last := self._last.get(pair)) == new else new for pair, new in seen.items()}
        if self._full_ms is None or now_ms - self._full_ms >= FULL_EVERY_MS:
            return self._plan_of(Kind.FULL, at_ms, figures, _full(figures, at_ms))
        if now_ms - self._state_ms >= STATE_EVERY_MS:
            listed = {
                pair: new for pair, new in figures.items() if pair not in self._base or self._base[pair][1] != new
            }
            return self._plan_of(
                Kind.STATE, at_ms, figures, self._difference_block(listed, at_ms, self._removed(figures))
            )
        moved = {pair: new for pair, new in figures.items() if self._last.get(pair) is not new}
        ended = {pair: _GONE for pair in self._last if pair not in figures}
        if not moved and not ended:
            return None
        # A pair that the last blocks wrote with its name is gone by its name, too.
        named = {pair: gone for pair, gone in ended.items() if not self._has_same_queues(pair, self._last[pair])}
        removed = [
            self._base[pair][0]
            for pair, new in (moved | ended).items()
            if pair in self._base and not self._has_same_queues(pair, new)
        ]
        return self._plan_of(Kind.CHANGES, at_ms, figures, self._difference_block(moved | named, at_ms, removed), moved)

    def keep(self, plan: Plan, *, now_ms: int) -> None:
        """Record that the block of a plan was written."""
        self._last = plan.figures
        if plan.kind is Kind.CHANGES:
            return
        self._state_ms = now_ms
        if plan.kind is Kind.FULL:
            self._full_ms = now_ms
            self._base_at_ms = plan.at_ms
            self._base = {pair: (index, figures) for index, (pair, figures) in enumerate(plan.figures.items())}

    def _plan_of(
        self,
        kind: Kind,
        at_ms: int,
        figures: Mapping[Pair, Figures],
        block: Block,
        counted: Mapping[Pair, Figures] | None = None,
    ) -> Plan:
        queues = sum(len(one) // 4 for one in (figures if counted is None else counted).values())
        based_at_ms = None if kind is Kind.FULL else self._base_at_ms
        return Plan(kind, at_ms, based_at_ms, queues, encode_block(block), figures)

    def _difference_block(self, listed: Mapping[Pair, Figures], at_ms: int, gone: Sequence[int]) -> Block:
        """Return a block of some pairs, as differences to the base for pairs whose queues are the same there."""
        known = {pair: new for pair, new in listed.items() if self._has_same_queues(pair, new)}
        others = {pair: new for pair, new in listed.items() if pair not in known}
        pairs, whole = _whole(others, at_ms)
        bases, counts, ages, served = words(), words(), words(), words()
        columns: tuple[list[int], list[int], list[int]] = ([], [], [])
        for pair, new in known.items():
            index, base = self._base[pair]
            count = len(new) // 4
            bases.append(index)
            counts.append(count)
            ages.extend(_age(new, at_ms))
            served.append(new[-1])
            for number, column in enumerate(columns, start=1):
                part = slice(number * count, (number + 1) * count)
                column.extend(map(sub, new[part], base[part]))
        return Block(pairs, whole, bases, Section(counts, ages, tuple(map(zigzag, columns)), served), words(gone))

    def _has_same_queues(self, pair: Pair, new: Figures) -> bool:
        if pair not in self._base:
            return False
        base, count = self._base[pair][1], len(new) // 4
        return len(base) == len(new) and base[:count] == new[:count]

    def _removed(self, figures: Mapping[Pair, Figures]) -> list[int]:
        return [
            index
            for pair, (index, _) in self._base.items()
            if pair not in figures or not self._has_same_queues(pair, figures[pair])
        ]


def _full(figures: Mapping[Pair, Figures], at_ms: int) -> Block:
    pairs, whole = _whole(figures, at_ms)
    return Block(pairs, whole, words(), empty_section(is_whole=False), words())


def figures_of(sample: Sample) -> Figures:
    """Return the figures of a sample. Raises OverflowError."""
    figures = array("q", sample.queue_ids)
    figures.extend(sample.max_offsets)
    figures.extend(sample.min_offsets)
    figures.extend(map(behind_code, sample.max_offsets, sample.committed_offsets))
    stored = [at_ms for at_ms in sample.first_stored_at_ms if at_ms is not None]
    # If the first message of one queue is unknown, so is the oldest of all.
    figures.append(min(stored, default=_NO_MESSAGE) if sample.is_age_known else _UNKNOWN_MESSAGE)
    figures.append(SERVED.index(sample.is_served))
    return figures


def _whole(figures: Mapping[Pair, Figures], at_ms: int) -> tuple[list[Pair], Section]:
    counts, ages, served, ids = words(), words(), words(), words()
    columns: tuple[list[int], list[int], list[int]] = ([], [], [])
    for one in figures.values():
        count = len(one) // 4
        counts.append(count)
        ages.extend(_age(one, at_ms))
        served.append(one[-1])
        ids.extend(words(one[:count]))
        ends, begins = one[count : 2 * count], one[2 * count : 3 * count]
        for column, values in zip(columns, (ends, map(sub, ends, begins), one[3 * count : 4 * count]), strict=True):
            column.extend(values)
    return list(figures), Section(counts, ages, (ids, *map(zigzag, columns)), served)


def _age(figures: Figures, at_ms: int) -> Words:
    stored_at_ms = figures[-2]
    if stored_at_ms == _NO_MESSAGE:
        return zigzag([AGE_NONE])
    return zigzag([age_code(at_ms, None if stored_at_ms == _UNKNOWN_MESSAGE else stored_at_ms)])
