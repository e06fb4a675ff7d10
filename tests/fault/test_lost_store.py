"""A broker that no longer owns its store stops writing and ends: another broker's files must stay intact."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gantry.remoting.codes import ResponseCode
from gantry.remoting.errors import RemotingError
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.layout import ABORT_FILE, LOCK_FILE
from services.broker.store.errors import StoreUnusableError
from services.broker.store.results import PutStatus
from tests.fault.brokers import assert_verifies, broker
from tests.support.brokerprocess import Peer, peer_of
from tests.support.memfilesystem import MemFileSystem
from tests.support.smallstore import PER_FILE, SmallStore
from tests.support.storeworkload import HOST, ROOT

MESSAGES = 3 * PER_FILE + 5
ELSEWHERE = "/elsewhere"
HOUR_MS = 3_600_000


def lock_is_taken(files: MemFileSystem) -> None:
    files.remove(f"{ROOT}/{LOCK_FILE}")
    files.lock(f"{ROOT}/{LOCK_FILE}")


def folder_is_moved(files: MemFileSystem) -> None:
    files.move(ROOT, ELSEWHERE)


def folder_is_replaced(files: MemFileSystem) -> None:
    files.move(ROOT, ELSEWHERE)
    other = SmallStore(files)
    other.put(MESSAGES)
    other.put(MESSAGES, "D")


LOSSES = {"taken": lock_is_taken, "moved": folder_is_moved, "replaced": folder_is_replaced}
REASONS = {
    "taken": f"another broker has the store's lock: {ROOT}/lock",
    "moved": f"the store's folder was moved or removed: {ROOT}",
    "replaced": f"the store's folder was moved or removed: {ROOT}",
}


@pytest.fixture
def store() -> SmallStore:
    small = SmallStore()
    small.put(MESSAGES)
    small.put(MESSAGES, "D")
    small.checkpoint()
    return small


def put(small: SmallStore, topic: str = "T") -> PutStatus:
    return small.store.put(topic, 0, b"x" * 2_000, b"", born_at_ms=1, born_host=HOST).status


def roll(small: SmallStore) -> None:
    for _ in range(4):
        put(small)
        small.store.write_out()


def expire(small: SmallStore) -> None:
    small.clock.advance(3 * HOUR_MS)
    assert small.store.clean_expired() == 0


def maintain(small: SmallStore) -> None:
    for _ in range(3):
        small.clock.advance(11_000)
        small.store.maintain()


def delete_topic(small: SmallStore) -> None:
    with pytest.raises(OSError, match=f"store.*{ROOT}"):
        small.store.delete_topic("D")


RARE: dict[str, Callable[[SmallStore], object]] = {
    "new queue": lambda small: put(small, "N"),
    "next log file": roll,
    "deletion": delete_topic,
    "retention": expire,
    "maintenance": maintain,
    "stop": lambda small: small.store.stop(),
}


@pytest.mark.parametrize("how", ["moved", "replaced"])
@pytest.mark.parametrize("what", RARE)
def test_nothing_is_written_to_the_old_path_before_the_loss_is_noticed(store, how, what):
    LOSSES[how](store.files)
    before = store.files.content(ROOT)
    RARE[what](store)
    assert store.files.content(ROOT) == before


@pytest.mark.parametrize("what", [name for name in RARE if name != "next log file"])
def test_nothing_is_written_beside_another_broker_before_the_loss_is_noticed(store, what):
    lock_is_taken(store.files)
    before = store.files.content(ROOT)
    RARE[what](store)
    assert store.files.content(ROOT) == before


@pytest.mark.parametrize("how", LOSSES)
def test_nothing_at_all_is_written_once_the_store_is_known_to_be_lost(store, how):
    put(store)  # Appended, and not flushed when the store is lost.
    LOSSES[how](store.files)
    before = store.files.content("")
    store.clock.advance(1_000)
    store.store.maintain()
    assert REASONS[how] in store.store.state().reason
    assert put(store) is PutStatus.NOT_WRITABLE
    for act in RARE.values():
        store.store.request_flush()
        store.store.dispatch()
        act(store)
    assert store.files.content("") == before


@pytest.mark.parametrize("how", LOSSES)
def test_a_flush_in_a_lost_store_is_never_reported(store, how):
    flushed = store.store.flushed_offset
    LOSSES[how](store.files)
    put(store)
    store.store.request_flush()
    assert store.store.flushed_offset == flushed
    assert REASONS[how] in store.store.state().reason


async def send_until_refused(peer: Peer) -> int:
    """Send until the broker refuses or is gone; return how many sends it acknowledged."""
    for count in range(100_000):
        try:
            answer = await peer.send("T")
        except RemotingError:
            return count
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code in {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SERVICE_NOT_AVAILABLE}, answer
            return count
    raise AssertionError("the broker never noticed")


def files_of(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


async def test_a_broker_without_its_lock_ends_and_leaves_the_store_as_it_is(tmp_path: Path):
    with broker(tmp_path, "") as process:
        async with peer_of(process.address) as peer:
            await peer.make_topic("T")
            assert (await peer.send("T")).code == ResponseCode.SUCCESS
            (process.store / LOCK_FILE).unlink()
            lock = OsFileSystem().lock(str(process.store / LOCK_FILE))
            await send_until_refused(peer)
            before = files_of(process.store)
            assert await asyncio.to_thread(process.wait) == 3
        assert files_of(process.store) == before
        assert (process.store / ABORT_FILE).exists()
        assert f"another broker has the store's lock: {process.store / LOCK_FILE}" in process.log
        lock.release()
    assert_verifies(process.store)


@pytest.mark.parametrize("signal", [False, True])
async def test_a_broker_whose_folder_was_moved_ends_and_leaves_the_new_one_to_its_owner(tmp_path: Path, signal):
    with broker(tmp_path / "old", "", store=tmp_path / "store") as old:
        async with peer_of(old.address) as peer:
            await peer.make_topic("T")
            assert (await peer.send("T")).code == ResponseCode.SUCCESS
        old.store.rename(tmp_path / "moved")
        with broker(tmp_path / "new", "", store=tmp_path / "store") as new:
            abort = (new.store / ABORT_FILE).read_text()
            if signal:
                await asyncio.to_thread(old.terminate)
            assert await asyncio.to_thread(old.wait) == 3
            assert f"the store's folder was moved or removed: {old.store}" in old.log
            assert (new.store / ABORT_FILE).read_text() == abort == str(new.process_id)
            async with peer_of(new.address) as peer:
                await peer.make_topic("N")
                assert (await peer.send("N")).code == ResponseCode.SUCCESS
            assert new.terminate() == 0
    assert_verifies(tmp_path / "store")
    with broker(tmp_path / "again", "", store=tmp_path / "moved") as again:
        async with peer_of(again.address) as peer:
            assert await peer.read_all("T") == [b"hello"]


async def test_a_broker_without_its_folder_creates_no_new_one(tmp_path: Path):
    with broker(tmp_path, "") as process:
        process.store.rename(tmp_path / "moved")
        assert await asyncio.to_thread(process.wait) == 3
        assert not process.store.exists()


@pytest.mark.parametrize("thorough", [True, False])
def test_a_recovery_whose_folder_is_moved_fails_and_leaves_the_rest_to_the_next(store, thorough):
    put(store)
    store.store.request_flush()
    store.kill()
    moved = []

    def move(operation: str, path: str) -> None:
        if operation == "sync" and store.files.exists(f"{ROOT}/{ABORT_FILE}") and not moved:
            moved.append(path)
            store.files.move(ROOT, ELSEWHERE)

    store.files.on_operation = move
    with pytest.raises(StoreUnusableError, match=f"the store's folder was moved or removed: {ROOT}"):
        store.start(thorough=thorough)
    assert not store.files.exists(ROOT)
    store.files.on_operation = None
    store.files.move(ELSEWHERE, ROOT)
    store.start()
    assert store.offsets() == list(range(MESSAGES + 1))
