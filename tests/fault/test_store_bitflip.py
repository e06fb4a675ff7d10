"""One bit of the CommitLog is flipped: every other record can still be read, the damaged one is never handed out.

The checksum of our records covers every byte. Apache RocketMQ writes no checksum. In its stores, every other record can
still be read, and a damaged body is never handed out.

GANTRY_TEST_SEED=<n> repeats a run. Each seed is tried on a store that runs, after an orderly stop, and after a crash.
"""

import json
import os
import tarfile
from pathlib import Path

import pytest

from gantry.model.record import decode_record
from gantry.runtime.rng import Rng
from gantry.storeformat.layout import file_name
from services.broker.store.messagestore import MessageStore
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import QUEUES, ROOT, Sent, Workload, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock

GOLDEN = Path(__file__).parents[1] / "conformance" / "golden"
SEEDS = int(os.environ.get("GANTRY_TEST_FLIP_SEEDS") or 1000)
FIRST_SEED = int(os.environ["GANTRY_TEST_SEED"])  # tests/conftest.py
FILE_BYTES = small_settings().mapped_file_size_commit_log
GROUPS = 20


def build(seed: int) -> tuple[MemFileSystem, MessageStore, Workload]:
    """Return a running store of some files, with all messages acknowledged and dispatched."""
    clock = FakeClock()
    workload = Workload(clock, Rng(seed))
    files = MemFileSystem(clock)
    store = workload.open(files)
    while store.max_physical_offset < 2.5 * FILE_BYTES:
        workload.rng.choice((workload.put_one, workload.put_batch))(store)
    workload.flush(store)
    return files, store, workload


def copy_of(files: MemFileSystem) -> MemFileSystem:
    """Return the same files as a kill -9 leaves them: every write is there."""
    files.sync_everything()
    return files.crash_clone(Rng(0))


def flip(files: MemFileSystem, offset: int, bit: int) -> None:
    """Flip a bit of the CommitLog."""
    path = f"{ROOT}/commitlog/{file_name(offset - offset % FILE_BYTES)}"
    file = files.open(path)
    at = offset % FILE_BYTES
    file.map()[at : at + 1] = bytes([file.map()[at] ^ 1 << bit])
    file.close()


def read_everything(store: MessageStore) -> dict[tuple[str, int, int], tuple[int, bytes, str]]:
    return {
        (topic, queue_id, offset): found
        for topic, queue_id in QUEUES
        for offset, found in read_queue(store, topic, queue_id).items()
    }


def check(store: MessageStore, sent: list[Sent], damaged: Sent) -> None:
    """Assert that every message is there except the damaged one."""
    found = read_everything(store)
    for each in sent:
        place = (each.topic, each.queue_id, each.queue_offset)
        if each is damaged:
            assert place not in found, "handed out as good"
            assert store.record_at(each.physical_offset) is None
        else:
            assert found.pop(place, None) == (each.physical_offset, each.body, each.unique_key), each
            assert store.record_at(each.physical_offset) is not None
    assert not found, "nobody put this"


def check_goes_on(store: MessageStore, clock: FakeClock, sent: list[Sent]) -> None:
    """Assert that new messages get unused offsets and can be read."""
    new = Workload(clock, Rng(1), number=90_000)
    for _ in range(8):
        new.put_one(store)
    new.flush(store)
    taken = {(each.topic, each.queue_id, each.queue_offset) for each in sent}
    found = read_everything(store)
    for each in new.sent:
        place = (each.topic, each.queue_id, each.queue_offset)
        assert place not in taken, "given away twice"
        assert found[place][1] == each.body


@pytest.mark.parametrize("group", range(GROUPS))
def test_one_flipped_bit_costs_one_message(group):
    seeds = range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS)
    files, store, workload = build(FIRST_SEED + group)
    crashed = copy_of(files)
    store.stop()
    stopped = copy_of(files)
    clock = workload.clock
    records = sorted(workload.sent, key=lambda each: each.physical_offset)
    ends = {each.physical_offset: end for each, end in zip(records, ends_of(records), strict=True)}
    for seed in seeds:
        rng = Rng(seed)
        damaged = rng.choice((records[0], records[-1], *(rng.choice(records) for _ in range(8))))
        offset = damaged.physical_offset + rng.below(ends[damaged.physical_offset] - damaged.physical_offset)
        bit = rng.below(8)
        try:
            for state in (crashed, stopped):
                running = copy_of(state)
                live = make_store(running, clock)
                live.start()
                flip(running, offset, bit)
                check(live, records, damaged)
                start_again(state, clock, offset, bit, records, damaged)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: bit {bit} at {offset} of {damaged}: {error}") from error


def start_again(
    state: MemFileSystem, clock: FakeClock, offset: int, bit: int, records: list[Sent], damaged: Sent
) -> None:
    """Flip the bit while the store is down, start it, check it, stop it, and start it once more."""
    files = copy_of(state)
    flip(files, offset, bit)
    store = make_store(files, clock)
    report = store.start()
    check(store, records, damaged)
    assert report.was_clean or report.lost_bytes > 0 or damaged.physical_offset < report.scanned_from
    check_goes_on(store, clock, records)
    assert store.stop()
    again = make_store(files, clock)
    again.start(thorough=True)
    found = read_everything(again)
    assert {(each.topic, each.queue_id, each.queue_offset) for each in records if each is not damaged} <= set(found)
    assert again.stop()


def ends_of(records: list[Sent]) -> list[int]:
    """Return where each record ends: the records of a batch are acknowledged together but stored one by one."""
    ends = []
    for each, following in zip(records, [*records[1:], None], strict=True):
        is_next = following is not None and following.physical_offset < each.next_offset
        ends.append(following.physical_offset if following is not None and is_next else each.next_offset)
    return ends


@pytest.fixture(scope="module")
def golden() -> tuple[MemFileSystem, dict[int, bytes]]:
    """Apache RocketMQ's store in memory, and its records by physical offset."""
    files = MemFileSystem(FakeClock())
    with tarfile.open(GOLDEN / "store-clean.tar.gz") as archive:
        for member in archive.getmembers():
            kept = member.isfile() and not member.name.startswith(("store/timer", "store/compaction"))
            if kept:
                path = f"/{member.name}"
                files.make_dirs(path.rpartition("/")[0])
                content = archive.extractfile(member)
                assert content is not None
                files.write(path, content.read())
    expected = json.loads((GOLDEN / "expected.json").read_text())
    places = [
        message["commitLogOffset"]
        for topic in expected["topics"].values()
        for queue in topic["queues"].values()
        for message in queue["messages"]
    ]
    store = golden_store(copy_of(files))
    store.start()
    records = {at: record for at in places if (record := store.record_at(at)) is not None}
    assert len(records) == len(places)
    return files, records


def golden_store(files: MemFileSystem) -> MessageStore:
    settings = small_settings(
        mapped_file_size_commit_log=262_144,
        mapped_file_size_consume_queue=6000,
        max_hash_slot_num=500,
        max_index_num=2000,
        message_delay_level=" ".join(f"{seconds}s" for seconds in range(1, 19)),
    )
    return make_store(files, FakeClock(1_795_255_800_000), settings)


@pytest.mark.parametrize("number", range(40))
def test_one_flipped_bit_in_a_store_of_rocketmqs(golden, number):
    files, records = golden
    rng = Rng(FIRST_SEED + number)
    copy = copy_of(files)
    if number % 2:
        copy.write(f"{ROOT}/abort", b"")  # The state after a crash.
    damaged = rng.choice(sorted(records))
    # Half of them in the record's head, which no checksum covers.
    at = rng.below(88) if rng.chance(0.5) else rng.below(len(records[damaged]))
    file = copy.open(f"{ROOT}/commitlog/{file_name(damaged - damaged % 262_144)}")
    place = damaged % 262_144 + at
    file.map()[place : place + 1] = bytes([file.map()[place] ^ 1 << rng.below(8)])
    file.close()
    store = golden_store(copy)
    store.start()
    body = decode_record(records[damaged]).body
    body_at = records[damaged].find(body)
    found = {}
    for topic, queue_id in store.queues():
        offset = store.min_offset(topic, queue_id)
        while offset < store.max_offset(topic, queue_id):
            result = store.get(topic, queue_id, offset, 32)
            found |= {decode_record(record).physical_offset: record for record in result.records}
            offset = result.next_offset
    message = f"seed {FIRST_SEED + number}: byte {at} of the record at {damaged}"
    assert {offset: record for offset, record in found.items() if offset != damaged} == {
        offset: record for offset, record in records.items() if offset != damaged
    }, message
    if body_at <= at < body_at + len(body):
        assert damaged not in found, message
    store.stop()
