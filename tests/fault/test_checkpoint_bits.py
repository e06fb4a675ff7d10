"""A bit of the checkpoint flips, and the broker crashes: no message is hidden, no offset reused, no alarm false."""

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from gantry.runtime.rng import Rng
from gantry.storeformat.layout import CHECKPOINT_BYTES, QUEUE_COUNT_AT, QUEUE_COUNT_END
from services.broker.store.results import PutStatus, RecoveryReport
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, ROOT, Workload, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock

CHECKPOINT = f"{ROOT}/checkpoint"
CONFIRM_AT = 32
TOPICS = "ABC"
NUMBERS = (1, 2, 3)


class Crashed:
    """A store that crashed long after its only checkpoint, and the messages that were acknowledged."""

    def __init__(self, number: int, *, is_power_cut: bool) -> None:
        self.clock = FakeClock()
        workload = Workload(clock=self.clock, rng=Rng(number), settings=small_settings())
        files = MemFileSystem(self.clock)
        store = workload.open(files)
        self.sent: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        for index in range(120):
            topic, body = workload.rng.choice(TOPICS), b"%d" % index
            result = store.put(topic, 0, body, b"", born_at_ms=1, born_host=HOST)
            assert result.queue_offset == len(self.sent[topic])
            self.sent[topic].append(body)
            store.request_flush()
            store.dispatch()
            assert workload.flushed_offset == result.next_offset
            if index == 20:
                self.clock.advance(11_000)
                store.maintain()
        if not is_power_cut:
            files.sync_everything()
        self.files = files.crash_clone(Rng(number))
        self.checkpoint = self.files.read(CHECKPOINT)
        assert 0 < int.from_bytes(self.checkpoint[CONFIRM_AT : CONFIRM_AT + 8]) < result.next_offset // 2

    def start(self, checkpoint: bytes) -> tuple[RecoveryReport, list[str]]:
        """Start with this checkpoint, check that every message is there, and return the start's log lines."""
        files = self.files.crash_clone(Rng(0))
        files.write(CHECKPOINT, checkpoint)
        files.sync_everything()
        store = make_store(files, self.clock)
        with capture_logs() as lines:
            report = store.start()
        for topic, bodies in self.sent.items():
            assert [body for _, body, _ in read_queue(store, topic, 0).values()] == bodies
            result = store.put(topic, 0, b"next", b"", born_at_ms=1, born_host=HOST)
            assert (result.status, result.queue_offset) == (PutStatus.OK, len(bodies))
        return report, [line["event"] for line in lines if line["log_level"] in {"error", "critical"}]


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def as_it_is(checkpoint: bytes) -> bytes:
    return checkpoint


def without_copy(checkpoint: bytes) -> bytes:
    """Return the checkpoint of a release that wrote no copy of the confirm offset."""
    return checkpoint[:QUEUE_COUNT_AT].ljust(CHECKPOINT_BYTES, b"\0")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("is_power_cut", [False, True])
@pytest.mark.parametrize("written", [as_it_is, without_copy])
def test_a_flipped_bit_of_the_confirm_offset(number, is_power_cut, written: Callable[[bytes], bytes]):
    crashed = Crashed(number, is_power_cut=is_power_cut)
    for bit in range(CONFIRM_AT * 8, (CONFIRM_AT + 8) * 8):
        report, errors = crashed.start(flipped(written(crashed.checkpoint), bit))
        assert (report.acknowledged_lost, report.lost, errors) == (None, (), []), bit


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_flipped_bit_of_the_count(is_power_cut):
    crashed = Crashed(1, is_power_cut=is_power_cut)
    sound, _ = crashed.start(crashed.checkpoint)
    assert sound.scanned_from > 0
    for bit in range(QUEUE_COUNT_AT * 8, QUEUE_COUNT_END * 8):
        report, errors = crashed.start(flipped(crashed.checkpoint, bit))
        assert (report.acknowledged_lost, report.lost, errors) == (None, (), []), bit
        assert report.scanned_from == sound.scanned_from, bit


def test_a_confirm_offset_that_another_broker_advanced_only_costs_reading():
    """Apache RocketMQ leaves unknown bytes unchanged, and so keeps the old copy."""
    crashed = Crashed(1, is_power_cut=False)
    sound, _ = crashed.start(crashed.checkpoint)
    moved = crashed.checkpoint[:CONFIRM_AT] + (sound.log_end_offset - 100).to_bytes(8)
    report, errors = crashed.start(moved + crashed.checkpoint[len(moved) :])
    assert (report.scanned_from, report.acknowledged_lost, errors) == (sound.scanned_from, None, [])


def test_a_log_that_ends_before_both_copies_is_reported():
    """No single flipped bit has this effect."""
    crashed = Crashed(1, is_power_cut=False)
    names = crashed.files.list_dir(f"{ROOT}/commitlog")
    confirmed = int.from_bytes(crashed.checkpoint[CONFIRM_AT : CONFIRM_AT + 8])
    assert confirmed < 4096
    first = f"{ROOT}/commitlog/{names[0]}"
    for name in names[1:]:
        crashed.files.remove(f"{ROOT}/commitlog/{name}")
    crashed.files.write(first, crashed.files.read(first)[: confirmed - 200].ljust(4096, b"\0"))
    crashed.files.sync_everything()
    store = make_store(crashed.files.crash_clone(Rng(0)), crashed.clock)
    report = store.start()
    assert report.acknowledged_lost is not None
    assert report.acknowledged_lost[1] == confirmed
