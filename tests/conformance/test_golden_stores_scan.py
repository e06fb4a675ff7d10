"""Stores that Apache RocketMQ wrote, read record by record and verified against its broker's answers."""

import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from gantry.model import sysflag
from gantry.model.address import Address
from gantry.model.message import CrcState, StoredMessage
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.configjson import parse_config, read_config
from gantry.storeformat.findings import Result
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verify import verify

GOLDEN = Path(__file__).parent / "golden"
TORN_OFFSET, TORN_BYTES = 1_398_989, 403


def expected_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / name).read_text())
    return content


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    for name in ("clean", "crashed", "torn"):
        with tarfile.open(GOLDEN / f"store-{name}.tar.gz") as archive:
            archive.extractall(folder / name, filter="data")
    return folder


@pytest.fixture(params=["clean", "crashed", "torn"])
def reader(request: pytest.FixtureRequest, stores: Path) -> Iterator[StoreReader]:
    with StoreReader(OsFileSystem(), str(stores / request.param / "store")) as opened:
        yield opened


@pytest.fixture
def clean(stores: Path) -> Iterator[StoreReader]:
    with StoreReader(OsFileSystem(), str(stores / "clean" / "store")) as opened:
        yield opened


def java_host(text: str) -> Address:
    """Read an address as Java writes it: no brackets, IPv6 groups not shortened."""
    ip, _, port = text.rpartition(":")
    return Address(str(ip_address(ip)), int(port))


def all_expected(content: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {
        message["commitLogOffset"]: message
        for topic in content["topics"].values()
        for queue in topic["queues"].values()
        for message in queue["messages"]
    }


def seen(message: StoredMessage) -> dict[str, Any]:
    """Return a record's fields as expected.json names them."""
    body = message.inflated_body()
    return {
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.size_bytes,
        "topic": message.topic,
        "queueId": message.queue_id,
        "flag": message.flag,
        "sysFlag": message.sys_flag & ~sysflag.COMPRESSED,
        "bodyCRC": message.body_crc,
        "bornTimestamp": message.born_at_ms,
        "storeTimestamp": message.stored_at_ms,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "msgId": message.properties.get("UNIQ_KEY"),
        "offsetMsgId": message.stored_id,
        "tags": message.tag,
        "keys": message.properties.get("KEYS"),
        "bodyLength": len(body),
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "properties": message.properties,
    }


def test_every_record_of_the_clean_store_is_as_the_broker_said(clean: StoreReader) -> None:
    content = expected_of("expected.json")
    expected = all_expected(content)
    scan = clean.scan()
    versions = set()
    for record in scan:
        message = record.message()
        assert message.crc is CrcState.BODY_ONLY
        wanted = expected.pop(record.offset)
        wanted["bornHost"], wanted["storeHost"] = java_host(wanted["bornHost"]), java_host(wanted["storeHost"])
        assert seen(message) == wanted
        versions.add(message.version)
    assert expected == {}
    assert (scan.damages, scan.end) == ([], content["commitLogMaxOffset"])
    assert clean.log_start == content["commitLogMinOffset"]
    assert versions == {1, 2}


def test_records_are_the_bytes_the_broker_sent(clean: StoreReader) -> None:
    for case in expected_of("expected.json")["viewById"]:
        record = clean.record(case["commitLogOffset"])
        assert record is not None
        data = bytes(record.memory[record.at : record.at + record.head.size_bytes])
        assert (len(data), hashlib.sha256(data).hexdigest()) == (case["recordLength"], case["recordSha256"])


def test_every_queue_of_the_clean_store_is_as_the_broker_said(clean: StoreReader) -> None:
    topics = expected_of("expected.json")["topics"]
    for queue in clean.queues():
        wanted = topics[queue.topic]["queues"][str(queue.queue_id)]
        units = clean.units(queue)
        found = [(placed.queue_offset, placed.unit.physical_offset, placed.unit.size_bytes) for placed in units]
        assert found == [
            (message["queueOffset"], message["commitLogOffset"], message["storeSize"]) for message in wanted["messages"]
        ]
        assert (units.min_offset or 0, units.max_offset) == (wanted["min"], wanted["max"])


def test_every_key_query_is_answered_as_the_broker_did(clean: StoreReader) -> None:
    for case in expected_of("expected.json")["queryMessage"]:
        found = clean.find(case["topic"], case["key"])
        if case["code"] == 0:
            assert found == case["commitLogOffsets"], case
        else:
            assert found == [], case


def test_offset_tables_are_read(clean: StoreReader) -> None:
    content = expected_of("expected.json")
    for name, answer in (("consumerOffset", "allConsumerOffset"), ("delayOffset", "allDelayOffset")):
        found = read_config(clean.files, clean.path("config", f"{name}.json"), parse_config)
        assert found is not None
        # The answer has integer keys without quotes; the file may be slightly newer.
        assert set(found.content["offsetTable"]) >= set(parse_config(content[answer].encode())["offsetTable"])


def test_crashed_store_holds_everything_that_was_recovered(stores: Path) -> None:
    content = expected_of("expected-crashed.json")
    with StoreReader(OsFileSystem(), str(stores / "crashed" / "store")) as crashed:
        scan = crashed.scan()
        found = {record.offset: record.message() for record in scan}
        assert (scan.damages, scan.end, len(found)) == ([], content["commitLogMaxOffset"], content["messageCount"])
        for offset, wanted in all_expected(content).items():
            assert found[offset].properties == wanted["properties"]
            assert hashlib.sha256(found[offset].inflated_body()).hexdigest() == wanted["bodySha256"]


def test_torn_store_loses_one_record_where_the_broker_cut_eight(stores: Path) -> None:
    crashed = expected_of("expected-crashed.json")
    torn = expected_of("expected-torn.json")
    assert crashed["messageCount"] - torn["messageCount"] == 8
    with StoreReader(OsFileSystem(), str(stores / "torn" / "store")) as opened:
        scan = opened.scan()
        good = {record.offset for record in scan if record.crc.is_good}
    assert len(good) == crashed["messageCount"] - 1
    assert TORN_OFFSET not in good
    assert [(damage.start, damage.size_bytes) for damage in scan.damages] == [(TORN_OFFSET, TORN_BYTES)]


def test_verification(reader: StoreReader) -> None:
    report = verify(reader)
    name = Path(reader.root).parent.name
    results = {"clean": Result.OK, "crashed": Result.NEEDS_RECOVERY, "torn": Result.DAMAGED}
    assert report.result is results[name]
    if name == "clean":
        assert report.findings == []
        assert (report.records, report.units, report.index_files) == (2235, 2235, 3)
    if name == "torn":
        problems = [finding for finding in report.findings if finding.severity.value == "problem"]
        assert [(found.kind, found.offset, found.size_bytes) for found in problems] == [
            ("commitlog", TORN_OFFSET, TORN_BYTES)
        ]


def gantry(*arguments: str) -> subprocess.CompletedProcess[str]:
    start = "from gantry.cli.main import main; main()"
    command = [sys.executable, "-c", start, "store", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("clean", 0, ["ok"]),
        ("crashed", 0, ["needs recovery"]),
        ("torn", 1, ["damaged", str(TORN_OFFSET), f"{TORN_BYTES} bytes", "needs recovery"]),
    ],
)
def test_the_command_prints_kind_place_and_count_of_findings(
    stores: Path, name: str, code: int, words: list[str]
) -> None:
    done = gantry("verify", str(stores / name / "store"))
    assert (done.returncode, done.stderr) == (code, "")
    for word in words:
        assert word in done.stdout
    assert ("needs recovery" in done.stdout) is (name != "clean")


def test_the_dump_has_every_message(stores: Path) -> None:
    expected = all_expected(expected_of("expected.json"))
    done = gantry("dump", "--json", str(stores / "clean" / "store"))
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["physical_offset"] for row in rows] == sorted(expected)
    for row in rows:
        wanted = expected[row["physical_offset"]]
        names = ("topic", "queueId", "queueOffset", "storeSize", "sysFlag", "offsetMsgId", "tags", "properties")
        found = ("topic", "queue_id", "queue_offset", "size", "sys_flag", "stored_id", "tag", "properties")
        assert [row[name] for name in found] == [wanted[name] for name in names]
        assert row["crc_ok"] is True
