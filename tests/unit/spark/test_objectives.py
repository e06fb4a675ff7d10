"""Objectives as columns of a survey: which objective applies to which rows."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from spark.objectives import ALL_TOPICS, SCHEMA, Objective, with_objectives

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SURVEY = pa.table({"group": ["a", "a", "b", "c"], "topic": ["t", "u", "t", "t"]})


def test_a_topics_own_objective_replaces_that_of_the_group() -> None:
    objectives = {
        ("a", ALL_TOPICS): Objective(max_lag_seconds=60.0, max_lag_messages=5),
        ("a", "u"): Objective(max_lag_seconds=90.0),
        ("b", "other"): Objective(ignore=True),
    }
    table = with_objectives(SURVEY, objectives, NOW)
    assert table["max_lag_seconds"].to_pylist() == [60.0, 90.0, None, None]
    assert table["max_lag_messages"].to_pylist() == [5, None, None, None]
    assert table["is_ignored"].to_pylist() == [False] * 4
    assert table.column_names[2:] == SCHEMA.names


def test_a_retry_topic_is_one_of_the_topics_of_its_group() -> None:
    survey = pa.table({"group": ["a", "a", "b", "c"], "topic": ["t", "%RETRY%a", "%RETRY%b", "%RETRY%c"]})
    objectives = {
        ("a", ALL_TOPICS): Objective(max_lag_messages=5, ignore=True),
        ("b", ALL_TOPICS): Objective(max_lag_messages=5),
        ("b", "%RETRY%b"): Objective(max_lag_seconds=600.0),
        # Returned messages may be of other topics, too, so this does not cover the retry topic.
        ("c", "t"): Objective(ignore=True),
    }
    table = with_objectives(survey, objectives, NOW)
    assert table["max_lag_messages"].to_pylist() == [5, 5, None, None]
    assert table["max_lag_seconds"].to_pylist() == [None, None, 600.0, None]
    assert table["is_ignored"].to_pylist() == [True, True, False, False]


def test_a_group_is_ignored_until_the_given_time() -> None:
    later = NOW + timedelta(hours=1)
    objectives = {("a", ALL_TOPICS): Objective(ignore=True, reason="moves", ignore_until=later)}
    table = with_objectives(SURVEY, objectives, NOW)
    assert table["is_ignored"].to_pylist() == [True, True, False, False]
    assert table["ignore_until"].to_pylist() == [later, later, None, None]
    over = with_objectives(SURVEY, objectives, later)
    assert over["is_ignored"].to_pylist() == [False] * 4
    assert over["ignore_reason"].to_pylist() == [None] * 4


def test_without_objectives_the_columns_are_there_and_empty() -> None:
    table = with_objectives(SURVEY, {}, NOW)
    assert table.schema.names == ["group", "topic", *SCHEMA.names]
    assert table["max_lag_seconds"].null_count == 4
