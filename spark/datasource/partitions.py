"""The data that a task reads: regions of queues with fixed ends, or rows that were read while planning.

Spark may run a task again, and the task must then return the same rows. So planning fixes a region `[start, end)` for
data that tasks read. Data that belongs to one moment (offsets, groups) is read while planning, and its rows travel
inside the task.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from pyspark.sql.datasource import InputPartition

SMALL_ROWS: Final = 20_000
"""Regions with fewer rows share a task: to start a task costs as much as to read about this many units."""
REGIONS_MAX: Final = 2_048
"""The limit for the regions of one task."""

PHYSICAL_END_MAX: Final = 2**63 - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """Queue offsets `[start, end)` of one queue. `group` is the group that has this backlog; empty if there is none.

    Sorting puts the regions of one queue next to each other, whichever groups they belong to.
    """

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    group: str = ""
    physical_end: int = PHYSICAL_END_MAX
    """Records at or after this CommitLog offset belong to another queue, which was made again under the same name."""

    @property
    def rows(self) -> int:
        """The number of queue offsets."""
        return self.end - self.start


@dataclass(frozen=True, repr=False)
class RegionsPartition(InputPartition):
    """The regions that one task reads, in this order; all are of one broker."""

    regions: tuple[Region, ...]


@dataclass(frozen=True, repr=False)
class RowsPartition(InputPartition):
    """Rows that were read while planning, packed by `batches.pack_rows`."""

    data: bytes


def split(regions: Iterable[Region], rows_max: int) -> Iterator[Region]:
    """Yield the regions without the empty ones. Split regions with more than `rows_max` rows into equal parts."""
    for region in regions:
        if region.rows <= 0:
            continue
        parts = -(-region.rows // rows_max)
        for part in range(parts):
            start = region.start + region.rows * part // parts
            end = region.start + region.rows * (part + 1) // parts
            yield replace(region, start=start, end=end)


def pack(regions: Iterable[Region], *, small_rows: int = SMALL_ROWS) -> list[RegionsPartition]:
    """Put small regions of one broker into one task, so that a large cluster does not need a task for each queue."""
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
