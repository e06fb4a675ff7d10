"""Dispatch, group commit, and the flush intervals of derived files: their order, and failures of the disk."""

import errno

import pytest

from gantry.runtime.rng import Rng
from gantry.runtime.workers import InlineWorker
from gantry.storeformat.layout import UNIT, decode_checkpoint, decode_queue_count
from services.broker.store.log.commitlog import UNWRITTEN_BYTES_MAX
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import GetStatus, PutStatus
from services.broker.store.settings import FlushDiskType, StoreLimits
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, QUEUES, Workload, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock
from tests.support.waitingworker import WaitingWorker


class Opened:
    def __init__(self, *, worker=None, **changes) -> None:
        self.clock = FakeClock()
        self.memory = MemFileSystem(self.clock)
        self.files = FaultFileSystem(self.memory)
        self.flushed: list[int] = []
        self.failed: list[str] = []
        self.arrived: list[tuple[str, int, int, bytes]] = []
        self.worker = worker or InlineWorker()
        self.store: MessageStore = make_store(
            self.files, self.clock, small_settings(**changes), on_flushed=self.flushed.append,
            on_flush_failed=self.failed.append, on_arrival=lambda *arrival: self.arrived.append(arrival),
            flush_worker=InlineWorker(),
        )  # fmt: skip
        self.store.start()
        self.store._flush_worker = self.store._group_commit._worker = self.worker

    def put(self, topic="T", queue_id=0, tag="a"):
        properties = f"TAGS\x01{tag}\x02UNIQ_KEY\x01k\x02".encode()
        return self.store.put(topic, queue_id, b"body", properties, born_at_ms=1, born_host=HOST)

    def checkpoint(self):
        return decode_checkpoint(self.memory.read("/store/checkpoint"))


def test_both_ways_of_dispatch_write_the_same_bytes():
    results = []
    for pending_max in (1 << 16, 0, 7):
        clock = FakeClock()
        files = MemFileSystem(clock)
        store = make_store(files, clock, limits=StoreLimits(dispatch_pending_max=pending_max))
        store.start()
        workload = Workload(clock, Rng(42))
        for _ in range(300):
            workload.rng.choice((workload.put_one, workload.put_one, workload.put_batch))(store)
            if workload.rng.chance(0.1):
                workload.flush(store)
        workload.flush(store)
        assert store.stop()
        paths = [f"/store/{top}" for top in ("commitlog", "index")]
        paths += [f"/store/consumequeue/{topic}/{queue_id}" for topic, queue_id in QUEUES]
        results.append(
            {f"{path}/{name}": files.read(f"{path}/{name}") for path in paths for name in files.list_dir(path)}
        )
    assert results[0] == results[1] == results[2]
    assert len(results[0]) > 100


def test_arrivals_are_announced_by_queue_once_they_are_readable():
    opened = Opened()
    seen = []

    def arrived(topic, queue_id, max_offset, units):
        codes = [chr(code) for _, _, code in UNIT.iter_unpack(units)]
        seen.append((topic, queue_id, max_offset, codes, opened.store.get(topic, queue_id, max_offset - 1, 1).status))

    opened.store._dispatcher._on_arrival = arrived
    opened.put()
    opened.put(queue_id=1, tag="b")
    opened.put(tag="c")
    assert seen == []
    opened.store.request_flush()
    assert opened.store.dispatch() == 3
    assert seen == [
        ("T", 0, 2, ["a", "c"], GetStatus.FOUND),
        ("T", 1, 1, ["b"], GetStatus.FOUND),
    ]


def test_all_puts_of_a_turn_share_one_sync():
    opened = Opened(worker=WaitingWorker())
    ends = [opened.put().next_offset for _ in range(3)]
    opened.store.request_flush()
    opened.store.request_flush()
    assert len(opened.worker.waiting) == 1
    before = opened.memory.operations
    opened.worker.run()
    assert opened.flushed == [ends[-1]]
    assert opened.memory.operations - before == 1
    opened.store.request_flush()
    assert opened.worker.waiting == [], "nothing new, nothing to do"


def test_a_record_appended_during_a_sync_is_in_the_next_one():
    opened = Opened(worker=WaitingWorker())
    first = opened.put().next_offset
    opened.store.request_flush()
    late = []

    def put_once(operation, path):
        opened.memory.on_operation = None
        late.append(opened.put().next_offset)

    opened.memory.on_operation = put_once
    opened.worker.run()
    assert opened.flushed == [first]
    opened.store.request_flush()
    opened.worker.run()
    assert opened.flushed == [first, late[0]]


def test_a_flush_over_several_files():
    opened = Opened()
    end = [opened.put().next_offset for _ in range(80)][-1]
    assert end > 2 * 4096
    opened.store.request_flush()
    assert opened.flushed == [end]
    assert opened.store.flushed_offset == opened.store.confirm_offset == end


def test_a_failed_sync_is_never_reported_as_flushed_and_never_retried():
    opened = Opened()
    opened.put()
    opened.store.request_flush()
    opened.files.rules.append(FaultRule("sync", "*/commitlog/*", errno.EIO, times=1))
    opened.put()
    opened.store.request_flush()
    opened.put()
    opened.store.request_flush()
    opened.clock.advance(60_000)
    opened.store.maintain()
    assert len(opened.flushed) == 1
    (reason,) = opened.failed
    assert reason.startswith("the CommitLog can't be flushed: Input/output error")
    refused = opened.put()
    assert (refused.status, refused.reason) == (PutStatus.NOT_WRITABLE, reason)
    assert opened.store.state().reason == reason
    assert opened.store.dispatch() == 1, "what was flushed before is served"
    assert not opened.store.stop()
    assert opened.memory.exists("/store/abort")


@pytest.mark.parametrize("flush", FlushDiskType)
def test_a_failed_write_is_never_confirmed_and_never_retried(flush):
    opened = Opened(flush_disk_type=flush)
    written = opened.put().next_offset
    opened.store.request_flush()
    opened.files.rules.append(FaultRule("pwrite", "*/commitlog/*", errno.EROFS, times=1))
    lost = opened.put().next_offset
    assert opened.store.write_out() == opened.store.write_out() == written < lost
    (reason,) = opened.failed
    assert reason.startswith("the CommitLog can't be written: Read-only file system (/store/commitlog/")
    refused = opened.put()
    assert (refused.status, refused.reason) == (PutStatus.NOT_WRITABLE, reason)
    opened.store.maintain()
    assert opened.store.state().reason == reason
    assert opened.store.dispatch() == 1, "what was written before is served"
    assert opened.store.confirm_offset == written
    assert not opened.store.stop()
    assert opened.memory.exists("/store/abort")


def test_records_above_the_gather_limit_are_written_at_once():
    opened = Opened(flush_disk_type=FlushDiskType.ASYNC_FLUSH, mapped_file_size_commit_log=4 << 20)
    end = 0
    while opened.store.confirm_offset == 0:
        assert end < UNWRITTEN_BYTES_MAX
        end = opened.put().next_offset


def test_a_write_that_fails_while_the_file_is_changed_refuses_the_message():
    opened = Opened(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    first = opened.put()
    opened.files.rules.append(FaultRule("pwrite", "*/commitlog/*", errno.EIO))
    results = [first]
    while results[-1].status is PutStatus.OK:
        results.append(opened.put())
    assert results[-1].status is PutStatus.NOT_WRITABLE
    assert results[-1].reason.startswith("the CommitLog can't be written: Input/output error")
    assert opened.store.write_out() == 0, "the messages before it must not be acknowledged either"


def test_an_error_of_the_flush_listener_is_raised():
    opened = Opened()
    opened.store._group_commit._on_flushed = lambda offset: 1 // 0
    opened.put()
    opened.store.request_flush()
    opened.put()
    with pytest.raises(ZeroDivisionError):
        opened.store.request_flush()


def test_async_flush_is_confirmed_when_written_and_synced_at_its_interval():
    opened = Opened(flush_disk_type=FlushDiskType.ASYNC_FLUSH, mapped_file_size_commit_log=1 << 20)
    end = opened.put().next_offset
    assert opened.store.confirm_offset == 0
    assert opened.store.write_out() == opened.store.confirm_offset == end
    assert opened.store.dispatch() == 1
    opened.clock.advance(10_000)
    opened.store.maintain()
    assert opened.flushed == [end], "thorough: the checkpoint is less than one page"
    for _ in range(30):
        end = opened.put().next_offset
    opened.clock.advance(500)
    opened.store.maintain()
    assert len(opened.flushed) == 1, "less than four pages"
    while end < 5 * 4096:
        end = opened.put().next_offset
    opened.clock.advance(499)
    opened.store.maintain()
    assert len(opened.flushed) == 1
    opened.clock.advance(1)
    opened.store.maintain()
    assert opened.flushed[-1] == end
    end = opened.put().next_offset
    opened.clock.advance(9_500)
    opened.store.maintain()
    assert opened.flushed[-1] == end, "thorough"


def test_sync_flush_leaves_nothing_unflushed_for_long():
    opened = Opened()
    end = opened.put().next_offset
    opened.clock.advance(500)
    opened.store.maintain()
    assert opened.flushed == [end]


def test_the_checkpoint_follows_a_thorough_flush():
    opened = Opened()
    result = opened.put()
    opened.store.request_flush()
    opened.store.dispatch()
    assert opened.checkpoint().confirm_physical_offset == 0
    opened.clock.advance(10_000)
    opened.store.maintain()
    checkpoint = opened.checkpoint()
    assert checkpoint == (result.stored_at_ms, result.stored_at_ms, 0, 0, result.next_offset)
    for folder in ("/store/consumequeue/T/0", "/store/consumequeue/T", "/store/index"):
        name = opened.memory.list_dir(folder)[0]
        for seed in range(10):
            assert opened.memory.crash_clone(Rng(seed)).exists(f"{folder}/{name}")


def test_the_checkpoint_never_covers_unflushed_records():
    opened = Opened(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    opened.put()
    opened.store.dispatch()
    opened.store._derived.flush_now()
    assert opened.checkpoint() == (0, opened.clock.now_ms(), 0, 0, 0)


def test_with_async_flush_the_checkpoint_has_the_previous_count_of_queues():
    """The log is dispatched further than it is flushed, and queues can be counted only as far as they are dispatched."""
    opened = Opened(worker=WaitingWorker(), flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    ends = []
    for _ in range(3):
        ends.append(opened.put().next_offset)
        opened.store.dispatch()
        opened.worker.run()
        opened.put("U")
        opened.store.dispatch()
        opened.clock.advance(10_000)
        opened.store.maintain()
    found = decode_queue_count(opened.memory.read("/store/checkpoint"))
    assert found is not None
    assert opened.store.flushed_offset < opened.store.dispatched_offset
    assert (found.confirm_physical_offset, found.units) == (opened.checkpoint().confirm_physical_offset, 4)
    assert ends[1] < found.confirm_physical_offset <= opened.store.flushed_offset


def test_queues_are_not_counted_while_dispatch_is_paused():
    """Some queues may have their units already: the next start would consider these missing."""
    opened = Opened()
    for _ in range(15):
        opened.put()
        opened.put("U")
    opened.store.request_flush()
    opened.files.rules.append(FaultRule("create", "*/consumequeue/U/*", errno.ENOSPC))
    opened.store.dispatch()
    opened.clock.advance(10_000)
    opened.store._derived.flush_now()
    for units in (0, None):  # The previous count is still right.
        count = decode_queue_count(opened.memory.read("/store/checkpoint"))
        assert (count and count.units) == units
        opened.store._derived.flush_now()
    opened.files.rules.clear()
    opened.store.maintain()
    opened.store._derived.flush_now()
    count = decode_queue_count(opened.memory.read("/store/checkpoint"))
    assert count == (opened.store.dispatched_offset, 30, 4, 0, 0)


def test_a_checkpoint_that_can_not_be_written_stops_the_store():
    opened = Opened()
    opened.put()
    opened.store.request_flush()
    opened.store.dispatch()
    opened.files.rules.append(FaultRule("sync", "*/consumequeue/*"))
    opened.clock.advance(10_000)
    opened.store.maintain()
    opened.store.maintain()
    assert opened.put().reason.startswith("derived files can't be flushed: Input/output error")
    assert opened.checkpoint().confirm_physical_offset == 0
    assert not opened.store.stop()


@pytest.mark.parametrize("path", ["*/consumequeue/*", "*/index/*"])
def test_dispatch_waits_for_space_and_continues(path):
    opened = Opened()
    for _ in range(30):
        opened.put()
        opened.put("U")
    opened.store.request_flush()
    rule = FaultRule("create", path, errno.ENOSPC, after=2 if "queue" in path else 0)
    opened.files.rules.append(rule)
    opened.store.dispatch()
    state = opened.store.state()
    assert state.reason.startswith("messages can't be made readable: /store/")
    assert state.dispatch_behind_bytes > 0
    assert opened.put().status is PutStatus.NOT_WRITABLE
    opened.files.rules.clear()
    opened.store.maintain()
    assert opened.store.state().writable
    assert opened.store.dispatched_offset == opened.store.confirm_offset
    for topic in ("T", "U"):
        assert list(read_queue(opened.store, topic, 0)) == list(range(30))
    assert opened.store.stop()


@pytest.mark.parametrize("mode", FlushDiskType)
def test_a_log_that_waits_for_replicas_confirms_only_what_they_have(mode):
    opened = Opened(flush_disk_type=mode)
    replicated = 0
    opened.store.wait_for_replicas(lambda: replicated)
    first, second = opened.put(), opened.put()
    opened.store.request_flush()
    opened.store.dispatch()
    assert (opened.store.confirm_offset, opened.store.dispatched_offset, opened.arrived) == (0, 0, [])
    replicated = first.next_offset
    opened.store.dispatch()
    assert opened.store.dispatched_offset == first.next_offset
    replicated = second.next_offset + 1000
    opened.store.dispatch()
    assert opened.store.dispatched_offset == opened.store.confirm_offset == second.next_offset
    replicated = 0
    third = opened.put()
    opened.store.request_flush()
    opened.store.wait_for_replicas(None)
    opened.store.dispatch()
    assert opened.store.dispatched_offset == third.next_offset
    assert opened.store.stop()
