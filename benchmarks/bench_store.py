"""Benchmarks the store alone, in one process: append and dispatch of 1 KiB messages, reads, and growth of memory.

The baseline is the least work that a store of this format can do: a loop that copies the same records, already encoded,
into mapped files of the same size. Messages come in turns of 64, as an event loop passes them on. Each turn ends with a
dispatch.

    python -m benchmarks.bench_store [--tiny] [--json] [--profile]
"""

import argparse
import cProfile
import hashlib
import pstats
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import Row, show
from gantry.model.address import Address, pack_host
from gantry.model.record import iter_records
from gantry.model.uniqkey import UniqueKeyGenerator
from gantry.runtime.clock import SystemClock
from gantry.runtime.osfilesystem import OsFileSystem
from services.broker.store.messagestore import MessageStore
from services.broker.store.settings import FlushDiskType, StoreSettings

HOST = pack_host(Address("127.0.0.1", 10911))
BODY_BYTES = 1024
QUEUES = 8
TURN = 64
AIM_PER_S = 100_000
PULL_AIM_PER_S = 300_000  # Twice the aim of a pull over the wire, so that the store is not the limit.
LOG_FILE_BYTES = 256 << 20
INDEX_ENTRIES = 2_000_000

Message = tuple[bytes, bytes, str]


def make_messages(count: int) -> list[Message]:
    """Return (body, properties, unique key) for each message, as a broker passes them to the store."""
    maker = UniqueKeyGenerator(SystemClock(), ip="127.0.0.1", pid=1, salt=7)
    bodies = [hashlib.sha256(number.to_bytes(4)).digest() * (BODY_BYTES // 32) for number in range(64)]
    messages = []
    for number in range(count):
        key = maker.make()
        properties = f"TAGS\x01TagA\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02CLUSTER\x01c\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
        messages.append((bodies[number % 64], properties.encode(), key))
    return messages


def settings_in(folder: Path, *, tiny: bool) -> StoreSettings:
    """Return settings with ASYNC_FLUSH and the file sizes of `gantry up`, or with small files for the tiny run."""
    return StoreSettings(
        store_path_root_dir=str(folder),
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
        mapped_file_size_commit_log=1 << 20 if tiny else LOG_FILE_BYTES,
        max_hash_slot_num=INDEX_ENTRIES // (400 if tiny else 4),
        max_index_num=INDEX_ENTRIES // (100 if tiny else 1),
    )


@contextmanager
def opened(settings: StoreSettings) -> Iterator[MessageStore]:
    """Open a store; stop it when the block ends."""
    store = MessageStore(settings, files=OsFileSystem(), clock=SystemClock(), store_host=HOST)
    store.start()
    yield store
    store.stop()


def append_and_dispatch(store: MessageStore, messages: list[Message]) -> float:
    """Store all messages in turns; return the seconds."""
    put, dispatch, maintain = store.put, store.dispatch, store.maintain
    began = time.perf_counter()
    for start in range(0, len(messages), TURN):
        for number, (body, properties, key) in enumerate(messages[start : start + TURN], start):
            put(
                "bench", number % QUEUES, body, properties,
                born_at_ms=1, born_host=HOST, tag="TagA", unique_key=key, keys="",
            )  # fmt: skip
        dispatch()
        if start % (TURN * 256) == 0:
            maintain()
    return time.perf_counter() - began


def copy_loop(folder: Path, records: list[bytes], count: int, file_bytes: int) -> float:
    """Copy encoded records into mapped files of the same size; return the seconds."""
    files = OsFileSystem()
    folder.mkdir(exist_ok=True)
    total = 0.0
    done, number = 0, 0
    while done < count:
        file = files.create(f"{folder}/{number}", file_bytes)
        memory = file.map()
        at, fits = 0, file_bytes - 8
        began = time.perf_counter()
        while done < count:
            record = records[done % len(records)]
            end = at + len(record)
            if end > fits:
                break
            memory[at:end] = record
            at = end
            done += 1
        total += time.perf_counter() - began
        file.close()
        number += 1
    return total


def read_back(store: MessageStore, count: int) -> tuple[float, str]:
    """Read all messages in pulls of 32; return messages per second and a checksum over all bodies."""
    digest = hashlib.sha256()
    seconds, found = 0.0, 0
    for queue_id in range(QUEUES):
        offset = 0
        while offset < store.max_offset("bench", queue_id):
            began = time.perf_counter()
            result = store.get("bench", queue_id, offset, 32)
            seconds += time.perf_counter() - began
            found += result.count
            offset = result.next_offset
            for piece in result.records:
                for message in iter_records(piece, check_crc=False):
                    digest.update(message.body)
    assert found == count, f"{found} of {count} messages were read back"
    return count / seconds, digest.hexdigest()[:16]


def anonymous_kib() -> int:
    """Return this process's anonymous memory in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(*, tiny: bool, profile: bool = False) -> tuple[list[Row], str]:
    """Run the benchmark; return the rows and the checksum of the bodies that were read.

    The rates are the best of several rounds.
    """
    count, rounds = (2_000, 1) if tiny else (150_000, 4)
    folder = Path(tempfile.mkdtemp(prefix="bench-store-"))
    rate = pull_rate = baseline = 0.0
    grown = 0
    try:
        settings = settings_in(folder / "store", tiny=tiny)
        messages = make_messages(count)
        for number in range(rounds):
            # The first round warms up the code and takes new memory from the machine.
            with opened(settings) as store:
                before = anonymous_kib()
                seconds = profiled(store, messages) if profile and number else append_and_dispatch(store, messages)
                grown = anonymous_kib() - before
                records = list(store.get("bench", 0, 0, 32).records)
                pulled, checksum = read_back(store, count)
            assert checksum == checksum_of(messages), "what was read is not what was stored"
            rate, pull_rate = max(rate, count / seconds), max(pull_rate, pulled)
            shutil.rmtree(folder / "store")
            seconds = copy_loop(folder / "copy", records, count, settings.mapped_file_size_commit_log)
            baseline = max(baseline, count / seconds)
            shutil.rmtree(folder / "copy")
    finally:
        shutil.rmtree(folder)
    rows = [
        Row("store append + dispatch, 1 KiB", rate, "messages/s", "mmap copy loop", baseline,
            f">= {AIM_PER_S:,}/s", None if tiny else rate >= AIM_PER_S),
        Row("store get, 32 x 1 KiB, checked", pull_rate, "messages/s", aim=f">= {PULL_AIM_PER_S:,}/s",
            reached=None if tiny else pull_rate >= PULL_AIM_PER_S),
        Row(f"anonymous memory grown by {count:,} messages", grown, "KiB"),
    ]  # fmt: skip
    return rows, checksum


def profiled(store: MessageStore, messages: list[Message]) -> float:
    """Store all messages under the profiler; print the profile to stderr."""
    profiler = cProfile.Profile()
    seconds = profiler.runcall(append_and_dispatch, store, messages)
    pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    return seconds


def checksum_of(messages: list[Message]) -> str:
    """Return the checksum that read_back must return: over all bodies, queue by queue."""
    digest = hashlib.sha256()
    for queue_id in range(QUEUES):
        for body, _, _ in messages[queue_id::QUEUES]:
            digest.update(body)
    return digest.hexdigest()[:16]


def main() -> int:
    """Run the benchmark and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tiny", action="store_true", help="a few messages, to see that it works")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--profile", action="store_true", help="where the time goes, on stderr")
    options = parser.parse_args()
    rows, checksum = measure(tiny=options.tiny, profile=options.profile)
    show(rows, as_json=options.json)
    print(f"checksum of what was read: {checksum}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
