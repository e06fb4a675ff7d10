"""A restart does not make up for a failed flush: memory may show bytes that the disk does not have.

The memory file system behaves as Linux does: after a failed sync the bytes stay readable and count as written.
"""

import errno
import os
from pathlib import Path

import pytest

from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.rng import Rng
from gantry.storeformat.findings import Severity
from gantry.storeformat.layout import FLUSH_NOTE_FILE, file_name
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verify import verify
from services.broker.store.durability import derivedsync
from services.broker.store.errors import UnsyncedStoreError
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus, RecoveryReport
from services.broker.store.settings import FlushDiskType
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, ROOT, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock

FIRST_SEED = int(os.environ["GANTRY_TEST_SEED"])  # tests/conftest.py


class Disk:
    """A file system in memory whose syncs fail if `broken` is part of their kind and path, such as "sync /store/a"."""

    def __init__(self, mode: FlushDiskType = FlushDiskType.SYNC_FLUSH) -> None:
        self.clock = FakeClock()
        self.settings = small_settings(flush_disk_type=mode)
        self.files = MemFileSystem(self.clock, on_operation=self._operate)
        self.broken = ""
        self.acknowledged: dict[int, bytes] = {}
        self.store: MessageStore

    def _operate(self, operation: str, path: str) -> None:
        if self.broken and operation in {"sync", "syncfs"} and self.broken in f"{operation} {path}":
            raise OSError(errno.EIO, "Input/output error", path)

    def start(self) -> RecoveryReport:
        self.store = make_store(self.files, self.clock, self.settings)
        return self.store.start()

    def kill(self) -> None:
        """End the process; the page cache stays as it is."""
        self.files.locked.clear()

    def cut_power(self) -> None:
        self.files = self.files.crash_clone(Rng(0))
        self.files.on_operation = self._operate

    def put(self, count: int) -> None:
        """Put messages; those that the store reports as flushed, or with ASYNC_FLUSH as written, are acknowledged."""
        for _ in range(count):
            # Longer than some pages, so that the next message does not write the lost bytes of a page again.
            body = b"message %d" % len(self.acknowledged) + bytes(500)
            result = self.store.put("T", 0, body, b"UNIQ_KEY\x01k\x02", born_at_ms=1, born_host=HOST)
            if result.status is not PutStatus.OK:
                assert self.broken, result
                return
            self.store.request_flush()
            self.store.dispatch()
            if result.next_offset <= self.store.confirm_offset:
                self.acknowledged[result.queue_offset] = body

    def bodies(self) -> dict[int, bytes]:
        return {index: body for index, (_, body, _) in read_queue(self.store, "T", 0).items()}


def test_pages_in_memory_that_the_disk_lacks_are_cut_and_never_written_to():
    disk = Disk()
    disk.start()
    disk.put(5)
    disk.broken = "commitlog"
    disk.put(1)
    assert len(disk.acknowledged) == 5
    assert not disk.store.stop()
    disk.kill()
    disk.broken = ""
    report = disk.start()
    assert disk.bodies() == disk.acknowledged
    assert "can't be flushed" in report.flush_failed
    assert report.acknowledged_lost is None
    assert report.log_end_offset == 4096, "the log goes on in a new file"
    disk.put(5)
    disk.cut_power()
    assert disk.start().flush_failed == ""
    assert disk.bodies() == disk.acknowledged
    assert len(disk.acknowledged) == 10


def test_a_failure_that_could_not_be_noted_is_not_forgiven_either():
    disk = Disk()
    disk.start()
    disk.put(5)
    disk.broken = "/"
    disk.put(1)
    disk.kill()
    disk.broken = ""
    disk.files.write(f"{ROOT}/config/gantry-flush", b"")
    assert disk.start().flush_failed == ""
    assert disk.bodies() == disk.acknowledged
    disk.put(5)
    disk.cut_power()
    disk.start()
    assert disk.bodies() == disk.acknowledged


def test_with_async_flush_lost_acknowledged_messages_are_reported():
    disk = Disk(FlushDiskType.ASYNC_FLUSH)
    disk.start()
    disk.put(5)
    end = disk.store.max_physical_offset
    disk.broken = "commitlog"
    disk.put(1)
    assert len(disk.acknowledged) == 6
    lost_end = disk.store.max_physical_offset
    disk.kill()
    disk.broken = ""
    report = disk.start()
    assert report.acknowledged_lost == (end, lost_end)
    assert disk.bodies() == {index: disk.acknowledged[index] for index in range(5)}


@pytest.mark.parametrize("broken", ["consumequeue", "syncfs"])
def test_queues_that_could_not_be_flushed_are_built_again(broken, monkeypatch):
    if broken == "syncfs":
        monkeypatch.setattr(derivedsync, "SYNCED_EACH_MAX", 0)
    disk = Disk()
    disk.start()
    disk.put(5)
    disk.clock.advance(20_000)
    disk.store.maintain()
    disk.put(10)
    disk.broken = broken
    disk.clock.advance(20_000)
    disk.store.maintain()
    disk.store.maintain()
    assert "derived files can't be flushed" in disk.store.state().reason
    assert not disk.store.stop()
    disk.kill()
    disk.broken = ""
    report = disk.start()
    assert report.units_mended > 0
    assert "derived files can't be flushed" in report.flush_failed
    disk.cut_power()
    disk.start()
    assert disk.bodies() == disk.acknowledged
    assert len(disk.acknowledged) == 15


def test_a_disk_that_still_refuses_is_named():
    disk = Disk()
    disk.start()
    disk.put(1)
    disk.broken = "commitlog"
    disk.put(1)
    disk.kill()
    path = f"{ROOT}/commitlog/{file_name(0)}"
    with pytest.raises(UnsyncedStoreError, match=f"^{path}: .*Input/output error.*check the disk"):
        disk.start()
    disk.broken = ""
    disk.start()
    assert disk.bodies() == disk.acknowledged


def test_an_error_that_the_disk_only_reports_late_does_not_refuse_the_start():
    """Linux reports a dead broker's failed write-back to the process that opens each file next."""
    disk = Disk()
    disk.start()
    disk.put(3)
    disk.broken = "commitlog"
    disk.put(1)
    disk.kill()
    disk.broken = ""
    folders = [f"{ROOT}/commitlog", f"{ROOT}/consumequeue/T/0"]
    untold = {f"{folder}/{name}" for folder in folders for name in disk.files.list_dir(folder)}
    assert len(untold) > 1

    def tell_once(operation: str, path: str) -> None:
        if operation == "sync" and path in untold:
            untold.discard(path)
            raise OSError(errno.EIO, "Input/output error", path)

    disk.files.on_operation = tell_once
    disk.start()
    assert untold == set()
    assert disk.bodies() == disk.acknowledged


def test_verify_reports_the_failed_flush():
    disk = Disk()
    disk.start()
    disk.put(1)
    disk.broken = "commitlog"
    disk.put(1)
    disk.kill()
    disk.broken = ""
    with StoreReader(disk.files, ROOT, index_slots=8) as reader:
        report = verify(reader)
    notes = [finding.text for finding in report.findings if finding.severity is Severity.NOTE]
    assert any("could not flush" in text and "Input/output error" in text for text in notes), notes


@pytest.mark.parametrize("number", range(40))
def test_no_acknowledged_message_is_lost_whichever_sync_fails(number):
    """One file's syncs fail from some moment on; the process ends, the disk works again, later the power is cut."""
    rng = Rng(FIRST_SEED + number)
    disk = Disk()
    disk.start()
    for life in range(3):
        disk.put(rng.below(12))
        disk.broken = rng.choice(("commitlog", "consumequeue", "index", "checkpoint", "config", "syncfs", "/"))
        for _ in range(rng.below(6)):
            if disk.store.state().writable:
                disk.put(1)
            disk.clock.advance(rng.choice((100, 11_000)))
            disk.store.maintain()
        if rng.chance(0.5):
            disk.store.stop()
        disk.kill()
        disk.broken = ""
        if rng.chance(0.5):
            disk.cut_power()
        disk.start()
        found = disk.bodies()
        missing = {index for index, body in disk.acknowledged.items() if found.get(index) != body}
        assert not missing, f"seed {FIRST_SEED + number}, life {life}: {missing} of {len(disk.acknowledged)} are lost"
        disk.acknowledged = found
    disk.cut_power()
    disk.start()
    assert disk.bodies() == disk.acknowledged


@pytest.mark.parametrize(("part", "what"), [("commitlog", "the CommitLog"), ("consumequeue", "derived files")])
def test_the_reason_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, what: str) -> None:
    """The system call only knows a descriptor: the reason, in the log and in answers to senders, ended in "()"."""
    real, clock = os.fdatasync, FakeClock()

    def fdatasync(fd: int) -> None:
        if f"/{part}/" in (path := str(Path(f"/proc/self/fd/{fd}").readlink())):
            broken.add(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    broken: set[str] = set()
    settings = small_settings(store_path_root_dir=str(tmp_path))
    store = make_store(OsFileSystem(), clock, settings)
    store.start()
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    for _ in range(2):
        store.put("T", 0, b"body", b"UNIQ_KEY\x01k\x02", born_at_ms=1, born_host=HOST)
        store.request_flush()
        store.dispatch()
        clock.advance(20_000)
        store.maintain()
    reason = store.state().reason
    assert not store.stop()
    assert reason in {f"{what} can't be flushed: Input/output error ({path})" for path in broken}
    with StoreReader(OsFileSystem(), str(tmp_path)) as reader:
        note = reader.failed_flush()
    assert note is not None
    assert note.reason == reason


def test_a_bit_in_the_note_raises_no_false_alarm_of_loss():
    """With SYNC_FLUSH the disk has every acknowledged message, and the checksum of the note detects changed digits."""
    disk = Disk()
    disk.start()
    disk.put(5)
    disk.broken = "commitlog"
    disk.put(1)
    disk.broken = ""
    path = f"{ROOT}/{FLUSH_NOTE_FILE}"
    note = disk.files.read(path)
    begin = note.index(b'"acknowledged_offset": ') + len(b'"acknowledged_offset": ')
    end = begin + len(str(disk.store.flushed_offset))
    assert note[begin:end] == b"%d" % disk.store.flushed_offset
    crashed = disk.files
    for bit in range(begin * 8, end * 8):
        disk.files = crashed.crash_clone(Rng(0))
        flipped = bytearray(note)
        flipped[bit // 8] ^= 1 << bit % 8
        disk.files.write(path, bytes(flipped), durable=True)
        assert disk.start().acknowledged_lost is None, bytes(flipped[: end + 1])
        assert disk.bodies() == disk.acknowledged
