"""Recovery, case by case: what it finds, what it repairs, what it truncates, and what it must never truncate."""

import pytest

from gantry.model.record import decode_record
from gantry.runtime.rng import Rng
from gantry.storeformat.flushnote import FailedFlush
from gantry.storeformat.layout import FILLER_UNIT, Checkpoint, encode_checkpoint, encode_unit, file_name
from gantry.storeformat.manifest import StoreManifest
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import RecoveryReport
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock

SIZE = 200
PER_FILE = 4096 // SIZE


class Store:
    """A store in memory that can be stopped in order or killed, and changed while it is closed."""

    def __init__(self, **changes) -> None:
        self.clock = FakeClock()
        self.files = MemFileSystem(self.clock)
        self.changes = changes
        self.open()

    def open(self, **arguments) -> RecoveryReport:
        self.store: MessageStore = make_store(self.files, self.clock, small_settings(**self.changes))
        return self.store.start(**arguments)

    def put(self, count: int, topic: str = "T") -> list[int]:
        results = []
        for _ in range(count):
            self.clock.advance(10)
            rest = 91 + len(topic) + 12 + (20 if self.changes.get("enabled_append_prop_crc", True) else 0)
            properties = b"UNIQ_KEY\x01%02d\x02" % (self.store.max_offset(topic, 0) % 100)
            body = bytes(SIZE - rest)
            result = self.store.put(topic, 0, body, properties, born_at_ms=1, born_host=HOST)
            assert result.next_offset - result.physical_offset == SIZE
            self.store.request_flush()
            self.store.dispatch()
            results.append(result.physical_offset)
        return results

    def checkpoint(self) -> None:
        self.clock.advance(10_000)
        self.store.maintain()

    def kill(self) -> None:
        """End without stopping: every write is there."""
        self.files.sync_everything()
        self.files = self.files.crash_clone(Rng(0))

    def change(self, offset: int, data: bytes) -> None:
        file = self.files.open(f"/store/commitlog/{file_name(offset - offset % 4096)}")
        file.map()[offset % 4096 : offset % 4096 + len(data)] = data

    def change_units(self, index: int, data: bytes, topic: str = "T") -> None:
        for number in range(0, len(data), 20):
            position = index * 20 + number
            path = f"/store/consumequeue/{topic}/0/{file_name(position - position % 200)}"
            self.files.open(path).map()[position % 200 : position % 200 + 20] = data[number : number + 20]

    def offsets(self, topic: str = "T") -> list[int]:
        return list(read_queue(self.store, topic, 0))


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_clean_start_reads_no_record_again(store):
    store.put(50)
    stored_at_ms = store.store._log.stored_at_ms
    assert store.store.stop()
    report = store.open()
    assert report.was_clean
    assert (report.scanned_from, report.records) == (report.log_end_offset, 0)
    assert (report.units_mended, report.torn_bytes, report.lost) == (0, 0, ())
    assert store.store._log.stored_at_ms == stored_at_ms
    assert store.offsets() == list(range(50))
    assert store.put(1) == [report.log_end_offset]


def test_a_clean_start_after_a_deleted_topic_reads_no_record_again(store):
    store.put(1)
    store.put(100, "U")
    store.store.delete_topic("U")
    assert store.store.stop()
    assert store.open().records == 0
    assert store.store.stop()
    assert store.open().records == 0, "no record was put between the two stops"


def test_a_clean_start_after_a_release_without_the_derived_state_reads_the_last_file(store):
    store.put(50)
    assert store.store.stop()
    manifest = StoreManifest.load(store.files, "/store")
    StoreManifest(manifest.format_version, manifest.record_checksum_from, manifest.clean_stop_offset).dump(
        store.files, "/store"
    )
    report = store.open()
    assert (report.scanned_from, report.records) == (8192, 50 - 2 * PER_FILE)


def test_a_clean_start_of_an_empty_store_and_of_one_without_messages(store):
    assert store.store.stop()
    assert store.open() == RecoveryReport(True, 0, 0, 0, 0, (), 0, 0, 0, 0, 0, 0, None)


def test_a_stop_exactly_at_a_files_end(store):
    store.put(PER_FILE)
    store.store._log._roll(10)
    store.store.request_flush()
    assert store.store.stop()
    assert store.open().log_end_offset == 4096
    assert store.put(1) == [4096]


AT_CHECKPOINT = 3 * 4096 + 10 * SIZE
"""The physical offset of record 70."""


@pytest.mark.parametrize("count", [0, 10])
def test_after_a_crash_the_checkpoint_says_where_to_begin(store, count):
    store.put(70)
    store.checkpoint()
    store.put(count)
    store.kill()
    report = store.open()
    assert not report.was_clean
    assert (report.scanned_from, report.records) == (AT_CHECKPOINT, count)
    store.put(1)
    assert store.offsets() == list(range(71 + count))


def test_after_a_crash_a_checkpoint_at_the_filler_of_a_file_says_where_to_begin(store):
    store.put(PER_FILE)
    store.checkpoint()
    store.put(5)
    store.kill()
    report = store.open()
    assert (report.scanned_from, report.records) == (PER_FILE * SIZE, 5)
    assert store.offsets() == list(range(PER_FILE + 5))


@pytest.mark.parametrize("count", [0, 10])
def test_after_a_crash_a_checkpoint_without_a_sound_record_beside_it_says_in_which_file_to_begin(store, count):
    store.put(70)
    store.checkpoint()
    store.put(count)
    store.kill()
    damaged = AT_CHECKPOINT if count else AT_CHECKPOINT - SIZE
    store.change(damaged + 100, b"\xff")
    report = store.open()
    assert report.scanned_from == 3 * 4096
    assert report.lost == ((damaged, damaged + SIZE),)
    assert len(store.offsets()) == 70 + count - 1


def test_after_a_crash_an_unreadable_record_beside_the_checkpoint_does_not_confirm_it(store):
    store.put(70)
    store.checkpoint()
    store.put(10)
    store.kill()
    store.files.make_unreadable(f"/store/commitlog/{file_name(3 * 4096)}", 10 * SIZE, 10 * SIZE + 1)
    report = store.open()
    assert report.scanned_from == 3 * 4096
    assert report.unreadable


def test_after_a_failed_flush_the_file_of_the_checkpoint_is_read_again(store):
    store.put(70)
    store.checkpoint()
    store.store._folder.note_failed_flush(FailedFlush("the disk is broken", AT_CHECKPOINT, AT_CHECKPOINT))
    store.put(10)
    store.kill()
    assert store.open().scanned_from == 3 * 4096
    assert store.offsets() == list(range(80))


def test_without_a_checkpoint_the_whole_log_is_read(store):
    store.put(70)
    store.kill()
    assert store.open().scanned_from == 0
    store.kill()
    store.files.remove("/store/checkpoint")
    assert store.open().scanned_from == 0
    store.kill()
    store.files.write("/store/checkpoint", b"short")
    assert store.open().scanned_from == 0
    assert store.offsets() == list(range(70))


def test_a_checkpoint_of_another_broker_is_used_by_its_times():
    store = Store(message_index_enable=False)
    store.put(70)
    store.checkpoint()
    store.clock.advance(10_000)
    store.put(30)
    at_ms = store.store.stored_at("T", 0, 75)
    store.kill()
    checkpoint = Checkpoint(at_ms, at_ms, 0, 0, 5 * 4096)
    store.files.write("/store/checkpoint", encode_checkpoint(checkpoint))
    store.files.remove("/store/config/gantry.json")
    report = store.open()
    assert report.scanned_from == 3 * 4096, "the newest file that begins 3 s before that time"
    assert store.offsets() == list(range(100))


def test_a_clock_that_was_set_back_does_not_fool_the_checkpoint(store):
    store.put(70)
    store.checkpoint()
    store.clock.advance(-3_600_000)
    store.put(60)
    store.kill()
    store.change_units(70, bytes(20 * 10))
    report = store.open()
    assert report.scanned_from <= 70 // PER_FILE * 4096
    assert store.offsets() == list(range(130))


@pytest.mark.parametrize("cut", [1, 4, 8, 50, SIZE - 21, SIZE - 1])
def test_a_torn_record_at_the_end_is_truncated_and_counted(store, cut):
    store.put(30)
    end = store.store.max_physical_offset
    store.store.put("T", 0, b"x" * 30, b"", born_at_ms=1, born_host=HOST)
    size = store.store.write_out() - end
    store.kill()
    store.change(end + cut, bytes(max(size - cut, 0)))
    report = store.open()
    assert report.log_end_offset == (end if cut < size else end + size)
    assert report.torn_bytes <= cut
    assert report.lost == ()
    assert store.offsets()[:30] == list(range(30))
    assert (
        store.files.open(f"/store/commitlog/{file_name(4096)}").map()[report.log_end_offset - 4096 : 4096].strip(b"\0")
        == b""
    )


def test_whole_records_that_were_never_acknowledged_are_kept(store):
    store.put(3)
    store.store.put("T", 0, b"x", b"UNIQ_KEY\x01x\x02", born_at_ms=1, born_host=HOST)
    store.store.write_out()
    store.kill()
    store.open()
    assert store.offsets() == [0, 1, 2, 3]
    assert len(store.store.query("T", "x", 1, 0, 1 << 62).records) == 1


def test_damage_in_the_middle_costs_one_message(store):
    places = store.put(50)
    store.kill()
    store.change(places[45] + 100, b"\xff")
    report = store.open()
    assert report.lost == ((places[45], places[46]),)
    assert (report.lost_bytes, report.units_skipped, report.torn_bytes) == (SIZE, 1, 0)
    assert store.offsets() == [*range(45), *range(46, 50)]
    assert store.store.state().lost_bytes == SIZE
    assert store.store.state().skipped_units == 1


def test_damage_since_a_clean_stop_is_found_by_the_first_reader(store):
    places = store.put(50)
    assert store.store.stop()
    store.change(places[45] + 100, b"\xff")
    assert store.open().lost == ()
    assert store.offsets() == [*range(45), *range(46, 50)]
    assert store.store.state().damaged_reads == 1


def test_the_offset_of_a_damaged_last_record_is_not_reused(store):
    places = store.put(30)
    store.kill()
    store.change(places[-1] + 100, b"\xff")
    report = store.open()
    assert report.lost == ((places[-1], places[-1] + SIZE),)
    assert (report.log_end_offset, report.torn_bytes) == (places[-1] + SIZE, 0)
    assert store.put(1) == [places[-1] + SIZE]
    assert store.offsets() == [*range(29), 30]


def test_damage_that_reaches_over_a_files_end(store):
    places = store.put(50)
    store.kill()
    store.change(places[PER_FILE - 2], bytes(4096 - places[PER_FILE - 2]))
    store.change(4096, b"\xff" * 300)
    report = store.open()
    lost = [PER_FILE - 2, PER_FILE - 1, PER_FILE, PER_FILE + 1]
    assert store.offsets() == [index for index in range(50) if index not in lost]
    assert report.lost == ((places[PER_FILE - 2], 4096), (4096, places[PER_FILE + 2]))
    assert report.units_skipped == 4


def test_a_missing_file_in_the_middle_is_skipped(store):
    store.put(70)
    store.kill()
    store.files.remove(f"/store/commitlog/{file_name(4096)}")
    report = store.open()
    assert report.lost == ((4096, 8192),)
    assert store.offsets() == [*range(PER_FILE), *range(2 * PER_FILE, 70)]


@pytest.mark.parametrize("topic", ["T", "U"])
def test_wiped_units_are_rebuilt(store, topic):
    store.put(30, "T")
    store.put(30, "U")
    store.put(10, "T")
    store.checkpoint()
    store.kill()
    store.change_units(7, bytes(20 * 15), topic)
    report = store.open()
    assert (report.units_mended, report.units_skipped) == (15, 0)
    assert store.offsets("T") == list(range(40))
    assert store.offsets("U") == list(range(30))


def test_a_missing_queue_file_is_rebuilt(store):
    store.put(35)
    store.checkpoint()
    store.kill()
    store.files.remove(f"/store/consumequeue/T/0/{file_name(200)}")
    assert store.open().units_mended == 10
    assert store.offsets() == list(range(35))


def test_an_empty_first_queue_file_is_rebuilt(store):
    store.put(35)
    store.checkpoint()
    store.kill()
    store.files.write(f"/store/consumequeue/T/0/{file_name(0)}", b"")
    assert store.open().units_mended == 10
    assert store.offsets() == list(range(35))


@pytest.mark.parametrize("is_clean", [False, True])
def test_without_any_queue_all_queues_are_rebuilt(store, is_clean):
    store.put(30, "T")
    store.put(15, "U")
    store.checkpoint()
    assert not is_clean or store.store.stop()
    store.kill()
    for topic in ("T", "U"):
        for name in store.files.list_dir(f"/store/consumequeue/{topic}/0"):
            store.files.remove(f"/store/consumequeue/{topic}/0/{name}")
    assert store.open().units_mended == 45
    assert store.offsets("T") == list(range(30))
    assert store.offsets("U") == list(range(15))


def test_units_wiped_before_a_clean_start_are_noticed_at_the_first_record(store):
    store.put(50)
    assert store.store.stop()
    store.kill()
    store.change_units(30, bytes(20 * 20))
    report = store.open()
    assert report.units_mended == 20
    assert store.offsets() == list(range(50))


def test_units_beyond_the_log_are_removed(store):
    store.put(30)
    end = store.store.max_physical_offset
    store.kill()
    store.change_units(30 - 1, encode_unit(end - SIZE, SIZE, 0))
    store.store = make_store(store.files, store.clock)
    queue_file = f"/store/consumequeue/T/0/{file_name(600)}"
    store.files.create(queue_file, 200).map()[0:60] = b"".join(encode_unit(end + n * SIZE, SIZE, 0) for n in range(3))
    report = store.store.start()
    assert (report.units_cut, report.files_removed) == (3, 1)
    assert store.offsets() == list(range(30))
    assert store.put(1) == [end]


def test_units_that_disagree_with_the_log_are_corrected(store):
    store.put(30)
    store.kill()
    store.change_units(5, encode_unit(12345, SIZE, 0) + FILLER_UNIT + b"\xff" * 20)
    report = store.open()
    assert report.units_mended == 3
    assert store.offsets() == list(range(30))


def test_a_topic_that_was_deleted_and_created_again_starts_at_zero(store):
    store.put(25)
    store.store.delete_topic("T")
    later = store.put(7)
    store.kill()
    store.open()
    assert store.offsets() == list(range(7))
    assert decode_record(store.store.get("T", 0, 0, 1).records[0]).physical_offset == later[0]
    store.kill()
    for name in store.files.list_dir("/store/consumequeue/T/0"):
        store.files.remove(f"/store/consumequeue/T/0/{name}")
    store.open()
    assert store.offsets() == list(range(7)), "a rebuild from the log alone gives the same"
    assert store.store.stop()
    assert store.open(thorough=True).units_mended in (0, 25 + 7)
    assert store.offsets() == list(range(7))


def test_a_queue_whose_first_records_are_gone_begins_later(store):
    store.put(22, "U")
    store.checkpoint()
    store.put(8, "U")
    store.store.delete_topic("U")
    store.put(3, "T")
    store.kill()
    store.files.remove("/store/config/gantry-deletions.json")  # As if the queue's folder had been lost.
    store.files.remove(f"/store/commitlog/{file_name(0)}")
    report = store.open()
    assert report.scanned_from == 4096
    assert store.offsets("U") == list(range(PER_FILE, 30))
    assert store.store.min_offset("U", 0) == PER_FILE


def test_a_thorough_start_reads_the_whole_log_and_rebuilds_the_index(store):
    store.put(50)
    store.checkpoint()
    assert store.store.stop()
    for name in store.files.list_dir("/store/index")[:1]:
        store.files.open(f"/store/index/{name}").map()[72:92] = b"\xff" * 20
    report = store.open(thorough=True)
    assert (report.scanned_from, report.records) == (0, 50)
    assert report.index_entries_mended > 0
    for index in range(50):
        at_ms = store.store.stored_at("T", 0, index)
        assert len(store.store.query("T", f"{index:02d}", 64, at_ms, at_ms).records) == 1


def test_a_store_without_a_log_reuses_no_offset(store):
    store.put(30)
    store.kill()
    for name in store.files.list_dir("/store/commitlog"):
        store.files.remove(f"/store/commitlog/{name}")
    report = store.open()
    assert (report.log_end_offset, report.units_cut) == (8192, 0)
    assert report.missing == ((0, 8192),)
    assert store.put(1) == [8192]
    assert store.offsets() == [30]


def test_records_appended_by_another_broker_need_no_checksum(store):
    store.put(5)
    assert store.store.stop()
    store.changes["enabled_append_prop_crc"] = False
    store.files.remove("/store/config/gantry.json")
    store.open()
    theirs = store.store.put("T", 0, b"theirs", b"", born_at_ms=1, born_host=HOST).physical_offset
    store.store.request_flush()
    store.store.dispatch()
    assert store.store.stop()
    # Our mark as it was before the other broker appended.
    StoreManifest(record_checksum_from=0, clean_stop_offset=theirs).dump(store.files, "/store")
    del store.changes["enabled_append_prop_crc"]
    report = store.open()
    assert report.lost == ()
    assert store.offsets() == list(range(6))
    assert store.store._folder.manifest.record_checksum_from == report.log_end_offset


def test_beyond_the_boundary_a_record_without_checksum_is_damage():
    store = Store(enabled_append_prop_crc=False)
    store.put(1)
    store.store.put("T", 0, b"bare", b"", born_at_ms=1, born_host=HOST)
    store.store.request_flush()
    store.store.dispatch()
    store.put(1)
    assert store.store.stop()
    StoreManifest(record_checksum_from=0, clean_stop_offset=store.store.max_physical_offset).dump(store.files, "/store")
    report = store.open()
    assert report.records == 0
    assert report.lost_bytes == report.log_end_offset
    assert store.offsets() == []


def test_older_records_behind_the_end_of_a_foreign_log_are_not_revived():
    store = Store(enabled_append_prop_crc=False)
    store.put(20)
    end = store.store.max_physical_offset
    store.kill()
    old = bytes(store.files.open(f"/store/commitlog/{file_name(0)}").map()[end - 3 * SIZE : end])
    store.open()
    assert store.store.stop()
    # RocketMQ cuts the log off at record 17 and appends, so that the end lies amid older records.
    store.files.remove("/store/config/gantry.json")
    store.change_units(17, bytes(60))
    store.clock.advance(60_000)
    file = store.files.open(f"/store/commitlog/{file_name(0)}")
    file.map()[end - 3 * SIZE : end] = bytes(3 * SIZE)
    store.open()
    assert store.offsets() == list(range(17))
    store.store.put("T", 0, b"new", b"", born_at_ms=1, born_host=HOST)
    store.store.request_flush()
    store.store.dispatch()
    new_end = store.store.max_physical_offset
    assert store.store.stop()
    file.map()[new_end:end] = old[new_end - (end - 3 * SIZE) :]
    store.files.remove("/store/config/gantry.json")
    store.files.write("/store/abort", b"")
    report = store.open()
    assert report.log_end_offset == new_end
    assert report.torn_bytes > 0
    assert store.offsets() == list(range(18))
