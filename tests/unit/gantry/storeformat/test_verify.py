from collections.abc import Callable

import pytest

from gantry.storeformat import findings, layout
from gantry.storeformat.findings import Report, Result, Severity
from gantry.storeformat.manifest import StoreManifest
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verify import verify
from tests.support.memfilesystem import MemFileSystem
from tests.support.storebuilder import StoreBuilder
from tests.support.virtualtime import FakeClock


def stored(count: int = 10) -> StoreBuilder:
    store = StoreBuilder()
    store.manifest = StoreManifest(record_checksum_from=0)
    for number in range(count):
        store.add(queue_id=number % 2)
    return store


def verified(store: StoreBuilder, change: Callable[[MemFileSystem], None] = lambda files: None) -> Report:
    files = MemFileSystem(FakeClock())
    store.save(files)
    change(files)
    with StoreReader(files, "/store") as reader:
        return verify(reader)


def kinds(report: Report, severity: Severity = Severity.PROBLEM) -> set[str]:
    return {finding.kind for finding in report.findings if finding.severity is severity}


def test_an_intact_store_has_no_findings() -> None:
    report = verified(stored())
    assert (report.result, report.findings, report.problems) == (Result.OK, [], 0)
    assert (report.records, report.queues, report.units, report.index_files, report.index_entries) == (10, 2, 10, 1, 30)
    assert (report.min_offset, report.record_checksum_from) == (0, 0)


def test_progress_is_reported() -> None:
    store = StoreBuilder(log_file_bytes=1 << 20, queue_file_bytes=40_000, slots=2000)
    for _ in range(2100):
        store.add(properties={"UNIQ_KEY": "U"})
    files = MemFileSystem(FakeClock())
    store.save(files)
    told: list[tuple[int, int]] = []
    with StoreReader(files, "/store") as reader:
        verify(reader, on_progress=lambda done, total: told.append((done, total)))
    assert len(told) == 2
    assert all(0 < done < total == 1 << 20 for done, total in told)


def test_after_a_crash_the_store_needs_recovery() -> None:
    store = stored()
    store.abort = True
    store.units[("T", 1)] = store.units[("T", 1)][:-40]
    del store.units[("T", 0)]
    last = store.records[-1]
    torn = store.log[last.offset : last.offset + 50]
    store.log += torn
    report = verified(store)
    assert report.result is Result.NEEDS_RECOVERY
    assert kinds(report, Severity.NOTE) == {"commitlog", "consumequeue", "index", "abort"}
    assert any("needs recovery" in finding.text for finding in report.findings)
    assert any("units not written yet: 7" in finding.text for finding in report.findings)


def test_files_that_a_crash_left_empty_are_no_problem() -> None:
    store = stored()
    store.abort = True

    def crash(files: MemFileSystem) -> None:
        for path in (
            "commitlog/00000000001073741824",
            "consumequeue/T/0/00000000000006000000",
            "index/20990101000000000",
        ):
            files.create(f"/store/{path}", 0).close()

    assert verified(store, crash).result is Result.NEEDS_RECOVERY


def test_an_empty_index_file_without_a_crash_is_a_problem() -> None:
    report = verified(stored(), lambda files: files.create("/store/index/20990101000000000", 0).close())
    assert (report.result, kinds(report)) == (Result.DAMAGED, {"index"})


def test_damage_is_named_with_offset_and_bytes() -> None:
    store = stored()
    victim = store.records[4]
    store.flip((victim.offset + 90) * 8)
    report = verified(store)
    assert report.result is Result.DAMAGED
    (found,) = report.findings
    assert (found.kind, found.offset, found.size_bytes) == ("commitlog", victim.offset, len(victim.data))
    assert "topic T, queue 0, queue offset 2" in found.text
    assert report.damaged_bytes == len(victim.data)


@pytest.mark.parametrize("abort", [False, True])
def test_damaged_last_record_that_was_dispatched_is_a_problem(abort: bool) -> None:
    store = stored()
    last = store.records[-1]
    store.flip((last.offset + 90) * 8)
    store.abort = abort
    report = verified(store)
    assert report.result is Result.DAMAGED
    found = next(finding for finding in report.findings if finding.kind == "commitlog")
    assert (found.offset, found.size_bytes) == (last.offset, len(last.data))


def test_the_mark_says_that_the_log_was_longer() -> None:
    store = stored()
    last = store.records[-1]
    store.manifest = StoreManifest(record_checksum_from=0, clean_stop_offset=last.end + 100)
    report = verified(store)
    (found,) = report.findings
    assert (found.kind, found.offset, found.size_bytes) == ("commitlog", last.end, 100)


def test_remains_of_an_older_cut_are_a_note() -> None:
    store = stored()
    store.log += b"leftover bytes"
    report = verified(store)
    assert report.result is Result.OK
    assert kinds(report, Severity.NOTE) == {"commitlog"}
    assert report.findings[0].size_bytes == 14


def test_older_records_and_their_units_are_a_note() -> None:
    store = StoreBuilder(log_file_bytes=8192)
    for _ in range(6):
        store.add()
    old = bytes(store.log)
    del store.log[store.records[2].offset :]
    del store.units[("T", 0)][2 * 20 :]
    stale_units = [layout.encode_unit(record.offset, len(record.data), 65) for record in store.records[3:6]]
    store.add(body=b"a new one", after_ms=60_000)
    store.units[("T", 0)] += b"".join(stale_units)
    store.log += old[len(store.log) :]
    del store.index[6:]
    report = verified(store)
    assert report.result is Result.OK, report.findings
    assert kinds(report, Severity.NOTE) == {"commitlog", "consumequeue"}


def change_unit(store: StoreBuilder, number: int, **changes: int) -> None:
    units = store.units[("T", 0)]
    unit = layout.decode_unit(units, number * 20)._replace(**changes)
    units[number * 20 : number * 20 + 20] = layout.encode_unit(*unit)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"physical_offset": 7}, "no record starts"),
        ({"size_bytes": 7}, "says 7 bytes"),
        ({"tags_code": 7}, "tags code 7"),
    ],
)
def test_wrong_units_are_named(changes: dict[str, int], reason: str) -> None:
    store = stored()
    change_unit(store, 2, **changes)
    (found,) = verified(store).findings
    assert (found.kind, found.offset, found.size_bytes) == ("consumequeue", 2, 20)
    assert reason in found.text


def test_units_with_an_extension_address_pass() -> None:
    store = stored()
    change_unit(store, 2, tags_code=-(1 << 31) - 5)
    assert verified(store).result is Result.OK


def test_units_into_a_missing_file_are_part_of_its_loss() -> None:
    report = verified(stored(20), lambda files: files.remove(f"/store/commitlog/{layout.file_name(1024)}"))
    (found,) = (finding for finding in report.findings if finding.severity is Severity.PROBLEM)
    assert (found.kind, found.offset, found.size_bytes) == ("commitlog", 1024, 1024)


def test_units_of_other_queues_or_places_are_named() -> None:
    store = stored()
    other = store.records[1]
    same_queue = store.records[2]
    change_unit(store, 3, physical_offset=other.offset, size_bytes=len(other.data))
    change_unit(store, 4, physical_offset=same_queue.offset, size_bytes=len(same_queue.data))
    report = verified(store)
    assert "a record of T/1" in report.findings[0].text
    assert "queue offset 1" in report.findings[1].text


def test_units_that_are_missing_are_named() -> None:
    store = stored()
    store.units[("T", 0)] = store.units[("T", 0)][:-40]
    (found,) = verified(store).findings
    assert (found.kind, found.offset, found.size_bytes) == ("consumequeue", 3, 40)
    store = stored()
    store.units[("T", 0)][:20] = layout.FILLER_UNIT
    (found,) = verified(store).findings
    assert "begin with 1, its records with 0" in found.text


def test_units_beyond_the_log_are_named() -> None:
    store = stored()
    store.units[("T", 0)] += layout.encode_unit(len(store.log) + 500, 100, 0)
    report = verified(store)
    assert kinds(report) == {"commitlog", "consumequeue"}


def test_queue_files_of_odd_sizes_and_missing_ones_are_named() -> None:
    store = StoreBuilder(queue_file_bytes=40)
    for _ in range(6):
        store.add()

    def change(files: MemFileSystem) -> None:
        files.remove(f"/store/consumequeue/T/0/{layout.file_name(40)}")
        files.write(f"/store/consumequeue/T/0/{layout.file_name(80)}", bytes(30))

    texts = [finding.text for finding in verified(store, change).findings]
    assert texts[0] == "the file has 30 bytes, the queue's first file 40"
    assert texts[1] == "the file with units 2 to 3 is missing"


def test_records_of_a_deleted_topic_are_a_note_and_its_offsets_may_restart() -> None:
    store = stored()
    for _ in range(3):
        store.add("Gone")
    del store.units[("Gone", 0)]
    report = verified(store)
    assert report.result is Result.OK
    assert "was the topic deleted?" in report.findings[0].text
    del store.units[("T", 1)]
    store.add(queue_id=1)
    report = verified(store)
    assert report.result is Result.OK
    assert len(report.findings) == 1


def test_transactional_and_delayed_records() -> None:
    store = StoreBuilder(log_file_bytes=8192)
    store.add("RMQ_SYS_TRANS_HALF_TOPIC")
    store.add("SCHEDULE_TOPIC_XXXX", properties={"DELAY": "3", "TAGS": "A"})
    units = store.units[("SCHEDULE_TOPIC_XXXX", 0)]
    units[12:20] = (store.stored_at_ms + 10_000).to_bytes(8)
    store.add("T", sys_flag=0x4)
    store.units[("T", 0)].clear()
    store.add("%LMQ%x")
    assert verified(store).result is Result.OK
    units[12:20] = (5).to_bytes(8)
    assert "tags code 5" in verified(store).findings[0].text


def test_expired_records_are_no_problem() -> None:
    store = StoreBuilder(queue_file_bytes=40)
    for _ in range(12):
        store.add()
    store.first_file = 1024
    assert verified(store).result is Result.OK


@pytest.mark.parametrize(
    ("number", "changes", "reason"),
    [
        (3, {"key_hash": 12345}, "chained"),
        (3, {"key_hash": -1}, "negative hash"),
        (3, {"previous": 3}, "chained to entry 3"),
        (3, {"physical_offset": 7}, "no record starts"),
        (3, {"physical_offset": 10**6}, "behind the end"),
    ],
)
def test_wrong_index_entries_are_named(number: int, changes: dict[str, int], reason: str) -> None:
    store = stored()

    def change(files: MemFileSystem) -> None:
        (name,) = files.list_dir("/store/index")
        data = bytearray(files.read(f"/store/index/{name}"))
        at = layout.index_entry_position(store.slots, number)
        entry = layout.IndexEntry._make(layout.INDEX_ENTRY.unpack_from(data, at))
        layout.INDEX_ENTRY.pack_into(data, at, *entry._replace(**changes))
        files.write(f"/store/index/{name}", bytes(data))

    report = verified(store, change)
    assert kinds(report) == {"index"}
    assert any(reason in finding.text for finding in report.findings), report.findings
    assert report.findings[0].size_bytes == 20


def test_entry_of_another_record_and_wrong_slots_are_named() -> None:
    store = stored()
    key_hash, _, stored_at_ms = store.index[0]
    store.index[0] = (key_hash, store.records[3].offset, stored_at_ms)
    assert "which no key of the record" in verified(store).findings[0].text

    def change(files: MemFileSystem) -> None:
        (name,) = files.list_dir("/store/index")
        data = bytearray(files.read(f"/store/index/{name}"))
        data[40 : 40 + 4 * store.slots] = bytes(4 * store.slots)
        files.write(f"/store/index/{name}", bytes(data))

    report = verified(stored(), change)
    assert all("begins its chain with entry 0" in finding.text for finding in report.findings)


def test_index_files_of_odd_sizes_and_counts_are_named() -> None:
    report = verified(stored(), lambda files: files.write("/store/index/20231114221320001", b"x" * 99))
    assert "99 bytes fit no index file" in report.findings[0].text
    report = verified(stored(), lambda files: files.write("/store/index/20231114221320001", b"\1" * (40 + 84)))
    assert "the header counts" in report.findings[0].text
    assert verified(stored(), lambda files: files.write("/store/index/other", b"x")).result is Result.OK


def test_checkpoint() -> None:
    path = "/store/checkpoint"
    assert kinds(verified(stored(), lambda files: files.remove(path)), Severity.NOTE) == {"checkpoint"}
    assert verified(StoreBuilder(), lambda files: files.remove(path)).findings == []
    assert kinds(verified(stored(), lambda files: files.write(path, b"short"))) == {"checkpoint"}
    negative = layout.encode_checkpoint(layout.Checkpoint(-1))
    assert (
        "physic_msg_timestamp is -1" in verified(stored(), lambda files: files.write(path, negative)).findings[0].text
    )
    ahead = layout.encode_checkpoint(layout.Checkpoint(1 << 60))
    assert "later than the last record" in verified(stored(), lambda files: files.write(path, ahead)).findings[0].text


def test_configuration() -> None:
    config = "/store/config"
    assert kinds(verified(stored(), lambda files: files.write(f"{config}/x.json", b""))) == {"config"}
    assert kinds(verified(stored(), lambda files: files.write(f"{config}/x.json", b"[]"))) == {"config"}
    assert verified(stored(), lambda files: files.write(f"{config}/timermetrics", b"?")).result is Result.OK

    def with_backup(files: MemFileSystem) -> None:
        files.write(f"{config}/x.json", b"")
        files.write(f"{config}/x.json.bak", b"{}")

    report = verified(stored(), with_backup)
    assert report.result is Result.OK
    assert "is not used (is empty); a broker reads /store/config/x.json.bak" in report.findings[0].text
    report = verified(stored(), lambda files: files.write(f"{config}/gantry.json", b"{"))
    assert kinds(report) == {"mark"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is missing"),
        (b"{", "is not JSON"),
        (b'{"offsetTable":{"T@g":{0:"x"}}}', '"T@g": queue 0 is "x"'),
    ],
)
def test_a_configuration_file_that_its_backup_replaces_is_shown(content: bytes | None, reason: str) -> None:
    path = "/store/config/consumerOffset.json"

    def change(files: MemFileSystem) -> None:
        files.write(f"{path}.bak", b'{"offsetTable":{"T@g":{0:4}}}')
        files.remove(path)
        if content is not None:
            files.write(path, content)

    report = verified(stored(), change)
    assert report.result is Result.OK
    assert [(finding.kind, finding.path) for finding in report.findings] == [("config", path)]
    assert reason in report.findings[0].text
    report = verified(stored(), lambda files: files.write(f"{path}.broken", b"{"))
    assert [finding.path for finding in report.findings] == [f"{path}.broken"]


def test_log_files_of_odd_sizes_are_named() -> None:
    def change(files: MemFileSystem) -> None:
        path = f"/store/commitlog/{layout.file_name(0)}"
        files.write(path, files.read(path)[:-100])

    report = verified(stored(20), change)
    assert report.findings[0].text == "the file has 924 bytes, the others have 1024"
    assert report.problems >= 2


def test_the_number_of_findings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "FINDINGS_PER_KIND_MAX", 2)
    store = stored()
    for number in range(5):
        change_unit(store, number, tags_code=7)
    report = verified(store)
    assert (len(report.findings), report.problems, report.left_out) == (2, 5, {"consumequeue": 3})
