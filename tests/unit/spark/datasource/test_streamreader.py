"""Offsets of a stream: what a batch reads, pure of brokers."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, ReadMaxRows

from gantry.model.message import MessageQueue
from spark.datasource.options import read_options
from spark.datasource.partitions import Region
from spark.datasource.schema import MESSAGES
from spark.datasource.streamreader import (
    MessageStreamReader,
    _rows_max,
    decode_offset,
    encode_offset,
    fair_shares,
    next_ends,
    regions_between,
)
from spark.datasource.topicqueues import Ends, TopicQueues

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
OTHER = MessageQueue("T", "broker-b", 0)

SHARES = st.dictionaries(st.sampled_from([MessageQueue("T", "b", n) for n in range(9)]), st.integers(0, 50))


def found(held: Mapping[MessageQueue, tuple[int, int]], **more: object) -> TopicQueues:
    return TopicQueues(ends={queue: Ends(*ends) for queue, ends in held.items()}, **more)  # type: ignore[arg-type]


def test_an_offset_survives_the_checkpoint_as_the_same_text() -> None:
    offsets = {OTHER: 7, MessageQueue("T", "broker-a", 10): 1, B: 2, MessageQueue("A", "broker-a", 0): 2**53 + 1}
    text = json.dumps(encode_offset(offsets))
    assert decode_offset(json.loads(text)) == offsets
    # Spark compares offsets as texts, so that the order of discovery must not show.
    assert json.dumps(encode_offset(dict(reversed(offsets.items())))) == text


@pytest.mark.parametrize("offset", [{}, {"version": 2, "topics": {}}, {"version": 1}, {"version": 1, "topics": []}])
def test_an_offset_of_somebody_else_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="checkpoint"):
        decode_offset(offset)


@given(SHARES, st.integers(1, 200), st.integers(0, 30))
def test_a_limit_is_kept_used_up_and_split_fairly(available: dict[MessageQueue, int], rows_max: int, turn: int) -> None:
    shares = fair_shares(available, rows_max, turn=turn)
    assert shares.keys() == available.keys()
    assert sum(shares.values()) == min(rows_max, sum(available.values()))
    assert all(0 <= shares[queue] <= count for queue, count in available.items())
    least = min((shares[queue] for queue in available if shares[queue] < available[queue]), default=0)
    waiting = [queue for queue in available if shares[queue] < available[queue]]
    assert all(shares[queue] <= least + 1 for queue in available) or not waiting


def test_with_more_queues_than_messages_allowed_none_waits_for_ever() -> None:
    queues = {MessageQueue("T", "b", number): 1_000 for number in range(10)}
    served = {queue for turn in range(4) for queue, share in fair_shares(queues, 3, turn=turn).items() if share}
    assert served == queues.keys()


def test_what_is_there_is_read_up_to_the_limit() -> None:
    now = found({A: (0, 100), B: (0, 10), C: (0, 0)})
    assert next_ends({A: 90, B: 0, C: 0}, now, None, rows_max=None) == {A: 100, B: 10, C: 0}
    assert next_ends({A: 0, B: 0, C: 0}, now, None, rows_max=30) == {A: 20, B: 10, C: 0}
    assert next_ends({A: 100, B: 10, C: 0}, now, None, rows_max=30) == {A: 100, B: 10, C: 0}


def test_a_new_queue_is_read_from_its_beginning() -> None:
    now = found({A: (0, 5), OTHER: (30, 40)})
    ends = next_ends({A: 5}, now, None, rows_max=None)
    assert ends == {A: 5, OTHER: 40}
    assert regions_between({A: 5}, ends) == [Region("T", "broker-b", 0, 0, 40)]
    # One that is empty has a place from now on, so that nothing that comes is taken for old.
    assert next_ends({A: 5}, found({A: (0, 5), B: (0, 0)}), None, rows_max=None) == {A: 5, B: 0}


def test_what_was_removed_before_it_was_read_counts_for_nothing() -> None:
    now = found({A: (50, 100)})
    assert next_ends({A: 10}, now, None, rows_max=20) == {A: 70}
    # All of it is gone: the place moves on, and is not looked at again.
    assert next_ends({A: 10}, found({A: (100, 100)}), None, rows_max=20) == {A: 100}


def test_a_queue_that_ends_before_its_place_is_not_read_again() -> None:
    ends = next_ends({A: 100}, found({A: (0, 7)}), None, rows_max=None)
    assert ends == {A: 7}
    assert regions_between({A: 100}, ends) == []
    assert next_ends(ends, found({A: (0, 9)}), None, rows_max=None) == {A: 9}


def test_a_topic_that_is_gone_leaves_and_a_broker_that_is_away_keeps_its_place() -> None:
    gone = found({A: (0, 5)}, gone={("T", "broker-b")})
    assert next_ends({A: 5, OTHER: 9}, gone, None, rows_max=None) == {A: 5}
    away = found({A: (0, 6)}, unknown={("T", "broker-b"): "no answer"})
    assert next_ends({A: 5, OTHER: 9}, away, None, rows_max=None) == {A: 6, OTHER: 9}


def test_with_a_target_nothing_is_read_behind_it() -> None:
    target = {A: 10}
    now = found({A: (0, 50), B: (0, 50)})
    assert next_ends({A: 0}, now, target, rows_max=6) == {A: 6}
    assert next_ends({A: 6}, now, target, rows_max=6) == {A: 10}
    assert next_ends({A: 10}, now, target, rows_max=6) == {A: 10}
    # A checkpoint may be further than the brokers are just now: the query still ends.
    assert next_ends({A: 60}, now, target, rows_max=6) == {A: 60}


@given(SHARES, SHARES, st.integers(1, 40))
def test_a_query_with_a_target_reaches_it_and_ends(
    starts: dict[MessageQueue, int], ends: dict[MessageQueue, int], rows_max: int
) -> None:
    now = found({queue: (0, end) for queue, end in ends.items()})
    at, rows = dict(starts), 0
    for turn in range(sum(ends.values()) + 2):
        following = next_ends(at, now, dict(ends), rows_max=rows_max, turn=turn)
        batch = sum(region.rows for region in regions_between(at, following))
        assert batch <= rows_max
        rows += batch
        if following == at:
            break
        at = following
    else:
        pytest.fail("it never ends")
    assert rows == sum(max(0, end - starts.get(queue, 0)) for queue, end in ends.items())


def test_limits() -> None:
    def reader(**more: str) -> MessageStreamReader:
        return MessageStreamReader(read_options({"kind": "messages", "namesrv": "h:1", **more}), MESSAGES)

    assert reader().getDefaultReadLimit() == ReadAllAvailable()
    assert reader(maxMessagesPerTrigger="500").getDefaultReadLimit() == ReadMaxRows(500)
    assert (_rows_max(ReadAllAvailable()), _rows_max(ReadMaxRows(5))) == (None, 5)
    with pytest.raises(ValueError, match="limit"):
        _rows_max(ReadMaxFiles(3))


def test_a_batch_is_split_into_the_same_tasks_every_time() -> None:
    options = read_options({"kind": "messages", "namesrv": "h:1", "maxRowsPerPartition": "40"})
    reader = MessageStreamReader(options, MESSAGES)
    start, end = encode_offset({A: 5, B: 7}), encode_offset({A: 105, B: 7, OTHER: 3})
    planned = reader.partitions(start, end)
    regions = [region for task in planned for region in task.regions]  # type: ignore[attr-defined]
    assert sum(region.rows for region in regions) == 103
    assert max(region.rows for region in regions) <= 40
    again = reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    assert [task.regions for task in again] == [task.regions for task in planned]  # type: ignore[attr-defined]
    assert reader.partitions(end, end) == []
