"""Movements of offsets between two looks that are no consumption."""

import numpy as np
import pytest

from spark.lagblocks import UNKNOWN
from spark.laghistory import QueueOffsets, were_moved


def offsets(at_s: float, *queues: tuple[int, int, int]) -> QueueOffsets:
    columns = [np.array(column, dtype=np.int64) for column in zip(*queues, strict=True)]
    return QueueOffsets(round(at_s * 1_000), np.arange(len(queues)), *columns)


STILL = (0, 5_000_000, 100)


@pytest.mark.parametrize(
    ("after", "is_moved"),
    [
        ((0, 5_000_000, 100), False),
        ((0, 5_000_500, 750_000), False),
        ((0, 5_000_000, 750_101), True),  # More messages than any group consumes in 15 s.
        ((0, 5_000_000, 69), False),  # A consumer that takes over a queue repeats a little.
        ((0, 5_000_000, 68), True),
        ((100, 5_000_000, 100), False),
        ((101, 5_000_000, 100), True),  # The messages were removed before they were consumed.
        ((0, 10, 5), True),
        ((0, 5_000_000, UNKNOWN), False),
    ],
)
def test_offsets_that_moved_without_messages_being_consumed(after: tuple[int, int, int], is_moved: bool) -> None:
    assert were_moved(offsets(0, STILL, STILL), offsets(15, STILL, after)) is is_moved
    assert were_moved(offsets(0, (0, 9, UNKNOWN), STILL), offsets(15, (5, 9, 9), after)) is is_moved


def test_a_pair_with_other_queues_has_moved() -> None:
    assert were_moved(offsets(0, STILL), offsets(15, STILL, STILL))
