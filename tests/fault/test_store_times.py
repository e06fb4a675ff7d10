"""Store times never go back in the log, so that offsets by time are right, whatever the wall clock does."""

import pytest
import structlog

from gantry.model.record import decode_record
from gantry.runtime.rng import Rng
from gantry.storeformat.layout import decode_checkpoint, encode_checkpoint
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import Boundary
from tests.support.memfilesystem import MemFileSystem
from tests.support.storebuilder import StoreBuilder
from tests.support.storeworkload import HOST, make_store, small_settings
from tests.support.virtualtime import EPOCH_MS, FakeClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
CHECKPOINT = "/store/checkpoint"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def put(store: MessageStore, count: int = 1, *, queue_id: int = 0) -> list[int]:
    times = [
        store.put("T", queue_id, b"m", b"KEYS\x01k\x02", born_at_ms=1, born_host=HOST).stored_at_ms
        for _ in range(count)
    ]
    item = (0, b"in a batch", b"", None, None, None)
    times.append(store.put_batch("T", queue_id, [item, item], born_at_ms=1, born_host=HOST).stored_at_ms)
    store.request_flush()
    store.dispatch()
    return times


def times_in_log(store: MessageStore) -> list[int]:
    records = store.get("T", 0, 0, 32).records
    return [decode_record(record).stored_at_ms for record in records]


def test_a_clock_set_back_leaves_times_in_order_and_offsets_by_time_right(clock):
    store = make_store(MemFileSystem(clock), clock)
    store.start()
    put(store)
    clock.advance(1000)
    put(store)
    clock.set_wall(EPOCH_MS - HOUR_MS)
    assert put(store) == [EPOCH_MS + 1000] * 2
    assert put(store, queue_id=1) == [EPOCH_MS + 1000] * 2, "for all queues: the log is one sequence"
    clock.set_wall(EPOCH_MS + 2000)
    assert put(store) == [EPOCH_MS + 2000] * 2
    times = times_in_log(store)
    assert times == sorted(times)
    for at_ms, first in ((EPOCH_MS, 0), (EPOCH_MS + 1, 3), (EPOCH_MS + 1000, 3), (EPOCH_MS + 1001, 9)):
        assert store.offset_by_time("T", 0, at_ms) == first
    assert store.offset_by_time("T", 0, EPOCH_MS + 1999, Boundary.UPPER) == 8


@pytest.mark.parametrize("life", ["stop", "crash", "crash behind the checkpoint"])
def test_a_clock_set_back_between_two_lives(clock, life):
    files = MemFileSystem(clock)
    store = make_store(files, clock)
    store.start()
    put(store)
    if life == "crash behind the checkpoint":
        clock.advance(11_000)
        store.maintain()
    (last_ms, _) = put(store)
    if life == "stop":
        assert store.stop()
    else:
        files = files.crash_clone(Rng(1))
    clock.set_wall(EPOCH_MS - HOUR_MS)
    store = make_store(files, clock)
    store.start()
    assert put(store) == [last_ms] * 2
    times = times_in_log(store)
    assert times == sorted(times)


def test_a_log_whose_scan_meets_no_record_goes_on_at_the_time_of_the_checkpoint(clock):
    files = MemFileSystem(clock)
    store = make_store(files, clock, small_settings(file_reserved_time=1))
    store.start()
    (last_ms, _) = put(store)
    clock.advance(11_000)
    store.maintain()
    files.sync_everything()
    crashed = files.crash_clone(Rng(1))
    # The last file is missing with all its records, as after an operator removed it.
    crashed.remove("/store/commitlog/00000000000000000000")
    clock.set_wall(EPOCH_MS - HOUR_MS)
    store = make_store(crashed, clock)
    assert store.start().records == 0
    assert put(store, queue_id=5) == [last_ms] * 2


def test_a_sync_that_ends_while_the_checkpoint_is_made_costs_no_order(clock):
    files = MemFileSystem(clock)
    store = make_store(files, clock)
    store.start()
    (last_ms, _) = put(store)
    clock.advance(11_000)
    store.maintain()
    files.sync_everything()
    crashed = files.crash_clone(Rng(1))
    path = "/store/checkpoint"
    early = decode_checkpoint(crashed.read(path))._replace(physic_msg_timestamp=last_ms - 500)
    crashed.write(path, encode_checkpoint(early))
    clock.set_wall(EPOCH_MS - HOUR_MS)
    store = make_store(crashed, clock)
    assert store.start().records == 0
    assert put(store) == [last_ms] * 2


def test_a_flipped_bit_in_a_time_that_no_checksum_covers_does_not_affect_later_times(clock):
    files, builder = MemFileSystem(clock), StoreBuilder(log_file_bytes=4096, slots=8)
    builder.add("T", whole_record_crc=False)
    builder.add("T", whole_record_crc=False, stored_at_ms=EPOCH_MS + (1 << 50))
    builder.save(files)
    files.sync_everything()
    store = make_store(files, clock)
    clock.set_wall(EPOCH_MS + HOUR_MS)
    store.start()
    assert put(store, queue_id=1) == [EPOCH_MS + HOUR_MS] * 2


@pytest.mark.parametrize("bit", [28, 40, 48, 62])
@pytest.mark.parametrize("field", ["physic_msg_timestamp", "logics_msg_timestamp"])
@pytest.mark.parametrize("is_crash", [False, True])
def test_a_flipped_bit_in_a_time_of_the_checkpoint_does_not_affect_later_times(clock, field, bit, is_crash):
    files = MemFileSystem(clock)
    store = make_store(files, clock)
    store.start()
    put(store)
    clock.advance(11_000)
    store.maintain()
    if is_crash:
        files.sync_everything()
        files = files.crash_clone(Rng(1))
    else:
        assert store.stop()
    checkpoint = decode_checkpoint(files.read(CHECKPOINT))
    flipped = checkpoint._replace(**{field: getattr(checkpoint, field) ^ (1 << bit)})
    files.write(CHECKPOINT, encode_checkpoint(flipped))
    for _ in range(2):
        store = make_store(files, clock)
        with structlog.testing.capture_logs() as lines:
            store.start()
        is_ahead = getattr(flipped, field) > EPOCH_MS + DAY_MS
        assert [line["noted_ms"] for line in lines if "noted_ms" in line] == [getattr(flipped, field)] * is_ahead
        clock.advance(10)
        assert put(store) == [clock.now_ms()] * 2
        assert store.stop()
        assert decode_checkpoint(files.read(CHECKPOINT)).physic_msg_timestamp == clock.now_ms()
        flipped = checkpoint


def test_a_flipped_bit_in_the_checkpoint_of_a_store_without_a_record_leaves_the_clock(clock):
    files = MemFileSystem(clock)
    store = make_store(files, clock)
    store.start()
    assert store.stop()
    checkpoint = decode_checkpoint(files.read(CHECKPOINT))
    files.write(CHECKPOINT, encode_checkpoint(checkpoint._replace(logics_msg_timestamp=1 << 48)))
    store = make_store(files, clock)
    store.start()
    assert put(store) == [clock.now_ms()] * 2


def test_a_clock_set_back_by_years_leaves_times_in_order(clock):
    """The checkpoint is right, but implausibly far ahead of the clock; the newest record confirms it."""
    files = MemFileSystem(clock)
    store = make_store(files, clock)
    store.start()
    (last_ms, _) = put(store)
    clock.advance(11_000)
    assert store.stop()
    clock.set_wall(0)
    store = make_store(files, clock)
    assert store.start().records == 0
    assert put(store) == [last_ms] * 2


def test_a_clock_that_is_far_behind_is_reported_once(clock):
    store = make_store(MemFileSystem(clock), clock)
    store.start()
    put(store)
    with structlog.testing.capture_logs() as lines:
        clock.set_wall(EPOCH_MS - 999)
        put(store, 3)
        assert lines == []
        clock.set_wall(EPOCH_MS - HOUR_MS)
        put(store, 3)
        clock.advance(1000)
        put(store, 3)
        assert [(line["behind_ms"], line["stored_at_ms"]) for line in lines] == [(HOUR_MS, EPOCH_MS)]
        clock.set_wall(EPOCH_MS + 1)
        put(store)
        clock.set_wall(EPOCH_MS - HOUR_MS)
        put(store)
        assert len(lines) == 2, "set back once more"
