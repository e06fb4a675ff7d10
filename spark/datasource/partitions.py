"""What a task reads: regions of queues with fixed ends, or rows that were read while planning.

A task may be run again, and must then give the same rows. So what is read later is a region `[start, end)` that was
fixed while planning, and what belongs to one moment (offsets, groups) is read while planning and travels as it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from pyspark.sql.datasource import InputPartition

SMALL_ROWS: Final = 20_000
"""Regions below this share a task: starting one costs as much as reading about so many units."""
REGIONS_MAX: Final = 2_048
"""Of one task."""

PHYSICAL_END_MAX: Final = 2**63 - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """Queue offsets `[start, end)` of one queue; `group` is whose backlog it is, empty where that means nothing.

    Sorted, those of one queue stand together, whoever's they are.
    """

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    group: str = ""
    physical_end: int = PHYSICAL_END_MAX
    """Records at this CommitLog offset or behind it are of another queue: one that was made anew under the name."""

    @property
    def rows(self) -> int:
        """How many queue offsets it has."""
        return self.end - self.start


@dataclass(frozen=True, repr=False)
class RegionsPartition(InputPartition):
    """Regions that one task reads, in their order; all of one broker."""

    regions: tuple[Region, ...]


@dataclass(frozen=True, repr=False)
class RowsPartition(InputPartition):
    """Rows that were read while planning (batches.pack_rows)."""

    data: bytes


def split(regions: Iterable[Region], rows_max: int) -> Iterator[Region]:
    """Yield the regions, those of more than `rows_max` rows in equal parts; empty ones are left out."""
    for region in regions:
        if region.rows <= 0:
            continue
        parts = -(-region.rows // rows_max)
        for part in range(parts):
            start = region.start + region.rows * part // parts
            end = region.start + region.rows * (part + 1) // parts
            yield replace(region, start=start, end=end)


def pack(regions: Iterable[Region], *, small_rows: int = SMALL_ROWS) -> list[RegionsPartition]:
    """Put small regions of a broker together, so that a large cluster does not mean a task for each queue."""
    partitions: list[RegionsPartition] = []
    gathered: dict[str, list[Region]] = {}
    rows: dict[str, int] = {}
    for region in regions:
        if region.rows >= small_rows:
            partitions.append(RegionsPartition((region,)))
            continue
        broker = region.broker
        small = gathered.setdefault(broker, [])
        if small and (rows[broker] + region.rows > small_rows or len(small) >= REGIONS_MAX):
            partitions.append(RegionsPartition(tuple(small)))
            small.clear()
        rows[broker] = (rows[broker] if small else 0) + region.rows
        small.append(region)
    partitions += [RegionsPartition(tuple(small)) for small in gathered.values() if small]
    return partitions


def plan_regions(regions: Iterable[Region], rows_max: int) -> list[RegionsPartition]:
    """Return the tasks that read the regions."""
    return pack(split(regions, rows_max), small_rows=min(SMALL_ROWS, rows_max))


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items, at most `size` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
