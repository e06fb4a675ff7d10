"""Options: they are parsed, and no option of the caller is ignored."""

import json
import pickle

import pytest

from spark.datasource.options import (
    MAX_ROWS_PER_PARTITION,
    SQL_FILTERS_MAX,
    Credentials,
    OptionError,
    Options,
    Position,
    PositionKind,
    read_options,
)
from spark.datasource.schema import MESSAGES

LIVE = {"namesrv": "127.0.0.1:9876"}


def test_all_options_of_a_backlog_are_read():
    options = read_options(
        {
            "KIND": "backlog",
            "namesrv": "127.0.0.1:9876; [::1]:9877,ns.example:1",
            "topics": "Orders, %RETRY%billing",
            "groups": "billing",
            "from": "10",
            "to": "2026-11-21T10:00:00.0005+01:00",
            "database": "postgresql+psycopg://u:p@h/d",
            "access": "key:secret:token",
            "maxrowsperpartition": "1000",
            "includeSystem": "TRUE",
        }
    )
    assert options == Options(
        kind="backlog",
        namesrv=("127.0.0.1:9876", "[::1]:9877", "ns.example:1"),
        topics=("Orders", "%RETRY%billing"),
        groups=("billing",),
        start=Position(PositionKind.OFFSET, 10),
        end=Position(PositionKind.TIME, 1_795_251_600_001),
        database="postgresql://u:p@h/d",
        access=Credentials("key", "secret", "token"),
        max_rows_per_partition=1_000,
        include_system=True,
    )
    assert pickle.loads(pickle.dumps(options)) == options
    assert "secret" not in repr(options)
    assert "u:p" not in repr(options)


def test_missing_options_have_defaults():
    options = read_options({"kind": "offsets", **LIVE})
    assert (options.topics, options.groups, options.start, options.access) == (None, None, None, None)
    assert (options.max_rows_per_partition, options.include_system) == (MAX_ROWS_PER_PARTITION, False)
    assert options.fail_on_data_loss


@pytest.mark.parametrize(("text", "fails"), [("false", False), ("FALSE", False), ("true", True), ("True", True)])
def test_the_option_that_makes_losses_fail_the_query(text: str, fails: bool) -> None:
    assert read_options({"kind": "messages", **LIVE, "failondataloss": text}).fail_on_data_loss is fails


def test_sql_filters_add_a_column():
    options = read_options({"kind": "messages", **LIVE, "sqlFilters": '{"T": ["a > 5", "b = \'\u00fc\'"], "U": []}'})
    assert options.sql_filters == {"T": ("a > 5", "b = 'ü'"), "U": ()}
    assert options.schema.names == [*MESSAGES.names, "accepted_by"]
    assert read_options({"kind": "messages", **LIVE}).schema == MESSAGES
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_time_may_be_outside_the_years_of_utc():
    options = read_options(
        {"kind": "backlog", "from": "0001-01-01T00:00+14:00", "to": "9999-12-31T23:59-14:00", **LIVE}
    )
    assert options.start == Position(PositionKind.TIME, -62_135_647_200_000)
    assert options.end == Position(PositionKind.TIME, 253_402_351_140_000)


def test_a_store_directory_needs_no_name_server():
    assert read_options({"kind": "messages", "path": "somewhere/store", "from": "earliest"}).namesrv == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "kind: None is missing"),
        ({"kind": "lag"}, "kind: 'lag' is not one of offsets"),
        ({"kind": "offsets", "topic": "A"}, "topic: 'A' is no option of this data source; known: access, database"),
        ({"kind": "offsets"}, "namesrv: None is missing"),
        ({"kind": "offsets", "namesrv": "host"}, "namesrv: 'host' is not host:port"),
        ({"kind": "offsets", "namesrv": "host:65536"}, "is not host:port"),
        ({"kind": "offsets", "namesrv": ";"}, "is an empty list"),
        ({"kind": "offsets", "path": "x", **LIVE}, "namesrv: '127.0.0.1:9876' can't be combined with path"),
        ({"kind": "offsets", "path": " "}, "path: ' ' is empty"),
        ({"kind": "offsets", "from": "1", **LIVE}, "from: '1' is no option of kind offsets"),
        ({"kind": "groups", "topics": "A", **LIVE}, "topics: 'A' is no option of kind groups"),
        ({"kind": "messages", "groups": "A", **LIVE}, "groups: 'A' is no option of kind messages"),
        ({"kind": "backlog", "maxMessagesPerTrigger": "1", **LIVE}, "maxMessagesPerTrigger: '1' is no option of"),
        ({"kind": "backlog", "topics": "a b", **LIVE}, "topics: 'a b' may only hold"),
        ({"kind": "backlog", "groups": "", **LIVE}, "groups: '' is an empty list"),
        ({"kind": "backlog", "from": "yesterday", **LIVE}, "from: 'yesterday' is neither a queue offset"),
        ({"kind": "backlog", "from": "2026-11-21T10:00:00", **LIVE}, "has no time zone"),
        ({"kind": "backlog", "from": str(2**63), **LIVE}, "is beyond any queue offset"),
        ({"kind": "backlog", "from": "9" * 5_000, **LIVE}, "is beyond any queue offset"),
        ({"kind": "backlog", "from": "5", "to": "5", **LIVE}, "to: '5' is not after from, '5'"),
        ({"kind": "backlog", "maxRowsPerPartition": "0", **LIVE}, "is not a whole number above 0"),
        ({"kind": "backlog", "maxRowsPerPartition": "1e3", **LIVE}, "is not a whole number above 0"),
        ({"kind": "backlog", "maxRowsPerPartition": "9" * 5_000, **LIVE}, "is not a whole number above 0"),
        ({"kind": "backlog", "includeSystem": "yes", **LIVE}, "is neither true nor false"),
        ({"kind": "messages", "failOnDataLoss": "no", **LIVE}, "failOnDataLoss: 'no' is neither true nor false"),
        ({"kind": "messages", "failOnDataLoss": "", **LIVE}, "failOnDataLoss: '' is neither true nor false"),
        ({"kind": "heads", "failOnDataLoss": "true", **LIVE}, "failOnDataLoss: 'true' is no option of kind heads"),
        ({"kind": "backlog", "sqlFilters": "{}", **LIVE}, "sqlFilters: '{}' is no option of kind backlog"),
        ({"kind": "messages", "sqlFilters": "a > 5", **LIVE}, "sqlFilters: 'a > 5' is no JSON object of the form"),
        ({"kind": "messages", "sqlFilters": '{"T": "a > 5"}', **LIVE}, "is no JSON object of the form"),
        ({"kind": "messages", "sqlFilters": '{"T": [5]}', **LIVE}, "sqlFilters: 'T[0]' is no text"),
        (
            {"kind": "messages", "sqlFilters": '{"T": ["a = 1", "a LIKE 1"]}', **LIVE},
            "sqlFilters: 'T[1]' sql: at character 3: LIKE is not supported",
        ),
        (
            {"kind": "messages", "sqlFilters": json.dumps({"T": ["a = 1"] * (SQL_FILTERS_MAX + 1)}), **LIVE},
            "sqlFilters: 'T' has 101 expressions; 100 are allowed for a topic",
        ),
        (
            {"kind": "messages", "sqlFilters": json.dumps({"T": [f"a = '{'x' * 16_000}'"] * 66}), **LIVE},
            "has 1,056,396 characters; 1,048,576 are allowed",
        ),
    ],
)
def test_invalid_settings_are_refused_by_name(given, message):
    with pytest.raises(OptionError) as caught:
        read_options(given)
    assert message in str(caught.value)


@pytest.mark.parametrize("given", [{"access": "hunter2"}, {"access": "a::hunter2"}, {"database": "mysql://hunter2"}])
def test_a_secret_is_not_shown(given):
    with pytest.raises(OptionError) as caught:
        read_options({"kind": "offsets", **LIVE, **given})
    assert "hunter2" not in str(caught.value)
