"""Which SQL92 filters a backlog profile applies."""

import json

from spark.datasource.options import SQL_CHARACTERS_MAX, SQL_FILTERS_MAX, read_options, sql_error
from spark.transforms.backlogfilters import SqlFilters, plan_filters


def plan(
    backlogs: dict[tuple[str, str], int], filters_max: int = SQL_FILTERS_MAX, characters_max: int = SQL_CHARACTERS_MAX
) -> SqlFilters:
    return plan_filters(backlogs, filters_max=filters_max, characters_max=characters_max, error_of=sql_error)


def test_each_topic_numbers_its_own_filters() -> None:
    found = plan({("T", "a > 5"): 1, ("T", "b = 'ü'"): 7, ("U", "a > 5"): 3})
    assert found.applied == {"T": ["b = 'ü'", "a > 5"], "U": ["a > 5"]}
    assert json.loads(found.numbers()) == {"T": {"b = 'ü'": 0, "a > 5": 1}, "U": {"a > 5": 0}}
    assert found.refused == {}
    options = read_options({"kind": "messages", "path": "store", "sqlFilters": found.option(["U", "T", "V"])})
    assert options.sql_filters == {"U": ("a > 5",), "T": ("b = 'ü'", "a > 5")}
    assert found.option(["V"]) == "{}"


def test_the_smallest_backlogs_go_without() -> None:
    found = plan({("T", "a = 1"): 5, ("T", "a = 2"): 9, ("T", "a = 3"): 7, ("U", "a = 4"): 1}, filters_max=2)
    assert found.applied == {"T": ["a = 2", "a = 3"], "U": ["a = 4"]}
    assert found.refused == {"T": {"a = 1": "a report applies at most 2 different SQL92 filters of a topic: a = 1"}}
    found = plan({("T", "a = 1"): 5, ("T", "b = 'long'"): 9, ("U", "a = 4"): 1}, characters_max=15)
    assert found.applied == {"T": ["b = 'long'", "a = 1"]}
    reason = "a report applies SQL92 filters of at most 15 characters: a = 4"
    assert json.loads(found.reasons()) == {"U": {"a = 4": reason}}


def test_a_filter_of_another_broker_that_is_invalid_here_is_named() -> None:
    found = plan({("T", "a LIKE 'x'"): 5, ("T", "a = 'x'"): 1})
    assert found.applied == {"T": ["a = 'x'"]}
    assert found.refused["T"]["a LIKE 'x'"].startswith("the SQL92 filter is invalid: sql: at character 3: LIKE is not")
