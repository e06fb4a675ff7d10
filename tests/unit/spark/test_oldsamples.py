"""Samples of older gateways on their way from Postgres into Spark."""

from datetime import UTC, datetime, timedelta

from spark.oldsamples import SCHEMA, parse_csv


def test_copy_becomes_a_table() -> None:
    table = parse_csv(
        [
            b'1700000000123456,"a,""b",T,broker-a,0,1,9,,\n17000000',
            memoryview(b"00000000,G,T,broker-a,3,0,9,4,1699999985000000\n"),
        ]
    )
    assert table.schema == SCHEMA
    first, second = table.to_pylist()
    assert first["sampled_at"] == datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC)
    assert (first["group"], first["committed_offset"]) == ('a,"b', None)
    assert (second["queue_id"], second["committed_offset"]) == (3, 4)
    assert first["looked_at"] is None
    assert second["looked_at"] == second["sampled_at"] - timedelta(seconds=15)


def test_no_group_differs_from_an_empty_name() -> None:
    table = parse_csv([b'1700000000000000,,T,broker-a,0,1,9,,\n1700000000000000,"",T,broker-a,0,1,9,,\n'])
    assert table.column("group").to_pylist() == [None, ""]


def test_an_empty_copy_is_an_empty_table() -> None:
    assert parse_csv([]) == SCHEMA.empty_table()
