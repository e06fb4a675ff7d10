"""Chores: the store's thread waits for no worker while the store runs, and processes many queues in slices."""

import errno

import pytest

from services.broker.store import retention
from services.broker.store.files.removal import SLICE_FILES_MAX
from services.broker.store.log.commitlog import UNFLUSHED_FILES_MAX
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import GetStatus, PutStatus
from services.broker.store.settings import FlushDiskType, StoreLimits
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock
from tests.support.waitingworker import SwitchedWorker, WaitingWorker

DAY_MS = 86_400_000


class Opened:
    """A store whose chores or preallocated files are held back until the test releases them."""

    def __init__(self, log_files_ahead_max: int = 1, **changes) -> None:
        self.clock = FakeClock()
        self.memory = MemFileSystem(self.clock)
        self.files = FaultFileSystem(self.memory)
        self.making, self.chores = SwitchedWorker(), SwitchedWorker()
        self.store: MessageStore = make_store(
            self.files,
            self.clock,
            small_settings(**changes),
            limits=StoreLimits(log_files_ahead_max),
            making_worker=self.making,
            chores_worker=self.chores,
        )
        self.store.start()

    def put(self, topic: str = "T", queue_id: int = 0, size: int = 800):
        return self.store.put(topic, queue_id, bytes(size), b"UNIQ_KEY\x01k\x02", born_at_ms=1, born_host=HOST)

    def flush(self) -> None:
        self.store.request_flush()
        self.store.dispatch()

    def hold(self, switched: SwitchedWorker) -> WaitingWorker:
        switched.late = WaitingWorker()
        return switched.late

    def let_go(self, switched: SwitchedWorker) -> None:
        late, switched.late = switched.late, None
        late.run_all()

    def tick(self, ms: int = 100) -> None:
        self.clock.advance(ms)
        self.store.maintain()


def test_a_roll_does_not_wait_for_the_chores():
    opened = Opened()
    chores = opened.hold(opened.chores)
    opened.put("U")
    opened.flush()
    opened.tick(11_000)
    assert chores.waiting, "derived files are being synced"
    assert [opened.put().status for _ in range(30)] == [PutStatus.OK] * 30


@pytest.mark.parametrize("count", [1, 3])
def test_if_the_next_file_is_not_ready_the_message_is_refused_without_waiting(count):
    opened = Opened(log_files_ahead_max=count)
    making = opened.hold(opened.making)
    results = [opened.put() for _ in range(4 * count + 1)]
    assert [result.status for result in results[:-1]] == [PutStatus.OK] * 4 * count
    refused = results[-1]
    assert refused.status is PutStatus.NOT_WRITABLE
    assert refused.reason == (
        f"the next CommitLog file is not made yet (/store/commitlog/{4096 * count:020d}); try again"
    )
    batch = opened.store.put_batch("T", 0, [(0, bytes(800), b"", None, None, None)], born_at_ms=1, born_host=HOST)
    assert batch.status is PutStatus.NOT_WRITABLE
    assert opened.put(size=1).status is PutStatus.OK, "a message that fits the present file is stored"
    making.run()
    after = opened.put()
    assert (after.status, after.queue_offset) == (PutStatus.OK, len(results))
    opened.flush()
    assert list(read_queue(opened.store, "T", 0)) == list(range(len(results) + 1))
    opened.let_go(opened.making)
    assert opened.store.stop()


def test_the_number_of_full_unflushed_files_is_bounded():
    opened = Opened(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    results = [opened.put() for _ in range(4 * UNFLUSHED_FILES_MAX + 5)]
    assert {result.status for result in results[:-1]} == {PutStatus.OK}
    assert results[-1].status is PutStatus.NOT_WRITABLE
    assert results[-1].reason == (
        f"the next CommitLog file waits until one of {UNFLUSHED_FILES_MAX} full files is flushed "
        f"(/store/commitlog/{4096 * (UNFLUSHED_FILES_MAX + 1):020d}); try again"
    )
    opened.tick(1)
    assert opened.store.flushed_offset > 0, "the flush starts before its usual time"
    assert opened.put().status is PutStatus.OK
    assert opened.store.stop()


def test_the_first_file_is_made_at_the_start():
    opened = Opened()
    opened.hold(opened.making)
    assert [name[-4:] for name in opened.memory.list_dir("/store/commitlog")] == ["0000"]
    assert opened.put().status is PutStatus.OK


def test_a_disk_without_space_for_the_first_file_is_tried_again():
    clock = FakeClock()
    files = FaultFileSystem(MemFileSystem(clock), FaultRule("create", "*/commitlog/*", errno.ENOSPC))
    store = make_store(files, clock)
    store.start()
    assert "can't be created: No space left on device" in store.state().full_reason
    for _ in range(2):
        assert store.put("T", 0, b"", b"", born_at_ms=1, born_host=HOST).status is PutStatus.CREATE_FILE_FAILED
    files.rules.clear()
    clock.advance(1000)
    store.maintain()
    assert store.state().full_reason == ""
    assert store.put("T", 0, b"", b"", born_at_ms=1, born_host=HOST).status is PutStatus.OK


def test_small_files_are_preallocated_further_ahead_than_large_ones():
    def ahead(size: int) -> int:
        return StoreLimits().log_files_ahead(size)

    assert [ahead(size) for size in (1 << 30, 16 << 20, 8 << 20, 256 << 10)] == [1, 1, 2, 8]
    with pytest.raises(AssertionError, match="log_files_ahead_max"):
        StoreLimits(log_files_ahead_max=0)


def test_a_deletion_does_not_wait_for_the_chores():
    opened = Opened()
    for topic in ("T", "U"):
        opened.put(topic)
    opened.flush()
    chores = opened.hold(opened.chores)
    deletion = opened.store.delete_topic("T")
    assert not deletion.done()
    assert opened.store.delete_topic("T") is deletion, "there is one deletion of a topic at a time"
    assert opened.store.get("T", 0, 0, 1).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert opened.put("U").status is PutStatus.OK, "no other topic waits"
    refused = opened.put("T")
    assert (refused.status, refused.reason) == (PutStatus.NOT_WRITABLE, "topic T is being deleted")
    opened.flush()
    chores.run_all()
    assert deletion.result() is True
    assert opened.memory.list_dir("/store/consumequeue") == ["U"]
    assert opened.put("T").queue_offset == 0


def test_files_of_a_topic_are_removed_in_slices_and_a_stop_waits_for_one():
    opened = Opened()
    queues = 3 * SLICE_FILES_MAX
    for queue_id in range(queues):
        opened.put("T", queue_id, size=1)
    opened.put("U")
    opened.flush()
    chores = opened.hold(opened.chores)
    deletion = opened.store.delete_topic("T")
    while len(opened.memory.list_dir("/store/consumequeue/T")) > queues - SLICE_FILES_MAX:
        before = opened.memory.operations
        chores.run()
        assert opened.memory.operations - before <= 3 * SLICE_FILES_MAX
    left = opened.memory.list_dir("/store/consumequeue/T")
    opened.store._remover.is_stopping = True  # The first step of `stop`.
    opened.let_go(opened.chores)
    assert deletion.result() is False
    assert opened.memory.list_dir("/store/consumequeue/T") == left != []
    assert opened.store.stop()
    again = make_store(opened.memory, opened.clock)
    again.start()
    assert set(again.queues()) == {("U", 0)}
    assert opened.memory.list_dir("/store/consumequeue") == ["U"]
    assert again.put("T", 0, b"", b"", born_at_ms=1, born_host=HOST).queue_offset == 0


def test_files_that_can_not_be_removed_block_the_topic_name_until_they_are():
    opened = Opened()
    opened.put("T")
    opened.flush()
    opened.files.rules.append(FaultRule("remove", "*/consumequeue/*", errno.EIO))
    assert isinstance(opened.store.delete_topic("T").exception(), OSError)
    refused = opened.put("T")
    assert refused.status is PutStatus.NOT_WRITABLE
    assert "topic T was deleted, and its files can't be removed: " in refused.reason
    opened.files.rules.clear()
    assert opened.store.delete_topic("T").result() is True
    assert opened.put("T").queue_offset == 0


def test_retention_does_not_wait_for_the_chores():
    opened = Opened(delete_when="")
    for _ in range(100):
        opened.put()
    opened.flush()
    opened.tick(11_000)
    chores = opened.hold(opened.chores)
    opened.tick(DAY_MS)  # The next round is 10 s away.
    files = len(opened.memory.list_dir("/store/commitlog"))
    assert opened.store.clean_expired() == 10
    assert opened.store.clean_expired() == 10
    assert opened.store.min_physical_offset == 20 * 4096
    assert opened.store.min_offset("T", 0) == 80
    assert len(opened.memory.list_dir("/store/commitlog")) == files, "the worker has not begun"
    for _ in range(10):
        opened.tick()
    chores.run_all()
    assert len(opened.memory.list_dir("/store/commitlog")) == files - 20
    assert opened.memory.list_dir("/store/consumequeue/T/0")[0] == f"{8 * 200:020d}"


def test_queues_are_checked_in_slices_and_readers_see_no_removed_units(monkeypatch):
    monkeypatch.setattr(retention, "QUEUES_PER_TICK_MAX", 3)
    opened = Opened(delete_when="")
    queues = range(20)
    for round_ in range(12):
        for queue_id in queues:
            opened.put("T", queue_id, size=100 + round_)
    opened.flush()
    opened.tick(11_000)
    opened.tick(DAY_MS)  # The next round is 10 s away.
    assert opened.store.clean_expired() == 10
    log_min = opened.store.min_physical_offset
    looked_at = [queue for queue in opened.store._queues if queue.corrected_to == log_min]
    assert len(looked_at) == 3, "one slice in each turn"
    for queue_id in queues[10:]:
        low = opened.store.min_offset("T", queue_id)
        assert low > 0
        assert opened.store._queues.find("T", queue_id).unit(low).physical_offset >= log_min
        assert opened.store.get("T", queue_id, 0, 1).status is GetStatus.OFFSET_TOO_SMALL
        assert opened.store.unit_rows("T", queue_id, 0, 1).min_offset == low
    for _ in range(20):
        opened.tick()
    assert all(queue.corrected_to == log_min for queue in opened.store._queues)
    assert retention.QUEUES_PER_TICK_MAX == 3


def test_reading_the_state_takes_the_same_time_for_any_number_of_queues():
    opened = Opened()
    for queue_id in range(50):
        opened.put("T", queue_id)
    opened.flush()
    opened.store._queues.table = None  # An iteration over the queues fails.
    assert opened.store.state().skipped_units == 0
