"""Offsets of a stream: the messages that a batch reads and the losses that it reports, without brokers."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, ReadMaxRows

from gantry.model.message import MessageQueue
from spark.datasource.brokers.topicqueues import QueueBounds, TopicQueues
from spark.datasource.options import read_options
from spark.datasource.partitions import Region
from spark.datasource.schema import MESSAGES
from spark.datasource.stream.offsets import (
    MessageIdentity,
    StreamPosition,
    decode_offset,
    encode_offset,
    planned_regions,
    without_batch,
)
from spark.datasource.stream.plan import (
    DELETED,
    OLDER_COPY,
    REMADE,
    REMADE_OR_OLDER,
    REMOVED,
    SHRUNK,
    Evidence,
    Plan,
    Restart,
    explain,
    fair_shares,
    plan_batch,
)
from spark.datasource.stream.reader import MessageStreamReader, _rows_max

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
OTHER = MessageQueue("T", "broker-b", 0)

SHARES = st.dictionaries(st.sampled_from([MessageQueue("T", "b", n) for n in range(9)]), st.integers(0, 50))


def places(nexts: Mapping[MessageQueue, int]) -> dict[MessageQueue, StreamPosition]:
    return {queue: StreamPosition(at) for queue, at in nexts.items()}


def next_plan(
    starts: Mapping[MessageQueue, int],
    now: TopicQueues,
    target: Mapping[MessageQueue, int] | None = None,
    *,
    rows_max: int | None = None,
    turn: int = 0,
    evidence: Evidence | None = None,
) -> Plan:
    return plan_batch(places(starts), now, evidence or Evidence(), target, rows_max=rows_max, turn=turn)


def next_ends(
    starts: Mapping[MessageQueue, int],
    now: TopicQueues,
    target: Mapping[MessageQueue, int] | None = None,
    *,
    rows_max: int | None = None,
) -> dict[MessageQueue, int]:
    plan = next_plan(starts, now, target, rows_max=rows_max)
    assert plan.losses == []
    return {queue: at.next for queue, at in plan.ends.items()}


def read_by(plan: Plan) -> dict[MessageQueue, tuple[int, int]]:
    """Return the offsets that a batch reads of each queue."""
    regions = planned_regions({}, encode_offset(plan.ends))
    return {MessageQueue(each.topic, each.broker, each.queue_id): (each.start, each.end) for each in regions}


def found(held: Mapping[MessageQueue, tuple[int, int]], **more: object) -> TopicQueues:
    return TopicQueues(ends={queue: QueueBounds(*ends) for queue, ends in held.items()}, **more)  # type: ignore[arg-type]


def test_an_offset_has_the_same_text_after_the_checkpoint() -> None:
    offsets = {
        OTHER: StreamPosition(7, 3, MessageIdentity(621, 1_700_000_000_000)),
        MessageQueue("T", "broker-a", 10): StreamPosition(1, last=MessageIdentity(0)),
        B: StreamPosition(2, is_gone=True),
        C: StreamPosition(2, wanted_from=9),
        MessageQueue("A", "broker-a", 0): StreamPosition(2**53 + 1),
    }
    text = json.dumps(encode_offset(offsets))
    assert decode_offset(json.loads(text)) == offsets
    # Spark compares offsets as texts, so the text must not depend on the order of discovery.
    assert json.dumps(encode_offset(dict(reversed(offsets.items())))) == text
    assert without_batch(offsets)[OTHER] == StreamPosition(7, last=MessageIdentity(621, 1_700_000_000_000))


def test_an_offset_of_the_previous_release_is_read() -> None:
    start, end = ({"version": 1, "topics": {"T": {"broker-a": {"0": at}}}} for at in (4, 9))
    assert decode_offset(end) == {A: StreamPosition(9)}
    assert planned_regions(start, end) == [Region("T", "broker-a", 0, 4, 9)]
    # A first batch that the previous release planned and this release reads again.
    assert planned_regions(encode_offset(places({A: 5})), end) == [Region("T", "broker-a", 0, 5, 9)]


@pytest.mark.parametrize(
    "offset",
    [
        {},
        {"version": 3, "topics": {}},
        {"version": 2},
        {"version": 1, "topics": []},
        {"version": 2, "topics": {"T": []}},
        {"version": 2, "topics": {"T": {"b": {"x": {"next": 7}}}}},
        {"version": 1, "topics": {"T": {"b": {"0": "seven"}}}},
        {"version": 2, "topics": {"T": {"b": {"0": 7}}}},
        {"version": 2, "topics": {"T": {"b": {"0": {"next": 7, "last": [1]}}}}},
    ],
)
def test_an_offset_of_another_query_is_refused(offset: dict[str, object]) -> None:
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


def test_with_more_queues_than_allowed_messages_none_waits_for_ever() -> None:
    queues = {MessageQueue("T", "b", number): 1_000 for number in range(10)}
    served = {queue for turn in range(4) for queue, share in fair_shares(queues, 3, turn=turn).items() if share}
    assert served == queues.keys()


def test_a_batch_reads_available_messages_up_to_the_limit() -> None:
    now = found({A: (0, 100), B: (0, 10), C: (0, 0)})
    assert next_ends({A: 90, B: 0, C: 0}, now, None, rows_max=None) == {A: 100, B: 10, C: 0}
    assert next_ends({A: 0, B: 0, C: 0}, now, None, rows_max=30) == {A: 20, B: 10, C: 0}
    assert next_ends({A: 100, B: 10, C: 0}, now, None, rows_max=30) == {A: 100, B: 10, C: 0}


def test_a_batch_has_its_own_start() -> None:
    plan = next_plan({A: 90, B: 10}, found({A: (0, 100), B: (0, 10)}))
    assert plan.ends == {A: StreamPosition(100, first=90), B: StreamPosition(10)}
    assert read_by(plan) == {A: (90, 100)}
    # The first batch of a query is read again from a start that Spark asks for anew.
    later = encode_offset(places({A: 120, B: 10}))
    assert planned_regions(later, encode_offset(plan.ends)) == [Region("T", "broker-a", 0, 90, 100)]


def test_a_new_queue_is_read_from_its_beginning() -> None:
    plan = next_plan({A: 5}, found({A: (0, 5), OTHER: (0, 40)}))
    assert (read_by(plan), plan.losses) == ({OTHER: (0, 40)}, [])
    # An empty queue has a place from now on, so that later messages are not taken for old ones.
    assert next_ends({A: 5}, found({A: (0, 5), B: (0, 0)})) == {A: 5, B: 0}
    # If its first messages are gone when the queue is found, they are reported as lost.
    plan = next_plan({A: 5}, found({A: (0, 5), OTHER: (30, 40)}))
    assert read_by(plan) == {OTHER: (30, 40)}
    assert [(loss.queue, loss.expected, loss.end, loss.reason) for loss in plan.losses] == [(OTHER, 0, 30, REMOVED)]


def test_messages_removed_before_they_were_read_are_one_reported_loss() -> None:
    plan = next_plan({A: 10}, found({A: (50, 100)}), rows_max=20)
    assert (read_by(plan), plan.ends[A].next) == ({A: (50, 70)}, 70)
    (loss,) = plan.losses
    assert str(loss) == (
        "topic T, broker broker-a, queue 0: expected offset 10, found offset 50 as the first; they were removed before "
        "they were read; lost: messages [10, 50), 40 of them; the next to read is at offset 50"
    )
    # The whole backlog is gone: the place moves on, and the loss is reported once.
    plan = next_plan({A: 10}, found({A: (100, 100)}), rows_max=20)
    assert (plan.ends, len(plan.losses)) == ({A: StreamPosition(100)}, 1)
    # The place also moves if other queues use the whole limit of the batch.
    plan = next_plan({A: 10, B: 0, C: 0}, found({A: (50, 100), B: (0, 9), C: (0, 9)}), rows_max=1, turn=1)
    assert plan.ends[A] == StreamPosition(50)


@pytest.mark.parametrize(("end", "rows"), [(7, (0, 7)), (100, (0, 100)), (130, (0, 130)), (0, None)])
def test_a_queue_created_again_is_read_from_its_beginning(end: int, rows: tuple[int, int] | None) -> None:
    evidence = Evidence(restarts={A: Restart(0, REMADE, MessageIdentity(5_000, 60))})
    starts = {A: StreamPosition(100, last=MessageIdentity(900, 50))}
    plan = plan_batch(starts, found({A: (0, end)}), evidence, None, rows_max=None)
    assert read_by(plan) == ({A: rows} if rows else {})
    assert (plan.ends[A].next, plan.ends[A].last) == (end, None)
    (loss,) = plan.losses
    assert (loss.expected, loss.end, loss.next, loss.reason) == (100, None, 0, REMADE)
    assert f"[0, {end})" in loss.found
    assert "stored at 60 ms at CommitLog offset 5000 before that offset instead of" in loss.found


def test_a_queue_that_ends_before_its_place_is_read_from_its_beginning() -> None:
    plan = next_plan({A: 100}, found({A: (2, 7)}))
    assert (read_by(plan), [loss.reason for loss in plan.losses]) == ({A: (2, 7)}, [REMADE_OR_OLDER])


@pytest.mark.parametrize(
    ("last", "first", "stored_later", "wanted"),
    [
        (None, MessageIdentity(10, 5), None, (3, REMADE_OR_OLDER)),
        (MessageIdentity(900, 50), None, None, (3, REMADE_OR_OLDER)),
        (MessageIdentity(900, 50), MessageIdentity(901, 50), 7, (3, REMADE)),
        (MessageIdentity(900, 50), MessageIdentity(901, None), 7, (3, REMADE)),
        # A new store counts the bytes of its CommitLog from 0 again.
        (MessageIdentity(900, 50), MessageIdentity(0, 51), 3, (3, REMADE)),
        # An older copy begins with messages that were read; its later messages follow those.
        (MessageIdentity(900, 50), MessageIdentity(0, 10), 6, (6, OLDER_COPY)),
        (MessageIdentity(900, 50), MessageIdentity(0, 10), 99, (9, OLDER_COPY)),
        (MessageIdentity(900, None), MessageIdentity(0, 10), None, (9, OLDER_COPY)),
    ],
)
def test_a_queue_that_was_replaced_restarts_with_a_reason(
    last: MessageIdentity | None, first: MessageIdentity | None, stored_later: int | None, wanted: tuple[int, str]
) -> None:
    restart = explain(StreamPosition(20, last=last), QueueBounds(3, 9), first, None, stored_later)
    assert (restart.next, restart.reason) == wanted


def test_a_mark_is_one_message() -> None:
    assert MessageIdentity(5, 7).is_same(MessageIdentity(5, 7))
    assert MessageIdentity(5, 7).is_same(MessageIdentity(5))
    assert not MessageIdentity(5, 7).is_same(MessageIdentity(5, 8))
    assert not MessageIdentity(5, 7).is_same(MessageIdentity(6, 7))


def test_a_slave_that_lags_behind_is_no_evidence() -> None:
    for held in ((0, 90), (101, 120)):
        now = found({A: held, B: (5, 9)}, stand_ins={("T", "broker-a")})
        plan = next_plan({A: 100}, now)
        assert (plan.ends, plan.losses) == (places({A: 100}), [])
    now = found({A: (0, 120)}, stand_ins={("T", "broker-a")})
    assert read_by(next_plan({A: 100}, now)) == {A: (100, 120)}


def test_a_queue_that_left_its_topic_keeps_its_offset_and_is_reported_once() -> None:
    now = found({A: (0, 5)})
    for held, lost in ((QueueBounds(0, 12), 12), (QueueBounds(0, 0), None)):
        plan = next_plan({A: 5, B: 9}, now, evidence=Evidence(hidden={B: held}))
        assert [(loss.queue, loss.expected, loss.end, loss.reason) for loss in plan.losses] == [(B, 9, lost, SHRUNK)]
        assert plan.ends[B] == StreamPosition(9, is_gone=True)
        again = plan_batch(plan.ends, now, Evidence(hidden={B: held}), None, rows_max=None)
        assert (again.ends, again.losses) == (plan.ends, [])
        back = plan_batch(plan.ends, found({A: (0, 5), B: (0, 12)}), Evidence(), None, rows_max=None)
        assert (read_by(back), back.losses) == ({B: (9, 12)}, [])
    # Every message of it was read.
    assert next_plan({B: 9}, now, evidence=Evidence(hidden={B: QueueBounds(0, 9)})).losses == []


def test_a_missing_topic_is_removed_and_an_unreachable_broker_keeps_its_place() -> None:
    gone = found({A: (0, 5)}, gone={("T", "broker-b")})
    plan = next_plan({A: 5, OTHER: 9}, gone)
    assert plan.ends == places({A: 5})
    assert [(loss.queue, loss.expected, loss.end, loss.reason) for loss in plan.losses] == [(OTHER, 9, None, DELETED)]
    unreachable = found({A: (0, 6)}, unknown={("T", "broker-b"): "no answer"})
    assert next_ends({A: 5, OTHER: 9}, unreachable, None, rows_max=None) == {A: 6, OTHER: 9}


def test_with_a_target_no_message_after_it_is_read() -> None:
    target = {A: 10}
    now = found({A: (0, 50), B: (0, 50)})
    assert next_ends({A: 0}, now, target, rows_max=6) == {A: 6}
    assert next_ends({A: 6}, now, target, rows_max=6) == {A: 10}
    assert next_ends({A: 10}, now, target, rows_max=6) == {A: 10}


@given(SHARES, SHARES, st.integers(1, 40))
def test_a_query_with_a_target_reaches_it_and_ends(
    starts: dict[MessageQueue, int], ends: dict[MessageQueue, int], rows_max: int
) -> None:
    now = found({queue: (0, end) for queue, end in ends.items()})
    at, rows = places(starts), 0
    for turn in range(sum(ends.values()) + 2):
        plan = plan_batch(at, now, Evidence(), dict(ends), rows_max=rows_max, turn=turn)
        batch = sum(end - first for first, end in read_by(plan).values())
        assert batch <= rows_max
        rows += batch
        following = without_batch(plan.ends)
        if following == at:
            break
        at = following
    else:
        pytest.fail("the query never ends")
    # A queue that ends before its place was created again, and is read from its beginning.
    begins = {queue: start if (start := starts.get(queue, 0)) <= end else 0 for queue, end in ends.items()}
    assert rows == sum(end - begins[queue] for queue, end in ends.items())


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
    start = encode_offset(places({A: 5, B: 7}))
    end = encode_offset(
        {A: StreamPosition(105, 5, MessageIdentity(900, 1)), B: StreamPosition(7), OTHER: StreamPosition(3, 0)}
    )
    planned = reader.partitions(start, end)
    regions = [region for task in planned for region in task.regions]  # type: ignore[attr-defined]
    assert sum(region.rows for region in regions) == 103
    assert max(region.rows for region in regions) <= 40
    assert {region.physical_end for region in regions if region.broker == "broker-a"} == {901}
    again = reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    assert [task.regions for task in again] == [task.regions for task in planned]  # type: ignore[attr-defined]
    assert reader.partitions(end, end) == []


@pytest.mark.parametrize(
    ("held", "read", "lost"),
    [
        ((0, 2), {}, []),
        ((0, 9), {}, []),
        ((0, 12), {A: (9, 12)}, []),
        ((5, 12), {A: (9, 12)}, []),
        ((11, 12), {A: (11, 12)}, [(9, 11)]),
    ],
)
def test_messages_before_from_are_neither_read_nor_missed(
    held: tuple[int, int], read: dict[MessageQueue, tuple[int, int]], lost: list[tuple[int, int]]
) -> None:
    starts = {A: StreamPosition(2, last=MessageIdentity(100, 5), wanted_from=9)}
    plan = plan_batch(starts, found({A: held}), Evidence(), None, rows_max=None)
    assert read_by(plan) == read
    assert [(loss.expected, loss.end) for loss in plan.losses] == lost
    assert plan.ends[A].begin == max(9, held[1]), "reading continues there"


def test_a_queue_that_left_its_topic_before_from_has_lost_nothing() -> None:
    starts = {A: StreamPosition(2, wanted_from=9)}
    now = found({})
    for end, lost in ((9, []), (11, [(9, 11)])):
        plan = plan_batch(starts, now, Evidence(hidden={A: QueueBounds(0, end)}), None, rows_max=None)
        assert [(loss.expected, loss.end) for loss in plan.losses] == lost
