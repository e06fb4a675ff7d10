"""Foreign files in a queue's folder: a start quickly reports what to move away, or ignores them.

The start must not step through all queue offsets up to a file number far ahead. It must not continue the queue behind
that number either.
"""

from collections.abc import Callable

import pytest

from gantry.model.record import RECORD_BYTES_MIN
from gantry.runtime.rng import Rng
from gantry.storeformat.layout import file_name
from services.broker.store.errors import CorruptStoreError
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, ROOT, make_store, read_queue
from tests.support.virtualtime import FakeClock

SENT = [b"message %d" % number for number in range(25)]
FOLDER = f"{ROOT}/consumequeue/T/0"
FILE_BYTES = 200
TERABYTES_AHEAD = 8_000_000_000_000
BEYOND_ANY_OFFSET = 18446744073709500000
assert TERABYTES_AHEAD % FILE_BYTES == BEYOND_ANY_OFFSET % FILE_BYTES == 0


def put(store: MessageStore, *bodies: bytes) -> list[int]:
    offsets = []
    for body in bodies:
        result = store.put("T", 0, body, b"", born_at_ms=1, born_host=HOST)
        assert result.status is PutStatus.OK, result.reason
        offsets.append(result.queue_offset)
    store.request_flush()
    store.dispatch()
    return offsets


@pytest.fixture(params=[False, True], ids=["stop", "crash"])
def files(request) -> MemFileSystem:
    """Return the files of a store with some files of a queue."""
    clock = FakeClock()
    files = MemFileSystem(clock)
    store = make_store(files, clock)
    store.start()
    put(store, *SENT)
    clock.advance(11_000)
    store.maintain()
    if not request.param:
        assert store.stop()
    files.sync_everything()
    return files.crash_clone(Rng(0))


def check(files: MemFileSystem) -> None:
    """Start: the queue has its messages and nothing else, and continues where it ended."""
    store = make_store(files, files.clock)
    store.start()
    assert [body for _, body, _ in read_queue(store, "T", 0).values()] == SENT
    assert put(store, b"next") == [len(SENT)]
    assert store.stop()


def is_refused(files: MemFileSystem, path: str) -> None:
    """Assert that two starts fail, and that moving the path away is enough for the next one."""
    for _ in range(2):
        with pytest.raises(CorruptStoreError, match="ove it away") as caught:
            make_store(files, files.clock).start()
        assert caught.value.path == path
    if files.is_dir(path):
        files.remove_dir(path)
    else:
        files.remove(path)
    check(files)


def blank(files: MemFileSystem) -> bytes:
    return bytes(FILE_BYTES)


def copied(files: MemFileSystem) -> bytes:
    return files.read(f"{FOLDER}/{file_name(0)}")


@pytest.mark.parametrize("content", [blank, copied])
@pytest.mark.parametrize("start", [TERABYTES_AHEAD, BEYOND_ANY_OFFSET])
def test_a_file_whose_number_no_queue_of_this_log_can_have_reached(
    files, start: int, content: Callable[[MemFileSystem], bytes]
):
    path = f"{FOLDER}/{file_name(start)}"
    files.write(path, content(files))
    is_refused(files, path)


@pytest.mark.parametrize("content", [blank, copied])
def test_a_queue_that_has_nothing_but_a_file_far_ahead(files, content: Callable[[MemFileSystem], bytes]):
    folder = f"{ROOT}/consumequeue/T/7"
    files.make_dirs(folder)
    path = f"{folder}/{file_name(TERABYTES_AHEAD)}"
    files.write(path, content(files))
    is_refused(files, path)


def test_a_copy_of_a_file_under_a_number_that_the_queue_may_reach(files):
    path = f"{FOLDER}/{file_name(800)}"
    files.write(path, copied(files))
    is_refused(files, path)


def test_a_blank_file_under_a_number_that_the_queue_may_reach_is_ignored(files):
    """A crash may leave such a file; the start removes it."""
    files.write(f"{FOLDER}/{file_name(800)}", bytes(FILE_BYTES))
    check(files)
    assert not files.exists(f"{FOLDER}/{file_name(800)}")


def test_a_blank_file_far_ahead_that_a_long_log_would_allow_is_ignored_at_once(files):
    """The log claims petabytes; a start that went unit by unit would take hours."""
    last = files.list_dir(f"{ROOT}/commitlog")[-1]
    start = (1 << 50) - (1 << 50) % FILE_BYTES
    log_start = start // 20 * RECORD_BYTES_MIN
    files.write(f"{ROOT}/commitlog/{file_name(log_start - log_start % 4096 + 4096)}", bytes(4096))
    files.write(f"{FOLDER}/{file_name(start)}", bytes(FILE_BYTES))
    files.write(f"{ROOT}/consumequeue/T/0/notes.txt", b"left alone")
    check(files)
    assert last in files.list_dir(f"{ROOT}/commitlog")
    assert not files.exists(f"{FOLDER}/{file_name(start)}")


@pytest.mark.parametrize("start", [0, 200, 400, 600])
def test_a_folder_in_the_place_of_a_file(files, start):
    path = f"{FOLDER}/{file_name(start)}"
    if files.exists(path):
        files.remove(path)
    files.make_dirs(path)
    is_refused(files, path)


def test_a_folder_in_the_place_of_a_log_file(files):
    path = f"{ROOT}/commitlog/{file_name(40960)}"
    files.make_dirs(path)
    is_refused(files, path)


def test_a_file_in_the_place_of_a_topic_s_folder_is_left_alone(files):
    files.write(f"{ROOT}/consumequeue/notes", b"somebody's")
    check(files)
    assert files.read(f"{ROOT}/consumequeue/notes") == b"somebody's"
