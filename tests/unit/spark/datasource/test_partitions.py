"""The regions of tasks: every offset once, no task too large, and not a task for each of many small queues."""

from hypothesis import given
from hypothesis import strategies as st

from spark.datasource.partitions import REGIONS_MAX, SMALL_ROWS, Region, chunks, pack, plan_regions, split


def region(rows: int, *, start: int = 0, queue_id: int = 0, broker: str = "a") -> Region:
    return Region("T", broker, queue_id, start, start + rows, "g")


def test_a_large_region_is_split_in_equal_parts():
    parts = list(split([region(10, start=100)], 4))
    assert [(part.start, part.end) for part in parts] == [(100, 103), (103, 106), (106, 110)]
    assert list(split([region(0), region(-3)], 4)) == []


def test_small_regions_of_a_broker_share_a_task():
    tasks = pack([region(10, queue_id=number, broker="ab"[number % 2]) for number in range(1_000)])
    assert [len(task.regions) for task in tasks] == [500, 500]
    assert all(len({one.broker for one in task.regions}) == 1 for task in tasks)


def test_tiny_regions_do_not_exceed_the_limit_of_a_task():
    tasks = pack([region(1, queue_id=number) for number in range(REGIONS_MAX + 1)])
    assert [len(task.regions) for task in tasks] == [REGIONS_MAX, 1]


def test_a_large_cluster_does_not_need_a_task_for_each_queue():
    tasks = plan_regions([region(10, queue_id=number) for number in range(32_000)], 250_000)
    assert len(tasks) <= 32_000 // 1_024
    assert len(plan_regions([region(31_250, queue_id=number) for number in range(64)], 250_000)) == 64


@given(
    st.lists(
        st.builds(region, st.integers(0, 3 * SMALL_ROWS), queue_id=st.integers(0, 3), broker=st.sampled_from("ab"))
    ),
    st.integers(1_000, 2 * SMALL_ROWS),
)
def test_every_offset_is_read_once(regions, rows_max):
    tasks = plan_regions(regions, rows_max)
    read = sorted((one.broker, one.queue_id, one.start, one.end) for task in tasks for one in task.regions)
    whole = sorted((one.broker, one.queue_id, one.start, one.end) for one in split(regions, rows_max))
    assert read == whole
    assert sum(end - start for _, _, start, end in read) == sum(one.rows for one in regions)
    assert all(sum(one.rows for one in task.regions) <= max(rows_max, SMALL_ROWS) for task in tasks)


def test_chunks_hold_all_items_in_their_order():
    assert list(chunks([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(chunks([], 2)) == []
