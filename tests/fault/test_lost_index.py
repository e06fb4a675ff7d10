"""Index files that are missing, cut, too long or unreadable: the start rebuilds them, or reports that it can't."""

from collections.abc import Callable

import pytest
import structlog

from gantry.storeformat.layout import INDEX_DIR
from services.broker.store.recovery import indexgap
from tests.support.smallstore import FILE_BYTES, PER_FILE, RECORD_BYTES, SmallStore
from tests.support.storeworkload import ROOT

FOLDER = f"{ROOT}/{INDEX_DIR}"
# The length of an index file with small settings (storeworkload.py).
ENTRIES = 31
FILES = 4
MESSAGES = 3 * ENTRIES + 7


@pytest.fixture(autouse=True)
def fresh_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger that no earlier test has bound to its own configuration."""
    monkeypatch.setattr(indexgap, "log", structlog.get_logger())


@pytest.fixture
def store() -> SmallStore:
    small = SmallStore()
    small.put(MESSAGES, first_key=0)
    small.checkpoint()
    assert len(small.files.list_dir(FOLDER)) == FILES
    return small


def end(store: SmallStore, how: str) -> None:
    assert how == "kill" or store.store.stop()
    store.kill()


def resize(store: SmallStore, path: str, size: int) -> None:
    content = store.files.read(path)
    store.files.remove(path)
    store.files.write(path, content[:size].ljust(size, b"\0"), durable=True)


def cut(store: SmallStore, path: str) -> None:
    resize(store, path, 400)


def lengthen(store: SmallStore, path: str) -> None:
    resize(store, path, store.files.size_bytes(path) + 1)


def mark_bad(store: SmallStore, path: str) -> None:
    store.files.make_unreadable(path, 0, 1)


def spoil_entries(store: SmallStore, path: str) -> None:
    # The last entry of any of the files: an orderly start checks only the last page.
    store.files.make_unreadable(path, 40 + 4 * 8 + 20, store.files.size_bytes(path))


def remove(store: SmallStore, path: str) -> None:
    store.files.remove(path)


@pytest.mark.parametrize("how", ["stop", "kill", "repair"])
@pytest.mark.parametrize("which", [[0], [1], [FILES - 1], [1, 2], [2, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("damage", [remove, cut, lengthen, mark_bad])
def test_missing_index_files_are_rebuilt(
    store: SmallStore, damage: Callable[[SmallStore, str], None], which: list[int], how: str
) -> None:
    end(store, "kill" if how == "repair" else how)
    names = store.files.list_dir(FOLDER)
    for number in which:
        damage(store, f"{FOLDER}/{names[number]}")
    with structlog.testing.capture_logs() as lines:
        report = store.start(thorough=how == "repair")
    # After a crash, the start indexes the last file's messages in any case.
    assert (
        how == "repair" or which == [FILES - 1] or any("the start builds them again" in line["event"] for line in lines)
    )
    assert report.index_missing is None
    store.put(3, first_key=MESSAGES)
    assert store.keys_found(range(MESSAGES + 3)) == [*range(MESSAGES + 3)]
    assert len(store.files.list_dir(FOLDER)) == FILES
    assert store.offsets() == [*range(MESSAGES + 3)]
    store.cut_power()
    store.start()
    assert store.keys_found(range(MESSAGES + 3)) == [*range(MESSAGES + 3)]


@pytest.mark.parametrize("how", ["stop", "kill", "repair"])
def test_an_unreadable_page_of_the_file_that_is_written_does_not_end_the_process(store: SmallStore, how: str) -> None:
    end(store, "kill" if how == "repair" else how)
    spoil_entries(store, f"{FOLDER}/{store.files.list_dir(FOLDER)[-1]}")
    store.start(thorough=how == "repair")
    store.put(3, first_key=MESSAGES)
    assert store.keys_found(range(MESSAGES + 3)) == [*range(MESSAGES + 3)]


@pytest.mark.parametrize(("number", "how"), [(0, "stop"), (0, "kill"), (FILES - 1, "stop")])
@pytest.mark.parametrize("damage", [remove, cut, mark_bad])
def test_a_rebuild_that_takes_too_long_is_left_to_repair_and_logged_at_each_start(
    store: SmallStore, monkeypatch: pytest.MonkeyPatch, damage: Callable[[SmallStore, str], None], number: int, how: str
) -> None:
    monkeypatch.setattr(indexgap, "REBUILT_BYTES_MAX", 6 * RECORD_BYTES)
    end(store, how)
    damage(store, f"{FOLDER}/{store.files.list_dir(FOLDER)[number]}")
    lost = range(number * ENTRIES, min((number + 1) * ENTRIES, MESSAGES))
    for life in range(3):
        with structlog.testing.capture_logs() as lines:
            report = store.start()
        told = [line["event"] for line in lines if line["log_level"] == "error"]
        assert any("run `gantry store repair`" in event for event in told), life
        assert report.index_missing is not None
        assert report.index_missing[0] == max(0, lost[0] - 1) * RECORD_BYTES + lost[0] // PER_FILE * (
            FILE_BYTES % RECORD_BYTES
        )
        # A crash may have made the start index the last messages again.
        store.put(1, first_key=MESSAGES + life)
        everything = range(MESSAGES + life + 1)
        assert set(everything) - set(store.keys_found(everything)) <= set(lost)
        assert store.store.stop()
    store.start(thorough=True)
    assert store.keys_found(everything) == [*everything]


def test_messages_without_keys_and_of_deleted_topics_are_not_missing() -> None:
    store = SmallStore()
    store.put(ENTRIES, first_key=0)
    store.put(PER_FILE)
    store.put(PER_FILE, "D", first_key=0)
    store.store.delete_topic("D")
    store.store.mark_deletion_saved("D")
    store.put(3, first_key=ENTRIES)
    assert store.store.stop()
    assert store.start().scanned_from == store.store.max_physical_offset
    assert store.store.stop()
    assert store.start(thorough=True).records > 0
    assert store.store.stop()
    assert store.start().scanned_from == store.store.max_physical_offset


@pytest.mark.parametrize("gone", [2, 3, 4])
@pytest.mark.parametrize("damage", [cut, lengthen, mark_bad])
def test_a_broken_file_without_messages_is_removed(
    store: SmallStore, monkeypatch: pytest.MonkeyPatch, damage: Callable[[SmallStore, str], None], gone: int
) -> None:
    monkeypatch.setattr(indexgap, "REBUILT_BYTES_MAX", 6 * RECORD_BYTES)
    end(store, "stop")
    for number in range(gone):
        store.files.remove(store.log_path(number))
    broken, *others = store.files.list_dir(FOLDER)
    damage(store, f"{FOLDER}/{broken}")
    report = store.start()
    assert (report.index_missing, report.index_entries_mended) == (None, 0)
    assert store.files.list_dir(FOLDER) == others
    assert store.keys_found(range(gone * PER_FILE, MESSAGES)) == [*range(gone * PER_FILE, MESSAGES)]


@pytest.mark.parametrize("number", range(FILES))
@pytest.mark.parametrize("damage", [remove, cut, lengthen, mark_bad])
def test_a_file_that_is_lost_together_with_a_queue_is_built_again(
    store: SmallStore, damage: Callable[[SmallStore, str], None], number: int
) -> None:
    end(store, "stop")
    queue = f"{ROOT}/consumequeue/T/0"
    for name in store.files.list_dir(queue):
        store.files.remove(f"{queue}/{name}")
    damage(store, f"{FOLDER}/{store.files.list_dir(FOLDER)[number]}")
    assert store.start().index_missing is None
    assert store.offsets() == [*range(MESSAGES)]
    assert store.keys_found(range(MESSAGES)) == [*range(MESSAGES)]
