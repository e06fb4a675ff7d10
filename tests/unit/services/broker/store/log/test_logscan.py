"""Recovery and `gantry store verify` agree about every byte of a damaged log."""

import pytest

from gantry.runtime.rng import Rng
from gantry.storeformat.manifest import StoreManifest
from gantry.storeformat.scan import StoreReader
from services.broker.store.files.mappedfilequeue import MappedFileQueue
from services.broker.store.log.logscan import LogScan
from tests.support.memfilesystem import MemFileSystem
from tests.support.storebuilder import StoreBuilder
from tests.support.virtualtime import FakeClock

FILE_BYTES = 2048


@pytest.mark.parametrize(
    "manifest", [None, StoreManifest(record_checksum_from=0), StoreManifest(record_checksum_from=5000)]
)
@pytest.mark.parametrize("seed", range(40))
def test_both_scans_find_the_same_records_and_the_same_damage(seed: int, manifest: StoreManifest | None) -> None:
    rng = Rng(seed)
    store = StoreBuilder(log_file_bytes=FILE_BYTES)
    store.manifest = manifest
    for number in range(40):
        store.add(body=b"body %d" % number * rng.below(12), after_ms=1000 - rng.below(2) * rng.below(1200))
    for _ in range(rng.below(6)):
        start = rng.below(len(store.log))
        for at in range(start, min(start + 1 + rng.below(400), len(store.log))):
            store.log[at] = rng.below(256)
    files = MemFileSystem(FakeClock())
    store.save(files)
    with StoreReader(files, "/store") as reader:
        verified = reader.scan()
        offsets = [record.offset for record in verified if record.crc.is_good]
        damages = [(damage.start, damage.end) for damage in verified.damages]
    lost: list[tuple[int, int]] = []
    log_files = MappedFileQueue(files, "/store/commitlog", FILE_BYTES)
    log_files.load()
    recovered = LogScan(
        log_files, manifest=manifest or StoreManifest(), on_lost=lambda start, end: lost.append((start, end))
    )
    found = [at for at, _, _ in recovered.records(0, log_files.last.end if log_files.last else 0)]
    assert [at for at in found if at < verified.end] == offsets
    assert [(start, end) for start, end in lost if end <= verified.end] == joined(damages)
    log_files.close()


def joined(damages: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the damages, with those that touch each other as one; those of two files stay two."""
    ranges: list[tuple[int, int]] = []
    for start, end in damages:
        if ranges and ranges[-1][1] == start and start % FILE_BYTES:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return ranges
