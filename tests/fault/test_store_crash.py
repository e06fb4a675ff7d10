"""The power is cut at every single write, sync, rename and removal of a workload, and once more during recovery.

After each cut the test checks three things: every acknowledged message is there, byte for byte; no message is there in
part; all derived files agree with the CommitLog. Then the store must take new messages and stop in order.

A failure names its seed: GANTRY_TEST_SEED=<seed> .venv/bin/pytest tests/fault/test_store_crash.py
GANTRY_TEST_CRASH_SEEDS=<n> runs that many seeds instead of the few that every test run can afford.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from gantry.runtime.rng import Rng
from gantry.storeformat.findings import Finding, Severity
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verify import verify
from services.broker.store.messagestore import MessageStore
from services.broker.store.settings import FlushDiskType
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import QUEUES, ROOT, Sent, Workload, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock

STEPS = 70
SECOND_CUTS_MAX = 24
"""Number of cuts in one recovery, spread over its length: a long recovery would have hundreds."""
SEEDS = int(os.environ.get("GANTRY_TEST_CRASH_SEEDS") or 3)
FIRST_SEED = int(os.environ["GANTRY_TEST_SEED"])  # tests/conftest.py


@dataclass
class Tally:
    """Counts of one run's cuts, printed, so that a run that tested nothing is noticed."""

    cuts: int = 0
    second_cuts: int = 0
    torn: int = 0
    holes: int = 0
    operations: dict[str, int] = field(default_factory=dict)
    under_way: dict[str, bytes] = field(default_factory=dict)
    """Bodies by key of the batch that the present cut interrupted."""


def check(
    files: MemFileSystem,
    clock: FakeClock,
    sent: list[Sent],
    acknowledged: list[Sent],
    tally: Tally,
    *,
    has_hole: bool = False,
) -> None:
    """Open the files after a cut and check the three things; `has_hole` if an earlier recovery left a hole in the log."""
    store = make_store(files, clock)
    with capture_logs() as lines:
        report = store.start()
    events = [line["event"] for line in lines]
    assert not any("missing or empty" in event for event in events), f"nobody took a file away: {events}"
    tally.torn += report.torn_bytes > 0
    tally.holes += report.lost_bytes > 0
    check_messages(store, sent, acknowledged, tally.under_way)
    new = Workload(clock, Rng(1), number=90_000)
    for _ in range(3):
        new.put_one(store)
    new.put_batch(store)
    new.flush(store)
    queues = {queue: read_queue(store, *queue) for queue in QUEUES}
    for each in new.sent:
        assert queues[each.topic, each.queue_id][each.queue_offset][1] == each.body
    assert store.stop()
    findings = problems(files)
    assert not findings or report.lost_bytes or has_hole, findings
    again = make_store(files, clock)
    second = again.start()
    assert second.was_clean
    assert second.units_mended == second.torn_bytes == second.units_cut == 0, second
    assert {queue: read_queue(again, *queue) for queue in QUEUES} == queues
    again.stop()


def check_messages(
    store: MessageStore, sent: list[Sent], acknowledged: list[Sent], under_way: Mapping[str, bytes]
) -> None:
    """Compare the readable messages with those that were put and acknowledged."""
    put = {(each.topic, each.queue_id, each.queue_offset): each for each in sent}
    queues = {queue: read_queue(store, *queue) for queue in QUEUES}
    for (topic, queue_id), found in queues.items():
        for queue_offset, (physical_offset, body, key) in found.items():
            each = put.get((topic, queue_id, queue_offset))
            if each is None and under_way.get(key) == body:
                continue
            assert each is not None, f"{topic}/{queue_id} {queue_offset}: nobody put this"
            assert (each.physical_offset, each.body, each.unique_key) == (physical_offset, body, key)
            by_key = store.query(topic, key, 64, each.stored_at_ms, each.stored_at_ms)
            assert any(key.encode() in record for record in by_key.records), f"{topic} {key}: not in the index"
    for each in acknowledged:
        if each.physical_offset >= store.min_physical_offset:
            found = queues[each.topic, each.queue_id]
            assert each.queue_offset in found, f"acknowledged and gone: {each}"
            assert store.record_at(each.physical_offset) is not None


def problems(files: MemFileSystem) -> list[Finding]:
    """Return the errors that an independent reader finds in a stopped store."""
    with StoreReader(files, ROOT, index_slots=small_settings().max_hash_slot_num) as reader:
        return [finding for finding in verify(reader).findings if finding.severity is Severity.PROBLEM]


def run(seed: int, *, every: int, mode: FlushDiskType = FlushDiskType.SYNC_FLUSH, open_files_max: int = 1_000) -> Tally:
    """Run a workload and cut the power at every `every`-th operation."""
    rng, clock, tally = Rng(seed), FakeClock(), Tally()
    workload = Workload(clock, rng, small_settings(flush_disk_type=mode), open_files_max=open_files_max)
    cuts = Rng(seed + 1)

    def cut(operation: str, path: str) -> None:
        tally.operations[operation] = tally.operations.get(operation, 0) + 1
        if files.operations % every:
            return
        tally.cuts += 1
        number = files.operations
        sent, acknowledged = list(workload.sent), workload.acknowledged()
        tally.under_way = dict(workload.under_way)
        later = FakeClock(clock.now_ms() + 5000)
        clone = files.crash_clone(cuts)
        try:
            if cuts.chance(0.1):
                cut_recovery(clone, later, cuts, sent, acknowledged, tally)
            check(clone, later, sent, acknowledged, tally)
        except Exception as error:
            raise AssertionError(f"seed {seed}, cut before operation {number} ({operation} {path}): {error}") from error

    files = MemFileSystem(clock, on_operation=cut)
    store = workload.open(files)
    for _ in range(STEPS):
        workload.step(store)
    store.stop()
    files.on_operation = None
    return tally


def cut_recovery(
    files: MemFileSystem, clock: FakeClock, cuts: Rng, sent: list[Sent], acknowledged: list[Sent], tally: Tally
) -> None:
    """Cut the power again while a copy of the store recovers, at some of its operations."""
    copy = files.crash_clone(Rng(0))  # The copy has no unsynced changes, so its clone has the same files.
    clones: list[MemFileSystem] = []

    met = 0

    def cut(operation: str, path: str) -> None:
        nonlocal met
        if not cuts.chance(0.15):
            return
        met += 1
        if len(clones) < SECOND_CUTS_MAX:
            clones.append(copy.crash_clone(cuts))
        elif cuts.chance(SECOND_CUTS_MAX / met):
            clones[cuts.below(SECOND_CUTS_MAX)] = copy.crash_clone(cuts)

    copy.on_operation = cut
    report = make_store(copy, clock).start()
    copy.on_operation = None
    for clone in clones:
        tally.second_cuts += 1
        check(clone, clock, sent, acknowledged, tally, has_hole=report.lost_bytes > 0)


def test_with_async_flush_flushed_records_are_there_and_none_is_partial():
    """Units may reach the disk before their records, and point to records that the power cut took."""
    tally = run(FIRST_SEED, every=3, mode=FlushDiskType.ASYNC_FLUSH)
    print(f"seed {FIRST_SEED}: {tally}")
    assert tally.cuts > 100


def test_with_fewer_descriptors_than_queues_nothing_acknowledged_is_lost():
    """Queue files are closed while they are dirty, and all derived files are synced through the file system's volume."""
    tally = run(FIRST_SEED, every=3, open_files_max=2)
    print(f"seed {FIRST_SEED}: {tally}")
    assert tally.cuts > 100
    assert tally.operations["syncfs"] > 0


@pytest.mark.parametrize("number", range(SEEDS))
def test_a_power_cut_at_any_moment_loses_nothing_acknowledged(number):
    seed = FIRST_SEED + number
    tally = run(seed, every=1 if number == 0 else 3)
    print(f"seed {seed}: {tally}")
    assert tally.cuts > 100
    assert tally.torn > 0
