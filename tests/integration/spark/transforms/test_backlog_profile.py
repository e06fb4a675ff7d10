"""The profile of a backlog: what plain pandas counts, and what becomes of what can't be known."""

import random
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from spark.datasource.schema import BACKLOG, FILTERED_MESSAGES, MESSAGES
from spark.transforms.backlog_profile import AGE_BOUNDS_S, KEYS_MAX, backlog_extent, backlog_profile
from spark.transforms.backlogfilters import plan_filters

AS_OF = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
COLUMNS = ["group", "topic", "section", "bucket", "lower_bound", "upper_bound", "messages", "bytes"]
MINUTE, HOUR, DAY = 60, 3_600, 86_400


def unit(
    group, offset, *, age=30.0, size=100, topic="t", broker="b0", queue_id=0, passes=True, tags=None, read=None, error=None, sql=None
):  # fmt: skip
    stored_at = None if age is None else AS_OF - timedelta(seconds=age)
    physical = None if size is None else offset * 1_000
    wanted = (
        None if size is None else passes,
        tags,
        None if read is None else AS_OF + timedelta(seconds=read),
        error,
        sql,
    )
    return (group, topic, broker, queue_id, offset, physical, size, None if size is None else 7, stored_at, *wanted)


def message(offset, body=b"x", *, age=30.0, tag=None, keys=(), topic="t", broker="b0", queue_id=0, accepted=None):
    row = (
        f"M{offset}",
        f"S{offset}",
        topic,
        broker,
        queue_id,
        offset,
        body,
        tag,
        list(keys),
        {},
        AS_OF,
        AS_OF - timedelta(seconds=age),
        "h:1",
        0,
        100,
    )
    return row if accepted is None else (*row, accepted)


def rows_of(spark, units, messages=None, filters=None):
    schema = FILTERED_MESSAGES if filters is not None and filters.applied else MESSAGES
    frame = backlog_profile(
        backlog_extent(spark.createDataFrame(units, BACKLOG), as_of=AS_OF),
        None if messages is None else spark.createDataFrame(messages, schema),
        as_of=AS_OF,
        filters=filters,
    )
    assert frame.columns == COLUMNS
    return {tuple(row.values()) for row in frame.toArrow().to_pylist()}


def test_a_filter_that_was_not_applied_is_named(spark):
    units = [unit("g", 0, error="SQL92: a > 5"), unit("g", 1, age=MINUTE, error="SQL92: a > 5"), unit("h", 0)]
    found = rows_of(spark, units)
    assert {row[:4] + row[6:] for row in found if row[2] == "filter"} == {
        ("g", "t", "filter", "SQL92: a > 5", 2, None)
    }  # fmt: skip
    assert ("g", "t", "queue", "b0/0", None, None, 2, None) in found


def plan(*backlogs, filters_max=100):
    numbered = {pair: len(backlogs) - at for at, pair in enumerate(backlogs)}
    return plan_filters(numbered, filters_max=filters_max, characters_max=1_000, error_of=lambda sql: None)


def test_an_sql_filter_counts_the_messages_that_it_accepts(spark):
    units = [unit("g", offset, error="no units", sql="a > 5") for offset in range(5)]
    units += [unit("h", offset, error="no units", sql="b = 'x'") for offset in range(2, 5)]
    units += [unit("all", offset) for offset in range(2)]
    messages = [  # The message at 4 is gone.
        message(0, b"xy", tag="a", keys=["k"], accepted=[0]),
        message(1, b"xy", tag="b", keys=["l"], accepted=[]),
        message(2, age=MINUTE, accepted=[0, 1]),
        message(3, accepted=[]),
    ]
    rows = rows_of(spark, units, messages, plan(("t", "a > 5"), ("t", "b = 'x'")))
    unread = "they can't be read, so it is unknown whether the SQL92 filter accepts them: "
    assert {row[:4] + row[6:] for row in rows if row[0] != "all"} == {
        ("g", "t", "age", "under 1 min", 1, 2), ("g", "t", "age", "1-5 min", 1, 1),
        ("g", "t", "queue", "b0/0", 2, 3), ("g", "t", "tag", "a", 1, 2), ("g", "t", "tag", "(none)", 1, 1),
        ("g", "t", "key", "k", 1, 2), ("g", "t", "size", "2-3", 1, 2), ("g", "t", "size", "1", 1, 1),
        ("g", "t", "filter", f"{unread}a > 5", 1, None),
        ("h", "t", "age", "1-5 min", 1, 1), ("h", "t", "queue", "b0/0", 1, 1), ("h", "t", "tag", "(none)", 1, 1),
        ("h", "t", "size", "1", 1, 1), ("h", "t", "filter", f"{unread}b = 'x'", 1, None),
    }  # fmt: skip
    assert {row[3:4] + row[6:] for row in rows if row[0] == "all" and row[2] == "key"} == {("k", 1, 2), ("l", 1, 2)}


def test_an_sql_filter_that_accepts_nothing_leaves_nothing(spark):
    units = [unit("g", offset, error="no units", sql="a > 5") for offset in range(2)]
    messages = [message(offset, keys=["k"], accepted=[]) for offset in range(2)]
    assert rows_of(spark, units, messages, plan(("t", "a > 5"))) == set()


def test_a_filter_has_its_number_in_its_topic_and_too_many_are_named(spark):
    units = [unit("g", 0, topic=topic, error="no units", sql=sql) for topic, sql in (("t", "a"), ("u", "b"))]
    units.append(unit("h", 0, topic="u", error="no units", sql="c"))
    messages = [message(0, topic="t", accepted=[0]), message(0, topic="u", accepted=[0])]
    filters = plan(("t", "a"), ("u", "b"), ("u", "c"), filters_max=1)
    rows = rows_of(spark, units, messages, filters)
    assert {row[:4] + row[6:] for row in rows if row[2] in ("queue", "filter")} == {
        ("g", "t", "queue", "b0/0", 1, 1),
        ("g", "u", "queue", "b0/0", 1, 1),
        ("h", "u", "queue", "b0/0", 1, 1),
        ("h", "u", "filter", "a report applies at most 1 different SQL92 filters of a topic: c", 1, None),
    }


def test_every_bucket_by_hand(spark):
    units = [
        unit("g", 0, age=0.0),
        unit("g", 1, age=MINUTE - 0.001),
        unit("g", 2, age=MINUTE),
        unit("g", 3, age=8 * DAY, queue_id=1),
        unit("g", 4, age=None),  # Its record can't be read.
        unit("g", 5, size=None),  # Stands for no message.
        unit("g", 6, age=-5.0),  # Came while the report was made.
    ]
    messages = [
        message(0, b"", age=0.0, tag="a", keys=["k", "k"]),
        message(1, b"1", tag="a", keys=["k", "l"]),
        message(2, b"x" * 1_023, age=MINUTE),
        message(3, b"x" * 1_024, age=8 * DAY, queue_id=1),
        message(99, tag="consumed"),
        message(0, tag="of another topic", topic="u"),
    ]
    assert rows_of(spark, units, messages) == {
        ("g", "t", "age", "under 1 min", 0.0, 60.0, 3, 1),
        ("g", "t", "age", "1-5 min", 60.0, 300.0, 1, 1_023),
        ("g", "t", "age", "over 7 days", 604_800.0, None, 1, 1_024),
        ("g", "t", "age", "(unknown)", None, None, 1, None),
        ("g", "t", "queue", "b0/0", None, None, 5, 1_024),
        ("g", "t", "queue", "b0/1", None, None, 1, 1_024),
        ("g", "t", "tag", "a", None, None, 2, 1),
        ("g", "t", "tag", "(none)", None, None, 2, 2_047),
        ("g", "t", "tag", "(unknown)", None, None, 2, None),
        ("g", "t", "key", "k", None, None, 2, 1),
        ("g", "t", "key", "l", None, None, 1, 1),
        ("g", "t", "size", "0", 0.0, 1.0, 1, 0),
        ("g", "t", "size", "1", 1.0, 2.0, 1, 1),
        ("g", "t", "size", "512-1023", 512.0, 1_024.0, 1, 1_023),
        ("g", "t", "size", "1024-2047", 1_024.0, 2_048.0, 1, 1_024),
        ("g", "t", "size", "(unknown)", None, None, 2, None),
    }


def test_without_messages_only_ages_and_queues(spark):
    assert rows_of(spark, [unit("g", 0), unit("h", 0)]) == {
        (group, "t", section, bucket, lower, upper, 1, None)
        for group in ("g", "h")
        for section, bucket, lower, upper in (("age", "under 1 min", 0.0, 60.0), ("queue", "b0/0", None, None))
    }


def test_each_group_has_its_own_part_of_a_queue(spark):
    units = [unit("near", 2), unit("far", 0), unit("far", 1), unit("far", 2)]
    rows = rows_of(spark, units, [message(offset, tag="ab"[offset % 2]) for offset in range(3)])
    assert {row[:4] + row[6:] for row in rows if row[2] == "tag"} == {
        ("near", "t", "tag", "a", 1, 1), ("far", "t", "tag", "a", 2, 2), ("far", "t", "tag", "b", 1, 1),
    }  # fmt: skip


def test_what_a_groups_filter_leaves_out_does_not_wait_for_it(spark):
    units = [unit("a", offset, passes=offset % 2 == 0, tags=["a"]) for offset in range(5)]
    units += [unit("none", offset, passes=False, tags=["z"]) for offset in range(5)]
    units += [unit("all", offset) for offset in range(5)]
    # The third can't be read any more. Without a tag, a message passes no filter.
    messages = [message(offset, tag="ab"[offset % 2], keys=["k"]) for offset in (0, 1, 2)] + [message(3)]
    rows = {row[:4] + row[6:] for row in rows_of(spark, units, messages) if row[2] in ("tag", "key", "queue")}
    assert {row for row in rows if row[0] != "all"} == {
        ("a", "t", "queue", "b0/0", 3, 2),
        ("a", "t", "tag", "a", 2, 2),
        ("a", "t", "tag", "(unknown)", 1, None),
        ("a", "t", "key", "k", 2, 2),
    }
    assert ("all", "t", "queue", "b0/0", 5, 4) in rows


def test_ages_are_counted_to_the_moment_of_the_brokers_answer(spark):
    # Begun at as_of; the broker said 45 s later where its queue ends.
    rows = rows_of(spark, [unit("g", 0, age=30.0, read=45.0)], [message(0, b"xy", age=30.0)])
    assert ("g", "t", "age", "1-5 min", 60.0, 300.0, 1, 2) in rows


def test_nothing_gives_nothing(spark):
    assert rows_of(spark, [], []) == set()


def test_a_moment_without_zone_is_refused(spark):
    with pytest.raises(ValueError, match="has no time zone"):
        backlog_extent(spark.createDataFrame([], BACKLOG), as_of=datetime(2026, 11, 21))  # noqa: DTZ001


def data_set(count):
    rng = random.Random(20261121)
    queues = [(f"b{broker}", queue_id) for broker in range(2) for queue_id in range(3)]
    offsets = dict.fromkeys(queues, 0)
    rows = []
    for _ in range(count):
        queue = rng.choice(queues)
        rows.append(
            {
                "broker": queue[0],
                "queue_id": queue[1],
                "offset": offsets[queue],
                "body_size": int(rng.lognormvariate(5, 2)),
                "age": rng.expovariate(1 / DAY),
                "tag": rng.choice(["a", "b", "b", None]),
                "keys": [f"k{int(rng.expovariate(0.02))}" for _ in range(rng.randrange(3))],
            }
        )
        offsets[queue] += 1
    return pd.DataFrame(rows)


def by_pandas(data):
    """Count it again, by other means than the transform's."""
    data = data.assign(keys=data["keys"].map(lambda keys: sorted(set(keys))))
    edges = [lower for _, lower, _ in AGE_BOUNDS_S] + [float("inf")]
    ages = pd.cut(data["age"], edges, right=False, labels=[label for label, _, _ in AGE_BOUNDS_S]).astype(str)
    sections = {
        "age": ages,
        "tag": data["tag"].where(data["tag"].notna(), "(none)"),
        "queue": data["broker"] + "/" + data["queue_id"].astype(str),
        "size": data["body_size"].map(lambda size: 0 if size == 0 else 1 << (int(size).bit_length() - 1)),
    }
    found = {}
    for section, bucket in sections.items():
        summed = data.groupby(bucket.to_numpy())["body_size"].agg(["count", "sum"])
        found |= {(section, name): (row["count"], row["sum"]) for name, row in summed.iterrows()}
    by_key = data.explode("keys").dropna(subset="keys").groupby("keys")["body_size"].agg(["count", "sum"])
    top = by_key.reset_index().sort_values(["count", "keys"], ascending=[False, True]).head(KEYS_MAX)
    return found | {("key", row["keys"]): (row["count"], row["sum"]) for _, row in top.iterrows()}


def test_it_is_what_pandas_counts(spark):
    data = data_set(5_000)
    start = {("b0", 0): 100}  # A part of one queue is consumed.
    unconsumed = data[[row.offset >= start.get((row.broker, row.queue_id), 0) for row in data.itertuples()]]
    messages = []
    for row in data.itertuples():
        tag = row.tag if isinstance(row.tag, str) else None
        where = {"broker": row.broker, "queue_id": row.queue_id}
        messages.append(message(row.offset, b"x" * row.body_size, age=row.age, tag=tag, keys=row.keys, **where))
    units = [
        unit("g", row.offset, age=row.age, broker=row.broker, queue_id=row.queue_id) for row in unconsumed.itertuples()
    ]
    found = {}
    for _, _, section, bucket, lower, _, count, size in rows_of(spark, units, messages):
        found[section, int(lower) if section == "size" else bucket] = (count, size)
    assert found == by_pandas(unconsumed)
