"""An operator removes or empties files of a ConsumeQueue: no queue offset is reused, and the log rebuilds the files.

The start reads the log only if it finds evidence of a loss, and it logs the reason. A deletion, or retention, is not a
loss.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from gantry.runtime.rng import Rng
from gantry.storeformat.layout import file_name
from gantry.storeformat.manifest import StoreManifest
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus, RecoveryReport
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, ROOT, make_store, read_queue
from tests.support.virtualtime import FakeClock

LOST = [b"lost and found %d" % number for number in range(25)]
FOLDER = f"{ROOT}/consumequeue/LOST/0"
LOSS_LINE = "files of ConsumeQueues are missing or empty: the whole CommitLog is read to build them"


class KilledError(BaseException):
    """The process ends here."""


class Life:
    """A store whose queue LOST is idle while queue BUSY fills some files of the log."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.files = MemFileSystem(self.clock)
        self.lines: list[str] = []
        self.start()
        self.put("LOST", *LOST)
        self.busy = 0

    def start(self, *, thorough: bool = False) -> RecoveryReport:
        self.store: MessageStore = make_store(self.files, self.clock)
        with capture_logs() as lines:
            report = self.store.start(thorough=thorough)
        self.lines = [line["event"] for line in lines if line["log_level"] == "warning"]
        return report

    def put(self, topic: str, *bodies: bytes) -> list[int]:
        offsets = []
        for body in bodies:
            result = self.store.put(topic, 0, body, b"KEYS\x01k\x02", born_at_ms=1, born_host=HOST)
            assert result.status is PutStatus.OK, result.reason
            offsets.append(result.queue_offset)
        self.store.request_flush()
        self.store.dispatch()
        return offsets

    def keep_busy(self) -> None:
        self.put("BUSY", *[b"busy" * 20] * 60)
        self.busy += 60
        self.clock.advance(11_000)
        self.store.maintain()

    def end(self, *, is_crash: bool) -> None:
        if is_crash:
            self.files.sync_everything()
            self.files = self.files.crash_clone(Rng(0))
        else:
            assert self.store.stop()

    def readable(self) -> list[bytes]:
        return [body for _, body, _ in read_queue(self.store, "LOST", 0).values()]


@pytest.fixture
def life() -> Life:
    return Life()


def remove_all(files: MemFileSystem) -> None:
    for name in files.list_dir(FOLDER):
        files.remove(f"{FOLDER}/{name}")


def remove_folder(files: MemFileSystem) -> None:
    remove_all(files)
    files.remove_dir(FOLDER)
    files.remove_dir(f"{ROOT}/consumequeue/LOST")


def remove_last(files: MemFileSystem) -> None:
    files.remove(f"{FOLDER}/{file_name(400)}")


def remove_some(files: MemFileSystem, starts: tuple[int, ...]) -> None:
    for start in starts:
        files.remove(f"{FOLDER}/{file_name(start)}")


def empty_all(files: MemFileSystem) -> None:
    for name in files.list_dir(FOLDER):
        files.write(f"{FOLDER}/{name}", b"")


def blank_all(files: MemFileSystem) -> None:
    for name in files.list_dir(FOLDER):
        files.write(f"{FOLDER}/{name}", bytes(200))


losses = pytest.mark.parametrize("lose", [remove_all, remove_folder, remove_last, empty_all, blank_all])


def cut_last(files: MemFileSystem) -> None:
    files.write(f"{FOLDER}/{file_name(400)}", files.read(f"{FOLDER}/{file_name(400)}")[:60])


def blank_end(files: MemFileSystem) -> None:
    files.write(f"{FOLDER}/{file_name(400)}", files.read(f"{FOLDER}/{file_name(400)}")[:60].ljust(200, b"\0"))


def check(life: Life) -> None:
    assert life.readable() == LOST
    assert life.put("LOST", b"next") == [len(LOST)], "a queue offset is given twice"
    assert life.store.max_offset("BUSY", 0) == life.busy
    for is_crash in (True, False):
        life.end(is_crash=is_crash)
        report = life.start(thorough=not is_crash)
        assert (report.units_cut, report.units_skipped, report.lost) == (0, 0, ())
        assert life.readable() == [*LOST, b"next"]


@losses
@pytest.mark.parametrize("is_crash", [False, True])
def test_missing_files_of_a_queue_without_sends(life, lose: Callable[[MemFileSystem], None], is_crash):
    life.keep_busy()
    life.end(is_crash=False)
    assert life.start().records == 0
    life.keep_busy()
    life.end(is_crash=is_crash)
    lose(life.files)
    report = life.start()
    assert (report.scanned_from, len(life.lines)) == (0, 1), life.lines
    check(life)


@losses
def test_files_that_are_gone_together_with_the_checkpoint(life, lose: Callable[[MemFileSystem], None]):
    life.keep_busy()
    life.end(is_crash=False)
    lose(life.files)
    life.files.remove(f"{ROOT}/checkpoint")
    report = life.start()
    assert (report.scanned_from, len(life.lines)) == (0, 1), life.lines
    check(life)


def test_a_checkpoint_that_is_gone_is_no_loss_of_units(life):
    life.keep_busy()
    life.end(is_crash=False)
    life.files.remove(f"{ROOT}/checkpoint")
    assert life.start().scanned_from > 8192
    assert life.lines == []
    check(life)


@pytest.mark.parametrize("starts", [(0,), (200,), (0, 200)])
@pytest.mark.parametrize("is_crash", [False, True])
def test_files_before_the_last_one_of_a_queue_are_gone_after_a_stop(life, starts: tuple[int, ...], is_crash):
    """The sum of the queues' ends is unchanged."""
    life.keep_busy()
    life.end(is_crash=False)
    remove_some(life.files, starts)
    if is_crash:  # A crash before the start has rebuilt anything.
        copy = life.files.crash_clone(Rng(0))
        clones: list[MemFileSystem] = []
        copy.on_operation = lambda operation, path: clones.append(copy.crash_clone(Rng(0))) if not clones else None
        make_store(copy, life.clock).start()
        life.files = clones[0]
    report = life.start()
    assert (report.scanned_from, len(life.lines)) == (0, 1), life.lines
    check(life)


@pytest.mark.parametrize("lose", [lambda files: None, lambda files: files.remove(f"{ROOT}/config/gantry.json")])
def test_a_hole_between_files_of_a_queue_is_seen_without_the_count_of_files(
    life, lose: Callable[[MemFileSystem], None]
):
    """As after another broker or an earlier release was the last to stop."""
    life.keep_busy()
    life.end(is_crash=False)
    manifest = StoreManifest.load(life.files, ROOT)
    assert manifest is not None
    assert manifest.clean_stop_derived is not None
    replace(manifest, clean_stop_derived=manifest.clean_stop_derived._replace(files=0)).dump(life.files, ROOT)
    lose(life.files)
    remove_some(life.files, (200,))
    report = life.start()
    assert (report.scanned_from, len(life.lines)) == (0, 1), life.lines
    check(life)


@losses
def test_files_that_are_gone_of_a_queue_that_is_sent_to_at_the_crash(life, lose: Callable[[MemFileSystem], None]):
    """The queue is new in this life, so that only the hole in front of its last record shows the loss."""
    life.keep_busy()
    assert life.put("LOST", b"last") == [len(LOST)]
    life.end(is_crash=True)
    lose(life.files)
    report = life.start()
    assert (report.scanned_from, len(life.lines)) == (0, 1), life.lines
    assert life.readable() == [*LOST, b"last"]
    assert life.put("LOST", b"next") == [len(LOST) + 1]


@pytest.mark.parametrize("lose", [remove_all, remove_folder, remove_last, empty_all, blank_all, cut_last, blank_end])
def test_files_that_are_gone_after_a_crash_of_a_queue_that_grew_in_that_life(
    life, lose: Callable[[MemFileSystem], None]
):
    """Every record of the queue lies before the checkpoint, so no record that the start reads shows the loss."""
    life.keep_busy()
    life.end(is_crash=True)
    lose(life.files)
    report = life.start()
    assert (report.scanned_from, report.units_cut) == (0, 0)
    assert [line for line in life.lines if "another size" not in line] == [LOSS_LINE]
    check(life)


@pytest.mark.parametrize("starts", [(0,), (200,), (0, 200)])
def test_files_before_the_last_one_of_a_queue_are_gone_after_a_crash(life, starts: tuple[int, ...]):
    life.keep_busy()
    life.end(is_crash=True)
    remove_some(life.files, starts)
    report = life.start()
    assert (report.scanned_from, life.lines) == (0, [LOSS_LINE])
    check(life)


def test_damage_behind_the_checkpoint_does_not_pass_for_messages_whose_units_are_missing(life):
    """The damaged range is long enough for as many records as the queue lacks."""
    life.keep_busy()
    life.put("BUSY", b"x" * 1000)
    damaged = life.store.max_physical_offset - 500
    assert life.put("LOST", b"last") == [len(LOST)]
    life.end(is_crash=True)
    log_file = life.files.open(f"{ROOT}/commitlog/{file_name(damaged - damaged % 4096)}")
    log_file.map()[damaged % 4096 : damaged % 4096 + 1] = b"\xff"
    life.files.sync_everything()
    remove_last(life.files)
    report = life.start()
    assert (len(report.lost), life.lines) == (1, [LOSS_LINE])
    assert life.readable() == [*LOST, b"last"]


def test_a_first_file_that_is_built_again_though_some_of_its_messages_expired(life):
    """Filler replaces those units, so that later starts don't take them for missing."""
    while life.store.max_physical_offset <= 4096:
        last = life.put("LOST", b"old")[0]
    life.clock.advance(2 * 3_600_000)
    life.put("LOST", *[b"young"] * 15)
    life.keep_busy()
    life.store.clean_expired()
    assert life.store.min_physical_offset == 4096
    first = life.store.min_offset("LOST", 0)
    assert first == last
    assert first % 10, "the queue's first file begins with messages that expired"
    life.keep_busy()
    life.end(is_crash=True)
    remove_some(life.files, ((first - first % 10) * 20,))
    assert (life.start().scanned_from, life.lines) == (4096, [LOSS_LINE])
    for _ in range(2):
        assert life.store.min_offset("LOST", 0) == first
        assert len(life.readable()) == 16
        life.keep_busy()
        life.end(is_crash=True)
        assert life.start().scanned_from > 8192
        assert life.lines == []


def test_a_queue_that_ends_with_a_file_and_prepared_queues_are_no_loss(life):
    """Queues with filler are no loss either, nor are queues whose first files were deleted with their messages."""
    life.put("FULL", *[b"full"] * 20)
    life.store._queues.prepare("PREPARED", 0)
    for _ in range(3):
        life.keep_busy()
        life.end(is_crash=True)
        assert life.start().scanned_from > 4096
        assert life.lines == []
    assert life.put("FULL", b"next") == [20]
    assert life.put("PREPARED", b"first") == [0]


def test_a_deletion_before_the_checkpoint_explains_no_loss_after_a_crash(life):
    life.put("DELETED", b"message")
    assert life.store.delete_topic("DELETED").result()
    life.keep_busy()
    life.end(is_crash=True)
    remove_last(life.files)
    report = life.start()
    assert (report.scanned_from, life.lines) == (0, [LOSS_LINE])
    check(life)


@losses
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_deletion_before_the_checkpoint_explains_no_loss_even_without_later_sends(
    life, lose: Callable[[MemFileSystem], None], is_saved
):
    """The log's end is the same at the deletion and at every later checkpoint."""
    life.put("DELETED", b"message")
    life.clock.advance(11_000)
    life.store.maintain()
    assert life.store.delete_topic("DELETED").result()
    if is_saved:
        life.store.mark_deletion_saved("DELETED").result()
    life.clock.advance(11_000)
    life.store.maintain()
    life.end(is_crash=True)
    lose(life.files)
    report = life.start()
    assert (report.scanned_from, life.lines) == (0, [LOSS_LINE])
    check(life)


def test_deletions_in_one_life_after_the_other(life):
    """Deletions before the checkpoint explain no missing units, later ones do, whatever earlier lives deleted."""
    for number in range(4):
        for is_counted in (True, False):
            life.put("DELETED", b"message")
            life.clock.advance(11_000)
            life.store.maintain()
            assert life.store.delete_topic("DELETED").result()
            if is_counted:
                life.clock.advance(11_000)
                life.store.maintain()
            life.end(is_crash=True)
            if is_counted and number >= 2:
                remove_all(life.files)
            life.start()
            assert life.lines == ([LOSS_LINE] if is_counted and number >= 2 else [])
    check(life)


def test_a_file_that_a_power_cut_left_without_its_units_is_no_loss(life):
    """The file's name was on the disk; its units were not, nor the record that they point to."""
    life.put("FULL", *[b"full"] * 10)
    life.keep_busy()
    life.end(is_crash=True)
    path = f"{ROOT}/consumequeue/FULL/0/{file_name(200)}"
    life.files.write(path, bytes(200))
    for _ in range(3):
        life.files.sync_everything()
        assert life.start().scanned_from > 4096
        assert life.lines == []
        life.clock.advance(11_000)
        life.store.maintain()
        life.end(is_crash=True)
    assert life.files.exists(path)
    life.start()
    assert life.put("FULL", b"next") == [10]
    life.keep_busy()
    life.end(is_crash=True)
    assert life.start().scanned_from > 4096
    assert life.lines == []


@pytest.mark.parametrize("is_power_cut", [False, True])
@pytest.mark.parametrize("lose", [cut_last, remove_last])
def test_a_start_after_one_that_ended_during_a_queue_repair_has_the_same_result(
    life, lose: Callable[[MemFileSystem], None], is_power_cut
):
    """Once a short file has its full size, nothing in the folder shows that units are missing."""
    life.keep_busy()
    life.end(is_crash=True)
    lose(life.files)
    life.files.sync_everything()
    number = 0
    while (left := start_killed(life, number, is_power_cut=is_power_cut)) is not None:
        again = make_store(left, life.clock)
        report = again.start()
        assert [body for _, body, _ in read_queue(again, "LOST", 0).values()] == LOST, number
        assert again.max_offset("LOST", 0) == len(LOST)
        assert (report.units_cut, report.units_skipped, report.lost) == (0, 0, ()), number
        number += 1
    assert number > 10


def start_killed(life: Life, number: int, *, is_power_cut: bool) -> MemFileSystem | None:
    """Start on a copy, kill it at the operation with a number, and return the files; None if it has fewer operations."""
    copy = life.files.crash_clone(Rng(0))
    first = copy.operations

    def end(operation: str, path: str) -> None:
        if copy.operations > first + number:
            raise KilledError

    copy.on_operation = end
    try:
        make_store(copy, life.clock).start()
    except KilledError:
        copy.on_operation = None
        if not is_power_cut:
            copy.sync_everything()
        return copy.crash_clone(Rng(number))
    return None


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_start_continues_the_rebuild_of_an_interrupted_start(life, is_crash):
    life.keep_busy()
    life.end(is_crash=False)
    life.start()
    life.keep_busy()
    life.end(is_crash=is_crash)
    remove_all(life.files)
    for seed in range(40):
        clones: list[MemFileSystem] = []
        copy = life.files.crash_clone(Rng(0))

        def cut(operation: str, path: str, copy=copy, seed=seed, clones=clones) -> None:
            if len(clones) < 1 and copy.operations > seed:
                clones.append(copy.crash_clone(Rng(seed)))

        copy.on_operation = cut
        make_store(copy, life.clock).start()
        if not clones:
            break
        again = make_store(clones[0], life.clock)
        again.start()
        assert [body for _, body, _ in read_queue(again, "LOST", 0).values()] == LOST, seed
    else:
        seed += 1
    assert seed > 10


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_deletion_is_no_loss(life, is_crash):
    life.keep_busy()
    life.end(is_crash=False)
    life.start()
    life.keep_busy()
    assert life.store.delete_topic("LOST").result()
    life.end(is_crash=is_crash)
    report = life.start()
    assert report.scanned_from > 8192
    assert life.lines == []
    assert life.readable() == []


def test_a_deletion_in_the_life_before_explains_no_loss(life):
    """Nothing was appended between the deletion and the next start, so that both saw the same end of the log."""
    life.put("DELETED", b"message")
    life.keep_busy()
    assert life.store.delete_topic("DELETED").result()
    life.store.mark_deletion_saved("DELETED").result()
    life.end(is_crash=False)
    life.start()
    life.keep_busy()
    life.end(is_crash=True)
    remove_all(life.files)
    report = life.start()
    assert (report.scanned_from, len(life.lines)) == (0, 1), life.lines
    check(life)


def test_a_deletion_before_the_first_message_of_a_life_is_no_loss(life):
    life.keep_busy()
    life.end(is_crash=False)
    life.start()
    assert life.store.delete_topic("LOST").result()
    life.keep_busy()
    life.end(is_crash=True)
    assert life.start().scanned_from > 8192
    assert life.lines == []
    assert life.readable() == []


def test_queues_of_deleted_topics_that_only_the_start_removes_are_no_loss(life):
    life.keep_busy()
    life.store._remover.is_stopping = True  # As if the stop came before the first step of the removal.
    life.store.delete_topic("LOST")
    assert life.files.list_dir(FOLDER)
    life.end(is_crash=False)
    assert life.start().records == 0
    assert not life.files.exists(FOLDER)
    assert life.lines == []


def test_messages_that_expired_are_no_loss(life):
    life.keep_busy()
    life.clock.advance(2 * 3_600_000)
    life.put("BUSY", b"young")
    life.store.clean_expired()
    assert life.store.min_physical_offset > 0
    life.end(is_crash=False)
    assert life.start().records == 0
    life.end(is_crash=True)
    life.start()
    assert life.lines == []
    assert life.put("LOST", b"next") == [len(LOST)]


def test_filler_at_the_end_of_a_queue_is_no_loss(life):
    """Its last record is lost to damage, and no later one came."""
    last = life.store.max_physical_offset - 10
    life.keep_busy()
    life.end(is_crash=True)
    log_file = life.files.open(f"{ROOT}/commitlog/{file_name(last - last % 4096)}")
    log_file.map()[last % 4096 : last % 4096 + 1] = b"\xff"
    assert life.start(thorough=True).units_skipped == 1
    life.keep_busy()
    for _ in range(2):
        life.end(is_crash=True)
        assert life.start().scanned_from > 8192
        assert life.lines == []
        assert life.readable() == LOST[:-1]


def test_a_missing_index_is_reported(life):
    life.end(is_crash=False)
    for name in life.files.list_dir(f"{ROOT}/index"):
        life.files.remove(f"{ROOT}/index/{name}")
    life.start()
    assert len(life.lines) == 1
