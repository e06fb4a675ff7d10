"""Deleted topics stay deleted, and a topic created again begins at 0, whatever the clock, disk and power do."""

import errno
import traceback

import pytest

from gantry.model.record import decode_record
from gantry.runtime.rng import Rng
from gantry.storeformat.layout import UNIT, UNIT_SIZE_BYTES
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus
from services.broker.store.settings import StoreLimits
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, make_store, read_queue, small_settings
from tests.support.virtualtime import EPOCH_MS, FakeClock
from tests.support.waitingworker import SwitchedWorker, WaitingWorker

HOUR_MS = 3_600_000
OLD = [b"old %d" % number for number in range(20)]
NEW = [b"new %d" % number for number in range(4)]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def started(files, clock: FakeClock) -> MessageStore:
    store = make_store(files, clock, small_settings())
    store.start()
    return store


def put(store: MessageStore, *bodies: bytes, topic: str = "T") -> None:
    for body in bodies:
        result = store.put(topic, 0, body, b"KEYS\x01k\x02", born_at_ms=1, born_host=HOST)
        assert result.status is PutStatus.OK, result.reason
    store.request_flush()
    store.dispatch()


def readable(store: MessageStore, topic: str = "T") -> list[bytes]:
    return [body for _, body, _ in read_queue(store, topic, 0).values()]


def restart(store: MessageStore, files: MemFileSystem, clock: FakeClock, *, is_crash: bool, seed: int = 1):
    """Return the store of a next life, and its files."""
    if is_crash:
        files = files.crash_clone(Rng(seed))
    else:
        assert store.stop()
    return started(files, clock), files


@pytest.mark.parametrize("is_crash", [False, True])
@pytest.mark.parametrize("back_ms", [1, HOUR_MS])
def test_a_clock_set_back_before_a_deletion_brings_no_message_back(clock, is_crash, back_ms):
    files = MemFileSystem(clock)
    store = started(files, clock)
    put(store, *OLD)
    clock.set_wall(EPOCH_MS - back_ms)
    store.delete_topic("T")
    for life in range(3):
        store, files = restart(store, files, clock, is_crash=is_crash, seed=life)
        assert store.max_offset("T", 0) == life
        put(store, b"new %d" % life)
        assert readable(store) == [b"new %d" % number for number in range(life + 1)]


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_clock_set_back_between_lives_brings_no_message_back(clock, is_crash):
    files = MemFileSystem(clock)
    store = started(files, clock)
    put(store, *OLD)
    clock.advance(11_000)
    store.maintain()
    store, files = restart(store, files, clock, is_crash=is_crash)
    clock.set_wall(EPOCH_MS - HOUR_MS)
    store.delete_topic("T")
    store, files = restart(store, files, clock, is_crash=is_crash)
    assert store.max_offset("T", 0) == 0
    put(store, b"new")
    assert readable(store) == [b"new"]


@pytest.mark.parametrize("remembered", [0, 65_536])
@pytest.mark.parametrize("next_life", ["none", "stop", "crash"])
def test_a_deletion_while_dispatch_is_paused(clock, remembered, next_life):
    memory = MemFileSystem(clock)
    files = FaultFileSystem(memory)
    store = make_store(files, clock, limits=StoreLimits(dispatch_pending_max=remembered))
    store.start()
    put(store, *OLD)
    others = [b"U"] * (store.settings.mapped_file_size_consume_queue // UNIT_SIZE_BYTES + 1)
    put(store, *others[1:], topic="U")
    files.rules.append(FaultRule("create", "*/consumequeue/U/*", errno.ENOSPC))
    put(store, others[0], topic="U")  # Dispatch finds no room: the unit belongs into the queue's second file.
    files.rules.append(FaultRule("create", "*/consumequeue/*", errno.ENOSPC))
    store._dispatcher.failure = None
    store._write_blockers.refresh()  # As if there had been room for a moment: more is appended than dispatched.
    put(store, b"late", b"later")
    assert store.state().dispatch_behind_bytes > 0
    store.delete_topic("T")
    files.rules.clear()
    store.maintain()
    assert store.max_offset("T", 0) == 0, "nothing that was under way builds the queue again"
    put(store, b"new")
    assert (readable(store), readable(store, "U")) == ([b"new"], others)
    if next_life != "none":
        store, _ = restart(store, memory, clock, is_crash=next_life == "crash")
        assert (readable(store), readable(store, "U")) == ([b"new"], others)


@pytest.mark.parametrize("seed", range(5))
def test_a_crash_at_any_moment_of_a_deletion_leaves_all_messages_or_none(clock, seed):
    clones: list[MemFileSystem] = []
    files = MemFileSystem(clock)
    store = started(files, clock)
    for some in (OLD[:12], OLD[12:]):
        put(store, *some)
        put(store, b"U", topic="U")
        clock.advance(11_000)
        store.maintain()
    put(store, b"not synced yet")
    files.on_operation = lambda operation, path: clones.append(files.crash_clone(Rng(seed * 1000 + len(clones))))
    store.delete_topic("T")
    clock.advance(11_000)
    store.maintain()
    files.on_operation = None
    clones.append(files.crash_clone(Rng(seed)))
    found = []
    for clone in clones:
        again = started(clone, clock)
        assert readable(again, "U") == [b"U", b"U"]
        found.append(len(readable(again)))
        first = again.max_offset("T", 0)
        assert first == found[-1]
        put(again, b"new")
        assert again.stop()
        assert readable(started(clone, clock))[-1] == b"new"
    assert set(found) <= {0, len(OLD) + 1}, found
    assert found == sorted(found, reverse=True), "once it is gone it stays so"
    assert found[0] > found[-1] == 0


def test_a_removal_that_waits_takes_no_file_of_the_topic_that_is_made_again(clock):
    files, chores = MemFileSystem(clock), SwitchedWorker()
    store = make_store(files, clock, small_settings(), chores_worker=chores)
    store.start()
    put(store, *OLD)
    put(store, *([bytes(300)] * 60), topic="BUSY")
    clock.advance(11_000)
    store.maintain()
    store.maintain()
    chores.late = worker = WaitingWorker()
    clock.advance(2 * HOUR_MS)
    assert store.clean_expired() > 3, "files of the queue wait behind those of the log"
    deleted = store.delete_topic("T")
    while not deleted.done():
        worker.run()
    put(store, *NEW)
    worker.run_all()
    assert readable(store) == NEW
    assert files.list_dir("/store/consumequeue/T/0") == [f"{0:020d}"]
    chores.late = None
    store, _ = restart(store, files, clock, is_crash=True)
    assert readable(store) == NEW
    assert store.max_offset("T", 0) == len(NEW)


def test_store_times_of_the_deleted_and_the_new_messages_are_in_order(clock):
    files = MemFileSystem(clock)
    store = started(files, clock)
    put(store, b"old")
    clock.set_wall(EPOCH_MS - HOUR_MS)
    store.delete_topic("T")
    put(store, b"new")
    (record,) = store.get("T", 0, 0, 1).records
    assert decode_record(record).stored_at_ms == EPOCH_MS
    assert store.stop()
    assert readable(started(files, clock)) == [b"new"], "it is behind the deletion in the log, at the same time"


def test_a_torn_unit_does_not_make_the_queue_of_a_new_topic_dead(clock):
    files = MemFileSystem(clock)
    store = started(files, clock)
    put(store, *OLD)
    store.delete_topic("T")
    put(store, *NEW)
    clock.advance(11_000)
    store.maintain()
    for _ in range(30):
        put(store, b"U" * 100, topic="U")
    clock.advance(11_000)
    store.maintain()
    crashed = files.crash_clone(Rng(1))
    # The unit after the last one: its size is on the disk, its offset is not, so it points to a record of the old
    # topic.
    path = f"/store/consumequeue/T/0/{0:020d}"
    crashed.open(path).map()[UNIT_SIZE_BYTES * len(NEW) : UNIT_SIZE_BYTES * (len(NEW) + 1)] = UNIT.pack(0, 116, 0)
    again = make_store(crashed, clock)
    assert again.start().scanned_from > 0, "the log is not read again as a whole"
    assert readable(again) == NEW
    put(again, b"next")
    assert readable(again) == [*NEW, b"next"]


class Remade:
    """A topic that is filled, deleted and created again at random, under a clock that is set back and forth.

    Attributes:
        sent: Body and physical end of all messages of the present topic.
        is_going: The deletion is in progress.
    """

    def __init__(self, files: MemFileSystem, clock: FakeClock, rng: Rng) -> None:
        self.rng, self.clock = rng, clock
        self.sent: list[tuple[bytes, int]] = []
        self.flushed = 0
        self.is_going = False
        self.number = 0
        self.store = make_store(files, clock, small_settings(delete_when=""), on_flushed=self._flushed)
        self.store.start()

    def _flushed(self, offset: int) -> None:
        self.flushed = offset

    def step(self) -> None:
        what = self.rng.below(100)
        if what < 60:
            self.number += 1
            topic, body = self.rng.choice((("T", b"T %d"), ("T", b"T %d"), ("U", b"U %d")))
            result = self.store.put(topic, 0, body % self.number, b"", born_at_ms=1, born_host=HOST)
            if topic == "T":
                assert result.queue_offset == len(self.sent)
                self.sent.append((body % self.number, result.next_offset))
        elif what < 85:
            self.store.request_flush()
            self.store.dispatch()
        elif what < 95:
            self.clock.advance(self.rng.choice((100, 11_000)))
            self.store.maintain()
        elif what < 97:
            self.clock.set_wall(self.clock.now_ms() + self.rng.choice((-HOUR_MS, HOUR_MS, -5)))
        else:
            self.is_going = True
            self.store.delete_topic("T")
            self.is_going, self.sent = False, []

    def check(self, files: MemFileSystem) -> None:
        """Open the files after a cut: only messages of this topic, at their offsets, and all acknowledged ones."""
        acknowledged = {offset for offset, (_, end) in enumerate(self.sent) if end <= self.flushed}
        clock = FakeClock(self.clock.now_ms() - self.rng.choice((0, HOUR_MS)))
        again = started(files, clock)
        # A hole that the cut left may be followed by later messages that were not acknowledged.
        found = {offset: body for offset, (_, body, _) in read_queue(again, "T", 0).items()}
        assert found.items() <= {offset: body for offset, (body, _) in enumerate(self.sent)}.items()
        assert acknowledged <= found.keys() or (self.is_going and not found)
        first_new = again.max_offset("T", 0)
        assert first_new == max(found, default=-1) + 1
        put(again, b"new")
        assert again.stop()
        again = started(files, clock)
        assert readable(again) == [*found.values(), b"new"]
        assert again.max_offset("T", 0) == first_new + 1


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_while_topics_are_deleted_and_made_again(clock, seed):
    cuts = 0
    failures: list[str] = []
    remade: Remade | None = None

    def cut(operation: str, path: str) -> None:
        nonlocal cuts
        if remade is None or files.operations % 3:
            return
        cuts += 1
        try:
            remade.check(files.crash_clone(rng))
        except Exception:  # noqa: BLE001 - raised here it would end a worker's job, and be taken for the disk's.
            failures.append(f"seed {seed}, cut before operation {files.operations}: {traceback.format_exc()}")

    rng = Rng(seed)
    files = MemFileSystem(clock, on_operation=cut)
    remade = Remade(files, clock, rng)
    for _ in range(400):
        remade.step()
        assert not failures, failures[0]
    assert cuts > 100
