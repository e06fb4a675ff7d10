"""ConsumeQueue: units by queue offset, filler, holes, and both ends."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.errors import InvalidNameError
from gantry.runtime.openfiles import OpenFiles
from gantry.storeformat.layout import FILLER_UNIT, UNIT, encode_unit
from services.broker.store.errors import CorruptStoreError, StoreFullError
from services.broker.store.queues.consumequeue import BLANK_UNIT, ConsumeQueue
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.memnode import PAGE_BYTES
from tests.support.storeworkload import small_settings
from tests.support.virtualtime import FakeClock

UNITS_A_FILE = 10


def unit(number: int) -> bytes:
    return encode_unit(1000 + number * 100, 100, number)


def units(first: int, end: int) -> bytes:
    return b"".join(map(unit, range(first, end)))


@pytest.fixture
def files() -> MemFileSystem:
    return MemFileSystem(FakeClock())


def queue_in(files: MemFileSystem, topic: str = "T") -> ConsumeQueue:
    queue = ConsumeQueue(OpenFiles(files, 2), "/s", topic, 0, 200)
    files.make_dirs(queue.files.folder)
    return queue


def loaded(files: MemFileSystem, *, thorough: bool = False) -> ConsumeQueue:
    queue = queue_in(files)
    queue.load(thorough=thorough)
    return queue


def test_units_are_appended_across_files_and_read_back(files):
    queue = queue_in(files)
    queue.append(0, units(0, 7))
    queue.append(7, units(7, 25))
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 25, 25)
    assert len(queue.files) == 3
    assert queue.units(5, 100) == units(5, 10), "up to the end of the file"
    assert queue.units(20, 100) == units(20, 25), "up to the end of the queue"
    assert [queue.unit(index).tags_code for index in (0, 9, 10, 24)] == [0, 9, 10, 24]
    assert not queue.unit(25).is_valid


def test_the_same_units_may_be_written_twice(files):
    queue = queue_in(files)
    queue.append(0, units(0, 15))
    queue.append(8, units(8, 12))
    assert queue.max_offset == 15
    assert queue.units(0, 10) + queue.units(10, 10) == units(0, 15)


def test_a_queue_that_begins_late_is_filled_from_the_start_of_its_file(files):
    queue = queue_in(files)
    queue.append(23, units(23, 24))
    assert (queue.min_offset, queue.max_offset) == (23, 24)
    assert files.list_dir(queue.files.folder) == [f"{400:020d}"]
    assert queue.files.first.read(0, 80) == FILLER_UNIT * 3 + unit(23)
    assert queue.skipped == 0, "nothing was lost"
    again = loaded(files)
    again.correct_min(0)
    assert (again.min_offset, again.max_offset) == (23, 24)


def test_a_gap_is_filled_and_counted(files):
    queue = queue_in(files)
    queue.append(0, units(0, 8))
    queue.append(12, units(12, 13))
    assert queue.skipped == 4
    assert queue.units(8, 2) == FILLER_UNIT * 2
    assert queue.units(10, 10) == FILLER_UNIT * 2 + unit(12)
    assert queue.first_message_unit(8, 13) == (12, UNIT_OF(12))
    assert queue.newest_message() == (12, UNIT_OF(12))


def UNIT_OF(number: int):
    return UNIT.unpack(unit(number))


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 25])
def test_the_end_of_a_queue_is_found_at_load(files, count, thorough):
    queue = queue_in(files)
    if count:
        queue.append(0, units(0, count))
    again = loaded(files, thorough=thorough)
    assert (again.max_offset, again.next_offset) == (count, count)
    assert again.find_blank() is None


def test_a_thorough_load_reads_past_a_hole(files):
    queue = queue_in(files)
    queue.append(0, units(0, 25))
    queue.files.write(13 * 20, BLANK_UNIT * 2)
    queue.files.write(24 * 20, BLANK_UNIT)
    again = loaded(files, thorough=True)
    assert again.max_offset == 24
    assert again.find_blank() == 13
    assert loaded(files).max_offset == 24


def test_a_missing_file_is_a_hole(files):
    queue = queue_in(files)
    queue.append(0, units(0, 25))
    files.remove(queue.files.path_of(200))
    again = loaded(files, thorough=True)
    assert again.find_blank() == 10
    assert again.units(8, 10) == units(8, 10)
    assert again.units(12, 100) == BLANK_UNIT * 8
    assert again.first_message_unit(8, 25)[0] == 8
    assert again.first_message_unit(10, 25)[0] == 20
    assert again.repair_unit(11, unit(11))
    assert again.units(10, 10) == FILLER_UNIT + unit(11) + BLANK_UNIT * 8


def test_a_correction_changes_only_wrong_units(files):
    queue = queue_in(files)
    queue.append(0, units(0, 5))
    before = files.operations
    assert not queue.repair_unit(3, unit(3))
    assert files.operations == before
    assert queue.repair_unit(3, FILLER_UNIT)
    assert queue.repair_unit(7, unit(7))
    assert queue.max_offset == 8
    assert queue.skipped == 2


@pytest.mark.parametrize("index", [0, 3, 10, 14, 20, 24])
def test_a_queue_is_truncated(files, index):
    queue = queue_in(files)
    queue.append(0, units(0, 25))
    for file in queue.truncate(index):
        file.close()
        files.remove(file.path)
    assert (queue.max_offset, queue.next_offset) == (index, index)
    assert loaded(files, thorough=True).max_offset == index
    queue.append(index, units(index, index + 12))
    assert loaded(files, thorough=True).max_offset == index + 12


def test_the_min_offset_follows_the_log(files):
    queue = queue_in(files)
    queue.append(0, units(0, 25))
    for log_min, expected in ((0, 0), (1000, 0), (1001, 1), (2150, 12), (3400, 24), (3401, 25)):
        queue.correct_min(log_min)
        assert queue.min_offset == expected


def test_the_min_offset_skips_filler(files):
    queue = queue_in(files)
    queue.append(0, units(0, 5))
    queue.append(15, units(15, 20))
    queue.correct_min(1400 + 1)
    assert queue.min_offset == 15


def test_expired_files_are_removed_but_never_the_last_one(files):
    queue = queue_in(files)
    queue.append(0, units(0, 25))
    assert queue.expired(1900) == [], "unit 9 lies at 1900"
    assert [file.start for file in queue.expired(1901)] == [0]
    assert [file.start for file in queue.expired(1 << 40)] == [200]
    assert queue.expired(1 << 40) == []


def test_a_name_that_is_no_valid_topic_makes_no_folder(files):
    for name in ("../etc", "a/b", "", "x" * 256):
        with pytest.raises(InvalidNameError):
            ConsumeQueue(OpenFiles(files, 1), "/s", name, 0, 200)


@given(st.lists(st.integers(0, 39), unique=True, max_size=12), st.integers(0, 39))
def test_find_blank_finds_the_first_blank_unit(blank, start):
    queue = queue_in(MemFileSystem(FakeClock()))
    queue.append(0, units(0, 40))
    for index in blank:
        queue.repair_unit(index, BLANK_UNIT)
    queue.min_offset = start
    assert queue.find_blank() == min((index for index in blank if index >= start), default=None)


def test_the_store_of_queues_loads_existing_queues(files):
    for topic, queue_id in (("A", 0), ("A", 3), ("%RETRY%g", 0)):
        files.make_dirs(f"/store/consumequeue/{topic}/{queue_id}")
    files.make_dirs("/store/consumequeue/A/not-a-queue")
    files.make_dirs("/store/consumequeue/no topic/0")
    store = ConsumeQueueStore(OpenFiles(files, 2), small_settings())
    store.load(thorough=False)
    assert set(store.table) == {("A", 0), ("A", 3), ("%RETRY%g", 0)}
    assert len(store) == 3


def test_a_queue_file_of_another_size_is_refused(files):
    files.make_dirs("/store/consumequeue/A/0")
    files.create(f"/store/consumequeue/A/0/{0:020d}", 400).close()
    with pytest.raises(CorruptStoreError, match="400 bytes"):
        ConsumeQueueStore(OpenFiles(files, 2), small_settings()).load(thorough=False)


def test_new_names_are_returned_for_sync_once(files):
    files.make_dirs("/store")
    store = ConsumeQueueStore(OpenFiles(files, 2), small_settings())
    queue = store.prepare("A", 0)
    folders = {"/store/consumequeue/A/0", "/store/consumequeue/A", "/store/consumequeue", "/store"}
    assert store.take_unsynced_folders() == folders
    store.append(queue, 0, units(0, 9))
    assert store.take_unsynced_folders() == set()
    store.append(queue, 9, units(9, 15))
    assert store.take_unsynced_folders() == {"/store/consumequeue/A/0"}, "a second file"


def test_a_prepared_queue_has_a_file_of_full_size_and_one_block(files):
    store = ConsumeQueueStore(OpenFiles(files, 2), small_settings(mapped_file_size_consume_queue=1_000_000))
    queue = store.prepare("A", 0)
    assert store.prepare("A", 0) is queue
    path = f"/store/consumequeue/A/0/{0:020d}"
    assert (files.size_bytes(path), files.used_bytes()) == (1_000_000, 4096)
    assert queue.is_blank
    sizes = []
    for number in range(1_000):
        store.append(queue, number * 50, units(number * 50, number * 50 + 50))
        sizes.append(files.used_bytes())
    assert sorted(set(sizes)) == [4096 << step for step in range(7)] + [512 << 10, 768 << 10, 1_000_000]


@pytest.mark.parametrize("operation", ["make_dirs", "create", "allocate"])
def test_a_queue_that_finds_no_space_is_not_created_and_leaves_no_file(files, operation):
    full = FaultFileSystem(files, FaultRule(operation, error=errno.ENOSPC))
    store = ConsumeQueueStore(OpenFiles(full, 2), small_settings())
    for _ in range(2):
        with pytest.raises(StoreFullError, match=r"/store/consumequeue/A/0.* No space left on device"):
            store.prepare("A", 0)
        assert store.find("A", 0) is None
        assert files.list_files("/store/consumequeue/A/0") == []
    full.rules.clear()
    assert len(store.prepare("A", 0).files) == 1


def test_a_full_disk_refuses_units_before_any_is_written(files):
    big = ConsumeQueue(OpenFiles(files, 2), "/s", "T", 0, 20_000)
    files.make_dirs(big.files.folder)
    files.capacity_bytes = 4_096 + PAGE_BYTES
    big.prepare()
    with pytest.raises(StoreFullError, match="can't be extended: No space left"):
        big.append(0, units(0, 400))
    assert (big.max_offset, big.units(0, 400)) == (0, b"")
    files.capacity_bytes *= 100
    big.append(0, units(0, 400))
    assert big.units(0, 400) == units(0, 400)


def test_a_queue_begins_with_the_first_record_that_the_log_still_has(files):
    store = ConsumeQueueStore(OpenFiles(files, 2), small_settings())
    for topic in "AB":
        store.append(store.prepare(topic, 0), 0, units(0, 25))
    store.log_min_offset = 1400
    assert store.find("A", 0).min_offset == 4
    assert store.find("B", 0).min_record == 1400
    store.log_min_offset = 1 << 40
    assert store.find("A", 0).min_offset == 25


def test_a_forgotten_topic_leaves_its_files_to_the_caller(files):
    store = ConsumeQueueStore(OpenFiles(files, 2), small_settings())
    queues = [store.get_or_create("A", queue_id) for queue_id in (0, 1)]
    other = store.get_or_create("B", 0)
    for queue in (*queues, other):
        store.append(queue, 3, units(3, 12))
    assert store.skipped_units == 0, "a queue may begin late"
    store.append(queues[0], 20, units(20, 21))
    assert store.skipped_units == 8
    assert store.forget_topic("A") == queues
    assert store.skipped_units == 0
    assert (store.find("A", 0), store.holds(queues[0]), store.holds(other)) == (None, False, True)
    assert files.list_dir("/store/consumequeue") == ["A", "B"]
    assert store.forget_topic("never there") == []
