"""A start or a stop ends at any of its file operations, by a kill or a power cut: the next start still knows the owner.

If the next start took the store for another broker's, it would discard the notes of deletions. Then a deleted topic
would come back, and the start would read more of the log than the checkpoint requires.
"""

from collections.abc import Callable

import pytest

from gantry.runtime.rng import Rng
from gantry.storeformat.manifest import StoreManifest
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus, RecoveryReport
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, ROOT, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock

LOG_FILE_BYTES = small_settings().mapped_file_size_commit_log
KEPT = [b"kept %d" % number for number in range(60)]
PROCESS_ID = 1
"""The process id of every broker in a container."""


class KilledError(BaseException):
    """The process ends here."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def new_store(files: MemFileSystem, clock: FakeClock, **changes) -> MessageStore:
    return make_store(files, clock, small_settings(**changes), process_id=PROCESS_ID)


def put(store: MessageStore, *bodies: bytes, topic: str = "KEPT") -> None:
    for body in bodies:
        result = store.put(topic, 0, body, b"", born_at_ms=1, born_host=HOST)
        assert result.status is PutStatus.OK, result.reason
    store.request_flush()
    store.dispatch()


def readable(store: MessageStore, topic: str = "KEPT") -> list[bytes]:
    return [body for _, body, _ in read_queue(store, topic, 0).values()]


def stopped_store(clock: FakeClock) -> MemFileSystem:
    """Return a store of several log files with a deleted topic, and one whose deletion the broker has not saved."""
    files = MemFileSystem(clock)
    store = new_store(files, clock)
    store.start()
    for number, body in enumerate(KEPT):
        put(store, b"dead", topic="GONE" if number % 2 else "UNSAVED")
        put(store, body)
    for topic in ("GONE", "UNSAVED"):
        assert store.delete_topic(topic).result()
    store.mark_deletion_saved("GONE").result()
    assert store.stop()
    return files


def killed(
    files: MemFileSystem, clock: FakeClock, act: Callable[[MemFileSystem], object], number: int, cuts: Rng | None
) -> MemFileSystem | None:
    """Act on a copy until the operation with a number; return the files, or None if there are fewer operations.

    Args:
        files: A file system without unsynced changes.
        clock: The copy's clock.
        act: The action to kill.
        number: Index of the last operation, counting only those that change files, from 0.
        cuts: Decides what a power cut takes; None for a kill, which takes nothing.
    """
    copy = files.crash_clone(Rng(0))
    left = number

    def kill(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError(f"{operation} {path}")

    copy.on_operation = kill
    try:
        act(copy)
    except KilledError:
        copy.on_operation = None
        if cuts is None:
            copy.sync_everything()
        return copy.crash_clone(cuts or Rng(0))
    return None


def check(files: MemFileSystem, clock: FakeClock, kept: list[bytes], end: int) -> RecoveryReport:
    """Start for good: nothing is lost or back from deletion, and no more is read than the checkpoint requires."""
    store = new_store(files, clock)
    report = store.start()
    assert readable(store)[: len(KEPT)] == kept
    assert (store.max_offset("GONE", 0), store.max_offset("UNSAVED", 0)) == (0, 0), "a deleted topic is back"
    assert store.unsaved_deletions() == ["UNSAVED"]
    assert report.scanned_from >= end - end % LOG_FILE_BYTES
    assert report.acknowledged_lost is None
    assert report.lost == ()
    put(store, b"new", topic="GONE")
    assert readable(store, "GONE") == [b"new"]
    assert store.stop()
    return report


def check_at_every_operation(
    files: MemFileSystem, clock: FakeClock, act: Callable[[MemFileSystem], object], *, end: int, cuts: Rng | None
) -> int:
    """Kill at each operation, then kill some starts after it, then start; return the number of operations."""
    choice, number = Rng(7), 0
    while (left := killed(files, clock, act, number, cuts)) is not None:
        for second in {choice.below(12), choice.below(40)}:
            again = killed(left, clock, lambda copy: new_store(copy, clock).start(), second, cuts)
            if again is not None:
                check(again, clock, KEPT, end)
        check(left, clock, KEPT, end)
        number += 1
    return number


@pytest.mark.parametrize("cuts", [None, Rng(1), Rng(2)])
def test_a_start_that_ends_at_any_operation_leaves_the_store_recognised_as_ours(clock, cuts):
    files = stopped_store(clock)
    end = StoreManifest.load(files, ROOT).clean_stop_offset
    assert end > 2 * LOG_FILE_BYTES
    assert check_at_every_operation(files, clock, lambda copy: new_store(copy, clock).start(), end=end, cuts=cuts) > 10


@pytest.mark.parametrize("cuts", [None, Rng(1), Rng(2)])
def test_a_stop_that_ends_at_any_operation_leaves_the_store_recognised_as_ours(clock, cuts):
    files = stopped_store(clock)
    end = StoreManifest.load(files, ROOT).clean_stop_offset

    def stop(copy: MemFileSystem) -> None:
        hook, copy.on_operation = copy.on_operation, None
        store = new_store(copy, clock)
        store.start()
        put(store, b"last")
        copy.on_operation = hook
        assert store.stop()

    assert check_at_every_operation(files, clock, stop, end=end, cuts=cuts) > 8


def cut_short(files: MemFileSystem, path: str) -> None:
    files.write(path, files.read(path)[:110])
    files.sync_everything()


def mark_bad(files: MemFileSystem, path: str) -> None:
    files.make_unreadable(path, 0, 1)


@pytest.mark.parametrize("damage", [cut_short, mark_bad])
@pytest.mark.parametrize("cuts", [None, Rng(1), Rng(2)])
@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_start_that_ends_while_it_repairs_a_queue_is_repeated(
    clock: FakeClock, number: int, cuts: Rng | None, damage: Callable[[MemFileSystem, str], None]
) -> None:
    files, operations = stopped_store(clock), 0
    files.sync_everything()
    folder = f"{ROOT}/consumequeue/KEPT/0"
    names = files.list_dir(folder)
    assert len(names) == 6

    def start(copy: MemFileSystem) -> None:
        damage(copy, f"{folder}/{names[number]}")
        new_store(copy, clock).start()

    while (left := killed(files, clock, start, operations, cuts)) is not None:
        check(left, clock, KEPT, 0)
        operations += 1
    assert operations > 10


def ran_elsewhere(files: MemFileSystem, clock: FakeClock, *bodies: bytes, is_crash: bool) -> MemFileSystem:
    """Return the store after a run of a broker that writes no checksums and no mark."""
    manifest = StoreManifest.load(files, ROOT)
    files.remove(f"{ROOT}/config/gantry.json")
    store = new_store(files, clock, enabled_append_prop_crc=False)
    store.start()
    put(store, *bodies)
    if is_crash:
        files.sync_everything()
        files = files.crash_clone(Rng(0))
    else:
        assert store.stop()
    manifest.dump(files, ROOT)
    return files


def test_the_records_of_another_broker_outlive_a_start_that_ends_at_any_operation(clock):
    files = MemFileSystem(clock)
    store = new_store(files, clock)
    store.start()
    put(store, *KEPT)
    files.sync_everything()
    files, number = ran_elsewhere(files.crash_clone(Rng(0)), clock, b"theirs", b"too", is_crash=False), 0
    while (left := killed(files, clock, lambda copy: new_store(copy, clock).start(), number, None)) is not None:
        again = new_store(left, clock)
        assert again.start().lost == ()
        assert readable(again) == [*KEPT, b"theirs", b"too"]
        number += 1
    assert number > 10


def test_a_crash_of_another_broker_with_the_same_process_id_is_not_taken_for_ours(clock):
    files = ran_elsewhere(stopped_store(clock), clock, b"theirs", is_crash=True)
    assert files.read(f"{ROOT}/abort") == b"%d" % PROCESS_ID
    store = new_store(files, clock)
    assert store.start().lost == ()
    assert readable(store) == [*KEPT, b"theirs"]
    assert store.unsaved_deletions() == [], "the notes are of another life of the store"


def test_while_the_store_runs_the_abort_file_names_its_process(clock):
    files = stopped_store(clock)
    crashed = killed(files, clock, lambda copy: new_store(copy, clock).start(), 12, None)
    assert crashed is not None
    make_store(crashed, clock, process_id=77).start()
    assert crashed.read(f"{ROOT}/abort") == b"77"
