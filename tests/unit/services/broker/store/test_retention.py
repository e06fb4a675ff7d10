"""Retention: by age and hour, by the three watermarks of the disk, and by request; which files stay, and for how long."""

import errno
from datetime import UTC, datetime

import pytest
import structlog

from gantry.storeformat.layout import Checkpoint
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import Expiry, PutStatus
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, make_store, read_queue, small_settings
from tests.support.virtualtime import EPOCH_MS, FakeClock
from tests.support.waitingworker import WaitingWorker

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def local_hour(at_ms: int) -> int:
    return datetime.fromtimestamp(at_ms // 1000, UTC).astimezone().hour


class Opened:
    def __init__(self, *, chores_worker=None, **changes) -> None:
        # Noon, local time: an hour in which no file is removed by schedule.
        self.clock = FakeClock(EPOCH_MS + (12 - local_hour(EPOCH_MS)) % 24 * HOUR_MS)
        self.memory = MemFileSystem(self.clock, capacity_bytes=1_000_000)
        self.files = FaultFileSystem(self.memory)
        settings = small_settings(**({"file_reserved_time": 72} | changes))
        self.store: MessageStore = make_store(self.files, self.clock, settings)
        self.store.start()
        if chores_worker is not None:
            self.store._remover.worker = self.store._derived._worker = chores_worker

    def put(self, count: int = 1) -> PutStatus:
        for _ in range(count):
            result = self.store.put("T", 0, bytes(800), b"UNIQ_KEY\x01k\x02", born_at_ms=1, born_host=HOST)
        self.store.request_flush()
        self.store.dispatch()
        return result.status

    def after(self, ms: int) -> list[str]:
        """Let time pass and return the files of the log."""
        self.clock.advance(ms)
        self.store.maintain()
        self.store.maintain()
        return self.log_files()

    def log_files(self) -> list[str]:
        return [name.lstrip("0") or "0" for name in self.memory.list_dir("/store/commitlog")]

    def fill_to(self, percent: int) -> None:
        used = self.memory.used_bytes() - self.memory.foreign_bytes
        self.memory.foreign_bytes = percent * 10_000 - used


def test_files_are_removed_when_they_are_old_and_the_hour_has_come():
    opened = Opened()
    opened.put(20)
    files = opened.log_files()
    assert len(files) == 6, "five files and the preallocated one"
    assert opened.after(71 * HOUR_MS) == files, "not old enough"
    assert opened.after(2 * HOUR_MS) == files, "old, but not the hour"
    hours = 0
    while opened.log_files() == files:
        opened.after(HOUR_MS)
        hours += 1
        assert hours <= 24
    assert local_hour(opened.clock.now_ms()) == 4
    assert opened.log_files() == ["16384", "20480"], "the current one and the next stay"
    assert opened.store.min_physical_offset == 16384
    assert opened.store.min_offset("T", 0) == 16
    assert list(read_queue(opened.store, "T", 0)) == [16, 17, 18, 19]
    assert opened.memory.list_dir("/store/consumequeue/T/0") == [f"{200:020d}"]


def test_several_hours_may_be_named():
    opened = Opened(delete_when="04;13")
    opened.put(8)
    assert opened.after(3 * DAY_MS + HOUR_MS) == ["4096", "8192"]


def test_a_recently_written_file_keeps_the_files_after_it():
    opened = Opened()
    opened.put(20)
    opened.clock.advance(3 * DAY_MS)
    file = opened.memory.open(f"/store/commitlog/{4096:020d}")
    file.map()[0:1] = bytes(file.map()[0:1])
    opened.after(0)
    assert opened.store.clean_expired() == 1
    assert opened.log_files()[0] == "4096"


def test_at_most_ten_files_a_run():
    opened = Opened()
    opened.put(100)
    opened.after(3 * DAY_MS)
    assert opened.store.clean_expired() == 10
    assert opened.after(10_000)[0] == str(20 * 4096), "a requested removal continues in the next rounds"


def test_above_75_percent_expired_files_are_removed_at_any_hour():
    opened = Opened()
    opened.put(8)
    opened.fill_to(76)
    assert opened.after(71 * HOUR_MS)[0] == "0", "not expired"
    assert opened.after(2 * HOUR_MS)[0] == "4096"


def test_above_85_percent_files_are_removed_though_they_are_young():
    opened = Opened()
    opened.put(8)
    opened.fill_to(85)
    opened.memory.foreign_bytes += 4096
    assert opened.after(10_000) == ["4096", "8192"]


def test_forced_removal_stops_below_the_watermark():
    opened = Opened()
    opened.put(40)
    before = opened.log_files()
    opened.fill_to(85)
    opened.memory.foreign_bytes += 2 * 4096 + 1
    assert opened.after(10_000) == before[3:], "after two files, one byte too many would be left"
    assert opened.after(10_000) == before[3:]
    assert opened.store.state().disk_percent <= 85


def test_fresh_messages_are_kept_if_other_files_fill_the_disk():
    opened = Opened()
    opened.put(20)
    files = opened.log_files()
    opened.fill_to(93)
    assert opened.after(60_000) == files
    assert list(read_queue(opened.store, "T", 0)) == list(range(20))
    assert opened.put() is PutStatus.NOT_WRITABLE
    assert opened.store.state().reason == (
        "the disk is 93 % full, nothing is stored above 90 %; removing all messages that may go would free 16384 of the "
        "80000 bytes that are too many, so they stay"
    )
    opened.after(2 * DAY_MS)
    assert opened.log_files() == files, "still no reason to remove young files"
    assert opened.after(DAY_MS) == files[4:], "old files are removed at any hour"
    opened.fill_to(80)
    opened.after(10_000)
    assert opened.put() is PutStatus.OK
    assert opened.store.state().reason == ""


def test_a_disk_that_can_not_be_measured_loses_no_messages_and_does_not_stop_the_broker():
    opened = Opened()
    opened.put(20)
    files = opened.log_files()
    opened.files.rules.append(FaultRule("disk_usage", error=errno.ENOMEM))
    with structlog.testing.capture_logs() as lines:
        assert opened.after(3 * DAY_MS + HOUR_MS) == files
    assert "can't be measured" in lines[0]["event"]
    assert opened.put() is PutStatus.OK
    opened.files.rules.clear()
    opened.fill_to(80)
    assert opened.after(10_000) != files, "the next run measures again"


def test_files_being_removed_count_as_removed():
    worker = WaitingWorker()
    opened = Opened(chores_worker=worker)
    opened.put(40)
    opened.store._checkpoint.value = Checkpoint(confirm_physical_offset=opened.store.flushed_offset)
    files = opened.log_files()
    opened.fill_to(85)
    opened.memory.foreign_bytes += 4096
    for _ in range(5):
        opened.after(10_000)
    assert opened.store.min_physical_offset == 4096, "the worker is late, and one file is enough"
    worker.run_all()
    assert opened.log_files() == files[1:]


def test_no_forced_removal_if_it_is_switched_off():
    opened = Opened(clean_file_forcibly_enable=False)
    opened.put(8)
    opened.fill_to(86)
    assert opened.after(10_000)[0] == "0"


def test_above_90_percent_no_message_is_stored_until_below_85():
    opened = Opened(clean_file_forcibly_enable=False)
    opened.put(4)
    opened.fill_to(91)
    opened.after(10_000)
    assert opened.put() is PutStatus.NOT_WRITABLE
    state = opened.store.state()
    assert state.reason == "the disk is 91 % full, nothing is stored above 90 %"
    assert list(read_queue(opened.store, "T", 0)) == [0, 1, 2, 3], "reading goes on"
    opened.fill_to(88)
    opened.after(10_000)
    assert opened.put() is PutStatus.NOT_WRITABLE
    opened.fill_to(85)
    opened.after(10_000)
    assert opened.put() is PutStatus.OK
    assert opened.store.state().disk_percent >= 85


def test_a_full_disk_at_start_is_reported():
    clock = FakeClock()
    memory = MemFileSystem(clock, capacity_bytes=1_000_000)
    memory.foreign_bytes = 950_000
    store = make_store(memory, clock)
    store.start()
    assert "% full, nothing is stored above 90 %" in store.state().reason


def test_files_beyond_the_checkpoint_are_kept():
    opened = Opened(flush_consume_queue_thorough_interval=100 * DAY_MS)
    opened.put(20)
    opened.after(10 * DAY_MS)
    assert opened.store.clean_expired() == 0
    assert opened.log_files()[0] == "0"


def test_a_file_that_is_being_read_is_closed_later():
    opened = Opened()
    opened.put(8)
    view = memoryview(opened.store._log.files.first.memory)
    opened.after(3 * DAY_MS)
    opened.store.clean_expired()
    opened.after(1000)
    assert opened.log_files()[0] == "4096", "the name is gone at once"
    assert opened.store.state().removed_files_in_use == 1
    opened.after(120_000)
    assert opened.store.state().removed_files_in_use == 1
    view.release()
    opened.after(119_999)
    assert opened.store.state().removed_files_in_use == 1
    opened.after(1)
    assert opened.store.state().removed_files_in_use == 0


def test_files_that_can_not_be_removed_are_no_reason_to_stop():
    opened = Opened()
    opened.put(8)
    opened.files.rules.append(FaultRule("remove"))
    opened.after(3 * DAY_MS)
    assert opened.store.clean_expired() == 1
    opened.after(1000)
    assert opened.put() is PutStatus.OK
    assert opened.store.min_physical_offset == 4096


def test_log_files_are_removed_in_order_and_one_that_can_not_be_removed_keeps_later_ones():
    opened = Opened()
    opened.put(20)
    opened.files.rules.append(FaultRule("remove", f"*/commitlog/{0:020d}"))
    files = opened.log_files()
    opened.after(73 * HOUR_MS)
    with structlog.testing.capture_logs() as logs:
        assert opened.store.clean_expired() == 4
        assert opened.log_files() == files, (
            "a log without its first files is one that begins later; without others it is damaged"
        )
        assert len(opened.memory.list_dir("/store/consumequeue/T/0")) == 2
        assert opened.after(100) == files
        opened.files.rules.clear()
        assert opened.after(100) == ["16384", "20480"], "it is tried again"
    assert [entry["path"] for entry in logs if entry["event"] == "files can't be removed"] == [
        f"/store/commitlog/{0:020d}"
    ]
    assert opened.memory.list_dir("/store/consumequeue/T/0") == [f"{200:020d}"]


def test_a_start_after_failed_removals_misses_no_file():
    opened = Opened()
    opened.put(20)
    opened.files.rules.append(FaultRule("remove", f"*/commitlog/{0:020d}"))
    opened.after(73 * HOUR_MS)
    assert opened.store.clean_expired() == 4
    opened.store.maintain()
    assert opened.store.stop()
    report = make_store(opened.memory, opened.clock, opened.store.settings).start()
    assert report.missing == ()


def test_a_file_of_unknown_age_stays_and_is_checked_again():
    opened = Opened()
    opened.put(20)
    files = opened.log_files()
    opened.clock.advance(73 * HOUR_MS)
    opened.files.rules.append(FaultRule("modified_ms", f"*/commitlog/{0:020d}"))
    with structlog.testing.capture_logs() as logs:
        assert opened.store.clean_expired() == 0
        for _ in range(3):
            assert opened.after(10_000) == files
    assert [entry["path"] for entry in logs if "age" in entry["event"]] == [f"/store/commitlog/{0:020d}"]
    opened.files.rules.clear()
    assert opened.after(10_000) == ["16384", "20480"]


def go_at(opened: Opened, file: int) -> int:
    """Let time pass until retention removes a file of the log; return when, to the minute."""
    while str(file) in opened.log_files():
        opened.clock.advance(60_000)
        opened.store.maintain()
    return opened.clock.now_ms()


@pytest.mark.parametrize("hours", ["04", "13", "00;23"])
def test_a_file_is_removed_at_its_expiry_time(hours):
    opened = Opened(delete_when=hours, file_reserved_time=26)
    opened.put(4)
    opened.clock.advance(50 * 60_000 + 123)
    opened.put(4)
    expected = [opened.store.expires_at(file) for file in (0, 4096)]
    assert [expiry.is_earliest for expiry in expected] == [False, True], "the second one is written to"
    opened.put(4)
    opened.clock.advance(10_000)
    second = opened.store.expires_at(4096)
    assert not second.is_earliest
    for file, expiry in ((0, expected[0]), (4096, second)):
        assert go_at(opened, file) - 60_000 <= expiry.at_ms <= opened.clock.now_ms()


def test_expiry_within_the_configured_hours_and_after_them():
    noon_ms = EPOCH_MS + (12 - local_hour(EPOCH_MS)) % 24 * HOUR_MS
    opened = Opened(delete_when="12", file_reserved_time=24)
    opened.put(8)
    assert opened.store.expires_at(0) == Expiry(noon_ms + DAY_MS, is_earliest=False), "removed as soon as it expires"
    opened.clock.advance(5 * DAY_MS + HOUR_MS)
    noon = datetime.fromtimestamp(noon_ms // 1000, UTC).astimezone().replace(minute=0, second=0)
    next_noon_ms = int(noon.timestamp()) * 1000 + 6 * DAY_MS
    assert opened.store.expires_at(0).at_ms == next_noon_ms, "expired long ago: removed in the next configured hour"
    opened.clock.advance(23 * HOUR_MS + 60_000)
    assert opened.store.expires_at(0).at_ms == opened.clock.now_ms(), "that hour has begun"


def test_a_file_is_removed_together_with_those_before_it():
    opened = Opened()
    opened.put(12)
    before = opened.store.expires_at(4096)
    opened.clock.advance(5 * DAY_MS)
    file = opened.memory.open(f"/store/commitlog/{0:020d}")
    file.map()[0:1] = bytes(file.map()[0:1])
    assert opened.store.expires_at(4096) == opened.store.expires_at(0)
    assert opened.store.expires_at(4096).at_ms >= before.at_ms + 5 * DAY_MS


def test_ages_are_checked_at_intervals():
    opened = Opened(delete_when="0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19;20;21;22;23")
    opened.put(3)
    first = opened.store.expires_at(0)
    opened.clock.advance(9_999)
    assert opened.store.expires_at(0) == first
    opened.clock.advance(1)
    assert opened.store.expires_at(0).at_ms == first.at_ms + 10_000
    assert opened.store.expires_at(4096) is None
    opened.put(3)
    assert opened.store.expires_at(4096).is_earliest, "a new file is seen at once"
    assert not opened.store.expires_at(0).is_earliest


@pytest.mark.parametrize("changes", [{"delete_when": ""}, {"file_reserved_time": 10**9}])
def test_files_that_never_expire_have_no_expiry_time(changes):
    opened = Opened(**changes)
    opened.put(8)
    assert opened.store.expires_at(0) is None


def test_a_file_that_an_operator_removed():
    opened = Opened()
    opened.put(8)
    opened.memory.remove(f"/store/commitlog/{0:020d}")
    assert [opened.store.expires_at(file) for file in (0, 4096)] == [None, None]


@pytest.mark.parametrize("hours", ["24", "x", "4,5", "-1"])
def test_invalid_hours(hours):
    with pytest.raises(ValueError, match="delete_when"):
        small_settings(delete_when=hours).check()


def test_invalid_settings_are_refused():
    small_settings().check()
    for name, value in (
        ("mapped_file_size_commit_log", 100),
        ("mapped_file_size_consume_queue", 21),
        ("mapped_file_size_consume_queue", 0),
        ("max_index_num", 1),
        ("disk_max_used_space_ratio", 0),
        ("disk_space_warning_level_ratio", 101),
        ("message_delay_level", "1s 2parsecs"),
    ):
        with pytest.raises(ValueError):
            small_settings(**{name: value}).check()
