"""Kinds messages, backlog and offsets of stores on disk: Apache RocketMQ's golden ones, and ones of our own."""

import hashlib
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat import layout
from gantry.storeformat.errors import NotAStoreError, StoreFileError, StoreInUseError
from gantry.storeformat.manifest import StoreManifest
from spark.datasource.dataloss import DataLossError
from spark.datasource.options import OptionError, read_options
from spark.datasource.schema import BY_KIND
from spark.datasource.storedir.files import open_store, store_name
from spark.datasource.storedir.reader import StoreDirReader
from tests.support.storebuilder import STORED_AT_MS, StoreBuilder

GOLDEN = Path(__file__).parents[2] / "conformance" / "golden"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def rows_of(path: Path | str, kind: str = "messages", **options: str) -> list[dict[str, Any]]:
    """Read without Spark: what the reader hands to it, task by task, as often as it likes."""
    reader = StoreDirReader(read_options({"kind": kind, "path": str(path), **options}), BY_KIND[kind])
    tasks = reader.partitions()
    found = [[batch.to_pylist() for batch in reader.read(task)] for task in tasks]
    assert found == [[batch.to_pylist() for batch in reader.read(task)] for task in tasks]
    return [row for batches in found for batch in batches for row in batch]


def expected_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / name).read_text())
    return content


def messages_in(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for topic in content["topics"].values():
        for queue in topic["queues"].values():
            yield from queue["messages"]


def place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["queue_id"], row["queue_offset"]


def facts(row: dict[str, Any]) -> tuple[Any, ...]:
    born, stored = (round(row[name].timestamp() * 1000) for name in ("born_at", "stored_at"))
    digest = hashlib.sha256(row["body"]).hexdigest()
    names = ("message_id", "stored_id", "tag", "reconsume_times", "size")
    return (*(row[name] for name in names), " ".join(row["keys"]), digest, born, stored)


def wanted_facts(message: dict[str, Any]) -> tuple[Any, ...]:
    names = ("offsetMsgId", "tags", "reconsumeTimes", "storeSize")
    return (
        message["msgId"] or message["offsetMsgId"],
        *(message[name] for name in names),
        " ".join((message["keys"] or "").split()),
        message["bodySha256"],
        message["bornTimestamp"],
        message["storeTimestamp"],
    )


def compare(rows: list[dict[str, Any]], messages: Iterator[dict[str, Any]]) -> None:
    found = {place(row): row for row in rows}
    assert len(found) == len(rows)
    for message in messages:
        row = found[message["topic"], message["queueId"], message["queueOffset"]]
        assert facts(row) == wanted_facts(message)


def test_the_golden_store_gives_what_its_broker_answered() -> None:
    content = expected_of("expected.json")
    rows = rows_of(GOLDEN / "store-clean.tar.gz", includeSystem="true")
    compare(rows, messages_in(content))
    assert len(rows) == content["messageCount"]
    assert {row["broker"] for row in rows} == {content["brokerName"]}
    properties = {place(row): dict(row["properties"]) for row in rows}
    for message in messages_in(content):
        found = properties[message["topic"], message["queueId"], message["queueOffset"]]
        assert found.items() <= message["properties"].items()
        assert {"TAGS", "UNIQ_KEY", "KEYS", "WAIT"}.isdisjoint(found)


def test_what_a_crash_left_out_of_the_queues_is_found_in_the_log() -> None:
    content = expected_of("expected-crashed.json")
    rows = rows_of(GOLDEN / "store-crashed.tar.gz", includeSystem="true")
    compare(rows, messages_in(content))
    assert len(rows) == content["messageCount"]


def test_a_damaged_record_is_left_out_and_what_lies_behind_it_is_not() -> None:
    crashed = {place(row): row for row in rows_of(GOLDEN / "store-crashed.tar.gz", includeSystem="true")}
    torn = {place(row): row for row in rows_of(GOLDEN / "store-torn.tar.gz", includeSystem="true")}
    # Its own broker loses eight; all but the one with the damaged body are valid.
    assert crashed.keys() - torn.keys() == {("GoldenNormal", 0, 349)}
    assert all(crashed[key] == row for key, row in torn.items())


def test_committed_offsets_and_what_is_not_consumed() -> None:
    content = expected_of("expected.json")
    offsets = rows_of(GOLDEN / "store-clean.tar.gz", "offsets", includeSystem="true")
    committed = {
        (row["topic"], row["group"], row["queue_id"]): row["committed_offset"]
        for row in offsets
        if row["committed_offset"] is not None
    }
    from gantry.storeformat.configjson import parse_config

    table = parse_config(content["allConsumerOffset"].encode())["offsetTable"]
    wanted = {
        (key.partition("@")[0], key.partition("@")[2], int(number)): offset
        for key, queues in table.items()
        for number, offset in queues.items()
    }
    assert committed == wanted
    for row in offsets:
        queue = content["topics"].get(row["topic"], {"queues": {}})["queues"].get(str(row["queue_id"]))
        if queue is not None:
            assert (row["min_offset"], row["max_offset"]) == (queue["min"], queue["max"])
    backlog = rows_of(GOLDEN / "store-clean.tar.gz", "backlog", includeSystem="true")
    assert len(backlog) == sum(row["lag"] or 0 for row in offsets)
    by_offset = {message["commitLogOffset"]: message for message in messages_in(content)}
    for row in backlog:
        message = by_offset[row["physical_offset"]]
        assert (row["queue_offset"], row["size"]) == (message["queueOffset"], message["storeSize"])
        assert round(row["stored_at"].timestamp() * 1000) == message["storeTimestamp"]


def built(root: Path, builder: StoreBuilder) -> Path:
    builder.save(OsFileSystem(), str(root))
    config = root / "config" / "topics.json"
    counts: dict[str, int] = {}
    for topic, queue_id in builder.units:
        counts[topic] = max(counts.get(topic, 0), 1 + queue_id)
    queues = {topic: {"readQueueNums": count, "writeQueueNums": count, "perm": 6} for topic, count in counts.items()}
    config.write_text(json.dumps({"topicConfigTable": queues}))
    return root


def filled(messages: int = 20, **settings: Any) -> StoreBuilder:
    builder = StoreBuilder(**settings)
    for number in range(messages):
        builder.add("T", number % 2, f"body {number}".encode(), properties={"TAGS": "AB"[number % 2], "KEYS": "k"})
    return builder


def bodies(rows: list[dict[str, Any]]) -> list[bytes]:
    return sorted((row["body"] for row in rows), key=lambda body: int(body.split()[1]))


ALL = [f"body {number}".encode() for number in range(20)]


def test_queues_are_split_into_tasks_and_put_together_from_files(tmp_path: Path) -> None:
    store = built(tmp_path / "broker-x" / "store", filled())
    rows = rows_of(store, maxRowsPerPartition="3")
    assert bodies(rows) == ALL
    assert sorted(row["queue_offset"] for row in rows if row["queue_id"] == 1) == list(range(10))
    assert {row["broker"] for row in rows} == {"broker-x"}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"from": "8"}, ALL[16:]),
        ({"from": "2", "to": "4"}, ALL[4:8]),
        ({"to": "earliest"}, []),
        ({"from": "2023-11-14T22:13:25.000Z", "to": "2023-11-14T22:13:28Z"}, ALL[4:7]),
        ({"topics": "T"}, ALL),
    ],
)
def test_from_and_to(tmp_path: Path, options: dict[str, str], wanted: list[bytes]) -> None:
    assert STORED_AT_MS == 1_700_000_000_000  # 22:13:20; the first message is a second later.
    assert bodies(rows_of(built(tmp_path / "store", filled()), **options)) == wanted


def test_what_retention_removed_is_not_there(tmp_path: Path) -> None:
    builder = filled()
    builder.first_file = 1024
    gone = [record for record in builder.records if record.offset < 1024]
    assert gone
    rows = rows_of(built(tmp_path / "store", builder))
    assert bodies(rows) == ALL[len(gone) :]
    # An explicit start that is gone is a loss, as with brokers.
    with pytest.raises(DataLossError, match=r"queue 0: expected offset 0, found offset .*failOnDataLoss"):
        rows_of(tmp_path / "store", **{"from": "0"})
    assert bodies(rows_of(tmp_path / "store", **{"from": "0", "failOnDataLoss": "false"})) == ALL[len(gone) :]
    offsets = rows_of(tmp_path / "store", "offsets")
    assert [(row["group"], row["error"]) for row in offsets][:1] == [("g", offsets[0]["error"])]
    assert offsets[0]["min_offset"] == min(
        r.queue_offset for r in builder.records if r.offset >= 1024 and not r.queue_id
    )


@pytest.mark.parametrize("has_abort", [True, False])
def test_without_its_queues_a_store_is_read_by_its_log(tmp_path: Path, *, has_abort: bool) -> None:
    builder = filled()
    builder.abort = has_abort
    store = built(tmp_path / "store", builder)
    queues = sorted((store / layout.CONSUME_QUEUE_DIR).rglob("*"), reverse=True)
    for path in queues:
        if path.is_file():
            path.unlink()
        elif not has_abort:
            path.rmdir()
    if not has_abort:
        (store / layout.CONSUME_QUEUE_DIR).rmdir()
    (store / layout.CHECKPOINT_FILE).unlink()
    assert bodies(rows_of(store, maxRowsPerPartition="4")) == ALL


def test_messages_of_a_deleted_topic_are_not_found_again(tmp_path: Path) -> None:
    builder = filled()
    builder.add("U", 0, b"body 20")
    builder.abort, builder.manifest = True, StoreManifest(record_checksum_from=0)
    store = built(tmp_path / "store", builder)
    deletion = {"topics": {"T": {"log_end": len(builder.log), "deleted_at_ms": builder.stored_at_ms}}}
    (store / layout.DELETIONS_FILE).write_text(json.dumps(deletion))
    for path in sorted((store / layout.CONSUME_QUEUE_DIR / "T").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert bodies(rows_of(store)) == [b"body 20"]


def test_any_flipped_bit_of_a_record_loses_that_record_alone(tmp_path: Path) -> None:
    for number, bit in enumerate(range(3, 8 * 150, 97)):
        builder = filled()
        builder.manifest = StoreManifest(record_checksum_from=0)
        damaged = builder.records[5]
        builder.flip(8 * damaged.offset + bit % (8 * len(damaged.data)))
        rows = rows_of(built(tmp_path / str(number) / "store", builder))
        assert bodies(rows) == [body for body in ALL if body != b"body 5"]


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz", ".zip"])
def test_archives(tmp_path: Path, ending: str) -> None:
    store = built(tmp_path / "a" / "broker-x" / "store", filled())
    archive = tmp_path / f"backup{ending}"
    if ending == ".zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for path in store.rglob("*"):
                zipped.write(path, path.relative_to(tmp_path / "a"))
    else:
        with tarfile.open(archive, "w:gz" if ending != ".tar" else "w") as tar:
            tar.add(store, "broker-x/store")
    rows = rows_of(archive)
    assert bodies(rows) == ALL
    assert {row["broker"] for row in rows} == {"backup"}


def test_an_archive_that_reaches_outside_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as tar:
        info = tarfile.TarInfo("store/commitlog/../../../../evil")
        tar.addfile(info)
    with pytest.raises(StoreFileError, match=r"evil\.tar"):
        rows_of(archive)


def test_what_is_no_store_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("text")
    (tmp_path / "bad.zip").write_text("text")
    built(tmp_path / "two" / "a" / "store", filled())
    built(tmp_path / "two" / "b" / "store", filled())
    for name, words in (("nothing", "no such folder"), ("some.txt", "neither a folder"), ("two", "several stores")):
        with pytest.raises(NotAStoreError, match=words):
            rows_of(tmp_path / name)
    with pytest.raises(StoreFileError, match="can't be unpacked"):
        rows_of(tmp_path / "bad.zip")
    with pytest.raises(OptionError, match="is no topic"):
        rows_of(tmp_path / "two" / "a", topics="U")
    with pytest.raises(OptionError, match="only brokers"):
        rows_of(tmp_path / "two" / "a", "groups")


def test_readers_share_a_store_and_brokers_have_it_alone(tmp_path: Path) -> None:
    store = built(tmp_path / "store", filled())
    with open_store(str(store)), open_store(str(store)), pytest.raises(Exception, match="lock"):
        OsFileSystem().lock(str(store / layout.LOCK_FILE))
    held = OsFileSystem().lock(str(store / layout.LOCK_FILE))
    with pytest.raises(StoreInUseError):
        rows_of(store)
    held.release()
    assert len(rows_of(store)) == 20


@pytest.mark.parametrize(
    ("path", "name"),
    [("/x/broker-a/store/", "broker-a"), ("/x/backup.tar.gz", "backup"), ("file:///x/y.zip", "y"), ("/x/old", "old")],
)
def test_a_store_is_called_after_its_place(path: str, name: str) -> None:
    assert store_name(path) == name


def test_spark_reads_it_with_what_it_asks_for_pushed_down(spark: SparkSession, tmp_path: Path) -> None:
    store = built(tmp_path / "broker-x" / "store", filled())
    pushed = spark.read.format("gantry").option("path", str(store)).option("pushdown", "true")
    assert pushed.option("kind", "messages").load().count() == 20
    found = pushed.load().where("tag = 'A' and queue_offset >= 3 and stored_at < timestamp'2023-11-14 22:13:35Z'")
    assert sorted(row.queue_offset for row in found.select("queue_offset").collect()) == [3, 4, 5, 6]
    assert pushed.load().where("queue_id = 1").selectExpr("max(size)", "count(*)").collect()[0][1] == 10
    golden = pushed.option("kind", "backlog").option("path", str(GOLDEN / "store-clean.tar.gz"))
    assert (
        golden.load().where("`group` = 'GID_Golden_Tag'").groupBy("topic").count().collect()[0]["topic"]
        == "GoldenNormal"
    )
