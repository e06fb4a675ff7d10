"""Records to Arrow columns: the fast decoder gives the same result as the library's own decoder."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry.model import sysflag
from gantry.model.address import Address, pack_host
from gantry.model.compression import Compression, compress
from gantry.model.message import StoredMessage
from gantry.model.propertyname import is_reserved_property
from gantry.model.record import decode_record, encode_record
from gantry.storeformat.manifest import StoreManifest
from spark.datasource.columns import records
from spark.datasource.columns.acceptance import TopicFilters
from spark.datasource.columns.batches import arrow_schema
from spark.datasource.columns.recordbounds import Bounds, Damage, RowFilter, bounds_of
from spark.datasource.columns.records import RecordDecoder
from spark.datasource.schema import FILTERED_MESSAGES, MESSAGES

SCHEMA = arrow_schema(MESSAGES)
V4 = pack_host(Address("10.0.0.5", 10911))
V6 = pack_host(Address("fd00::2", 4711))
PLAIN = {"UNIQ_KEY": "7F00000100002A9F0000000000000001", "TAGS": "AA", "KEYS": "k1 k2", "origin": "EWR", "WAIT": "true"}


def properties_text(properties: dict[str, str] | Sequence[tuple[str, str]]) -> bytes:
    items = properties.items() if isinstance(properties, dict) else properties
    return "".join(f"{name}\x01{value}\x02" for name, value in items).encode()


def record(queue_offset: int = 0, body: bytes = b"body", **changes: Any) -> bytes:
    values: dict[str, Any] = {
        "queue_id": 3,
        "flag": 0,
        "queue_offset": queue_offset,
        "physical_offset": 1000 * queue_offset,
        "sys_flag": 0,
        "born_at_ms": 1_700_000_000_000 + queue_offset,
        "born_host": V4,
        "stored_at_ms": 1_700_000_000_005 + queue_offset,
        "store_host": V4,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": body,
        "topic": b"T",
        "properties": properties_text(PLAIN),
        **changes,
    }
    return encode_record(**values)


def decoder(topic: str = "T", manifest: StoreManifest | None = None) -> RecordDecoder:
    return RecordDecoder(topic, "broker-a", 3, SCHEMA, manifest=manifest)


def decode(data: bytes, wanted: RowFilter | None = None) -> tuple[list[dict[str, Any]], list[Damage]]:
    bounds, problem = bounds_of(data)
    assert problem is None
    rows: list[dict[str, Any]] = []
    damages: list[Damage] = []
    for batch, damaged in decoder().decode(data, bounds, wanted or RowFilter()):
        damages += damaged
        if batch is not None:
            assert batch.schema == SCHEMA
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows, damages


def row(message: StoredMessage) -> dict[str, Any]:
    """Return the gateway's view of a message, as a row."""
    return {
        "message_id": message.message_id,
        "stored_id": message.stored_id,
        "topic": message.topic,
        "broker": "broker-a",
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "body": message.inflated_body(),
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": [item for item in message.properties.items() if not is_reserved_property(item[0])],
        "born_at": message.born_at_ms * 1000,
        "stored_at": message.stored_at_ms * 1000,
        "born_host": str(message.born_host),
        "reconsume_times": message.reconsume_times,
        "size": message.size_bytes,
    }


def plainly(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row with times in µs, since this test does not compare Python's datetimes."""
    return [{**found, **{name: us(found[name]) for name in ("born_at", "stored_at")}} for found in rows]


def us(moment: Any) -> int:
    value: int = pa.scalar(moment, pa.timestamp("us", "UTC")).value
    return value


def test_a_plain_record() -> None:
    data = record(7)
    rows, damages = decode(data)
    assert (plainly(rows), damages) == ([row(decode_record(data))], [])
    assert rows[0]["properties"] == [("origin", "EWR")]
    assert rows[0]["keys"] == ["k1", "k2"]


NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "b", "naïve", "WAIT", "__RMQ.TRANSIENT.x", ""])
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=12) | st.sampled_from(
    ["x  y ", ""]
)
RECORDS = st.builds(
    lambda body, items, version, crc, hosts, kind, raw: {
        "body": compress(body, kind) if kind else body,
        "sys_flag": hosts | (kind.sys_flag if kind else 0),
        "born_host": V6 if hosts & sysflag.BORN_HOST_V6 else V4,
        "store_host": V6 if hosts & sysflag.STORE_HOST_V6 else V4,
        "properties": properties_text(items) + raw,
        "version": version,
        "whole_record_crc": crc,
    },
    body=st.binary(max_size=40),
    items=st.lists(st.tuples(NAMES, VALUES), max_size=6),
    version=st.sampled_from([1, 1, 1, 2]),
    crc=st.booleans(),
    hosts=st.sampled_from([0, 0, 0, sysflag.BORN_HOST_V6, sysflag.HOSTS_V6_MASK]),
    kind=st.sampled_from([None, None, None, *Compression]),
    raw=st.sampled_from([b"", b"", b"", b"\xff\xfe\x01\xff\x02", b"\x02\x01\x02", b"a\x01b\x01c"]),
)


@given(st.lists(RECORDS, max_size=8))
@settings(max_examples=150)
def test_the_fast_path_agrees_with_the_decoder(changes: list[dict[str, Any]]) -> None:
    records = [record(queue_offset=number, **each) for number, each in enumerate(changes)]
    rows, damages = decode(b"".join(records))
    assert damages == []
    assert plainly(rows) == [row(decode_record(each)) for each in records]


@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([0, sysflag.BORN_HOST_V6]))
@settings(max_examples=200)
def test_a_flipped_bit_is_never_returned_as_intact(bit: int, crc: bool, hosts: int) -> None:
    born = V6 if hosts else V4
    records = [bytearray(record(n, whole_record_crc=crc, sys_flag=hosts, born_host=born)) for n in range(3)]
    starts, sizes = [0, len(records[0]), 2 * len(records[0])], [len(each) for each in records]
    place = bit % (8 * len(records[1]))
    records[1][place // 8] ^= 1 << place % 8
    data = b"".join(records)
    # The mark of a store requires the checksum; without the mark, damage to the checksum's name hides the checksum.
    manifest = StoreManifest(record_checksum_from=0) if crc else None
    [(batch, damages)] = decoder(manifest=manifest).decode(data, bounds(starts, sizes, [0, 1, 2], [0, 1000, 2000]))
    assert batch is not None
    assert batch["queue_offset"].to_pylist()[0] == 0
    assert batch["queue_offset"].to_pylist()[-1] == 2
    if batch.num_rows == 3:
        # Without the record checksum, only the body is checked.
        assert not crc
        assert batch["body"].to_pylist()[1] == b"body"
    else:
        assert [damage.queue_offset for damage in damages] == [1]


def bounds(
    starts: list[int], sizes: list[int], queue: list[int] | None = None, physical: list[int] | None = None
) -> Bounds:
    arrays = [None if column is None else np.array(column, np.int64) for column in (starts, sizes, queue, physical)]
    return Bounds(*arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topic": b"U"}, "queue 3 of U"),
        ({"topic": b"TT"}, "queue 3 of TT"),
        ({"queue_id": 4}, "queue 4 of T"),
        ({"sys_flag": sysflag.COMPRESSED | 0x300}, "can't be unpacked"),
        ({"sys_flag": sysflag.COMPRESSED | 0x400}, "unknown compression type"),
    ],
)
def test_records_of_another_queue_and_undecodable_bodies_are_damage(changes: dict[str, Any], words: str) -> None:
    rows, damages = decode(record(0) + record(1, **changes) + record(2))
    assert [found["queue_offset"] for found in rows] == [0, 2]
    assert [damage.queue_offset for damage in damages] == [1]
    assert words in damages[0].reason


def test_a_batch_ends_when_its_decompressed_bodies_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "INFLATED_BYTES_MAX", 250_000)
    zipped = compress(bytes(100_000), Compression.ZLIB)
    bodies = [zipped if number % 2 else b"plain" for number in range(12)]
    flags = [Compression.ZLIB.sys_flag if number % 2 else 0 for number in range(12)]
    data = b"".join(record(n, body, sys_flag=flag) for n, (body, flag) in enumerate(zip(bodies, flags, strict=True)))
    bounds, _ = bounds_of(data)
    batches = [batch for batch, damages in decoder().decode(data, bounds) if batch is not None and not damages]
    # The third compressed body of a batch reaches the limit.
    assert [batch["queue_offset"].to_pylist() for batch in batches] == [[*range(7)], [*range(7, 12)]]
    sizes = [len(body) for batch in batches for body in batch["body"].to_pylist()]
    assert sizes == [100_000 if number % 2 else 5 for number in range(12)]


def test_a_body_checksum_is_not_enough_if_the_manifest_demands_the_record_checksum() -> None:
    data = record(0, whole_record_crc=False) + record(1, whole_record_crc=False)
    size = len(data) // 2
    manifest = StoreManifest(record_checksum_from=1000)
    [(batch, damages)] = decoder(manifest=manifest).decode(data, bounds([0, size], [size, size]))
    assert batch is not None
    assert batch["queue_offset"].to_pylist() == [0]
    assert [damage.reason for damage in damages] == ["the checksum over the whole record is missing"]


def test_only_requested_columns_are_returned_in_their_order() -> None:
    data = b"".join(
        record(n, born_host=V6 if n % 2 else V4, sys_flag=sysflag.BORN_HOST_V6 if n % 2 else 0) for n in range(10)
    )
    rows, _ = decode(data, RowFilter(first=2, end=9, stored_to_ms=1_700_000_000_005 + 7))
    assert [found["queue_offset"] for found in rows] == [2, 3, 4, 5, 6]
    assert decode(data, RowFilter(first=20))[0] == []


def test_an_empty_answer_gives_no_rows() -> None:
    assert decode(b"") == ([], [])


def test_readable_records_have_store_times() -> None:
    records = [record(0), record(1, sys_flag=sysflag.BORN_HOST_V6, born_host=V6), record(2, body=b"bodx")]
    records[2] = records[2].replace(b"bodx", b"body")
    starts = [0, len(records[0]), len(records[0]) + len(records[1])]
    found = decoder().stored_at(b"".join(records), bounds(starts, [len(each) for each in records]))
    assert found.tolist() == [1_700_000_000_005, 1_700_000_000_006, -1]


@pytest.mark.parametrize("tail", [b"\0", b"\0\0\0\x5b", b"\0\0\0\x5b\xda\xa3\x20\xa7", b"\0" * 100])
def test_bounds_end_where_no_record_starts(tail: bytes) -> None:
    data = record(0) + record(1)
    found, problem = bounds_of(data + tail)
    assert (len(found.starts), int(found.sizes.sum())) == (2, len(data))
    assert problem is not None
    assert f"{len(tail)} bytes are left" in problem.reason


def test_times_out_of_range_are_bounded() -> None:
    rows, _ = decode(
        record(0, born_at_ms=2**62) + record(1, born_at_ms=-(2**62), sys_flag=sysflag.BORN_HOST_V6, born_host=V6)
    )
    assert [found["born_at"].year for found in rows] == [9999, 1]


@pytest.mark.parametrize(
    "changes",
    [{}, {"store_host": V6, "sys_flag": sysflag.STORE_HOST_V6}, {"body": compress(b"long" * 9, Compression.ZLIB), "sys_flag": sysflag.COMPRESSED | sysflag.COMPRESSION_ZLIB}],
    ids=["plain", "IPv6", "compressed"],
)  # fmt: skip
def test_each_record_has_the_numbers_of_the_filters_that_accept_it(changes: dict[str, Any]) -> None:
    given = [
        {"TAGS": "AA", "KEYS": "k1  k2", "distance": "1400"},
        {"TAGS": "BB", "distance": "short"},  # Unknown is not accepted, and neither is its negation.
        {"distance": "900", "UNIQ_KEY": "id"},
    ]
    data = b"".join(record(at, properties=properties_text(one), **changes) for at, one in enumerate(given))
    texts = [
        "distance > 1000", "NOT (distance > 1000)", "TAGS = 'AA' AND KEYS = 'k1  k2'", "TAGS <> 'AA'", "TAGS IS NULL",
        "UNIQ_KEY = 'id'",
    ]  # fmt: skip
    filters = TopicFilters({"T": texts, "U": ["TAGS = 'AA'"]})
    schema = arrow_schema(FILTERED_MESSAGES)
    bounds, _ = bounds_of(data)
    made = RecordDecoder("T", "broker-a", 3, schema, filters=filters.of_topic("T"))
    [(batch, damages)] = made.decode(data, bounds)
    assert not damages
    assert batch is not None
    assert batch.column("accepted_by").to_pylist() == [[0, 2], [3], [1, 4, 5]]
    none = RecordDecoder("V", "broker-a", 3, schema, filters=filters.of_topic("V"))
    [(batch, _)] = none.decode(record(topic=b"V", **changes), bounds_of(record(topic=b"V", **changes))[0])
    assert batch is not None
    assert batch.column("accepted_by").to_pylist() == [[]]
