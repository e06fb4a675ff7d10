"""Benchmarks filters in the store of one process: units that a filter by tags examines, and SQL92 evaluations.

Tags: a hundredth of the messages has the wanted tag; pulls of 32 read the queue from its start to its end. The baseline
asks a function about each unit, as the store does for filters that are not tags.

SQL92: pulls with an expression over two of nine properties, which one message in twenty matches. A figure includes
everything that a pull does in the store: finding the records, decoding the named properties, deciding. The baseline
decodes all properties of the same messages, and decides nothing.

Search: what a broker does to find the first message that an expression accepts, in slices between which the event loop
is free (request 900002). No message is accepted. The longest slice is in processor time, because on a busy machine the
kernel may stop any process for longer.

All rates are for a second of processor time.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench_store import HOST, TURN, opened, settings_in
from benchmarks.report import Row
from gantry.model.javahash import tags_code
from gantry.model.message import decode_properties
from gantry.model.record import find_properties
from gantry.runtime.clock import SystemClock
from gantry.sqlfilter import SqlFilter
from gantry.storeformat.tagcodes import TagCodes
from services.broker.processors.backlog import SCANNED_UNITS_MAX, SLICE_MS_MAX, SLICE_WORK
from services.broker.store.messagestore import MessageStore

BODY = bytes(100)
SELECTIVITY = 100
UNITS_AIM_PER_S, SQL_AIM_PER_S = 2_000_000, 150_000
SQL = "distance > 1000 AND origin IN ('EWR', 'JFK')"
SEARCHES = {
    "2 of 9 properties": "distance > 5000 AND origin IN ('EWR', 'JFK')",
    "60 comparisons": " OR ".join(f"distance > {number}.5" for number in range(5_000, 5_060)),
}
HOLD_MAX_MS = 20.0
ORIGINS = ("EWR", "LGA", "JFK", "ORD", "ATL")


def fill(store: MessageStore, count: int) -> None:
    """Store messages of one queue."""
    for number in range(count):
        tag = "Wanted" if number % SELECTIVITY == 0 else f"Other{number % 7}"
        properties = (
            f"UNIQ_KEY\x017F0000010A2C18B4AAC2A7D4{number:08X}\x02WAIT\x01true\x02TAGS\x01{tag}\x02KEYS\x01UA1545\x02"
            f"origin\x01{ORIGINS[number % 5]}\x02distance\x01{number % 1150}\x02CLUSTER\x01DefaultCluster\x02"
            f"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
        )
        store.put("bench", 0, BODY, properties.encode(), born_at_ms=1, born_host=HOST, tag=tag, unique_key="", keys="")
        if number % TURN == TURN - 1:
            store.dispatch()
    store.dispatch()


def scan(store: MessageStore, count: int, **filters: Any) -> tuple[float, int]:
    """Pull from the start of the queue to its end; return the examined messages per second of a core, and the matches."""
    offset = found = 0
    began = time.process_time()
    while offset < count:
        result = store.get("bench", 0, offset, 32, **filters)
        assert result.next_offset > offset, "a pull moves on"
        offset = result.next_offset
        found += result.count
    return count / (time.process_time() - began), found


def search(store: MessageStore, count: int, wanted: SqlFilter) -> tuple[float, float]:
    """Search all messages in slices; return the examined messages per second of a core, and the longest slice in ms CPU."""
    clock, offset, longest_s = SystemClock(), 0, 0.0
    began = time.process_time()
    while offset < count:
        started = time.thread_time()
        found, _, _ = store.find_accepted(
            "bench",
            0,
            offset,
            wanted,
            units_max=SCANNED_UNITS_MAX,
            work_max=SLICE_WORK,
            until_ms=clock.monotonic_ms() + SLICE_MS_MAX,
        )
        longest_s = max(longest_s, time.thread_time() - started)
        assert found.unit is None, "no message is accepted"
        assert found.scanned_to > offset, "a slice moves on"
        offset = found.scanned_to
    return count / (time.process_time() - began), longest_s * 1_000


def decode_all(store: MessageStore, count: int) -> float:
    """Decode all properties of up to 10,000 messages; return the messages per second of a core."""
    records = [
        record for offset in range(0, min(count, 10_000), 32) for record in store.get("bench", 0, offset, 32).records
    ]
    began = time.process_time()
    for record in records:
        decode_properties(find_properties(record, 0, len(record)) or b"")
    return len(records) / (time.process_time() - began)


def best(measure: Callable[[], float], rounds: int) -> float:
    """Return the best of several rounds."""
    return max(measure() for _ in range(rounds))


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark; yield its rows."""
    count, rounds = (2_000, 1) if tiny else (200_000, 3)
    folder = Path(tempfile.mkdtemp(prefix="bench-filters-"))
    wanted, sql = tags_code("Wanted"), SqlFilter(SQL)
    try:
        with opened(settings_in(folder / "store", tiny=tiny)) as store:
            fill(store, count)
            codes = TagCodes({wanted})
            matches = {scan(store, count, unit_filter=each)[1] for each in (codes, wanted.__eq__)}
            assert matches == {count // SELECTIVITY}, f"{matches} messages matched"
            units = best(lambda: scan(store, count, unit_filter=codes)[0], rounds)
            one_by_one = best(lambda: scan(store, count, unit_filter=wanted.__eq__)[0], rounds)
            decided = best(lambda: scan(store, count, property_filter=sql)[0], rounds)
            decoded = best(lambda: decode_all(store, count), rounds)
            searches = {
                name: search(store, min(count, 50_000), SqlFilter(expression)) for name, expression in SEARCHES.items()
            }
    finally:
        shutil.rmtree(folder)
    yield Row("filter by a tag of 1 % of the messages", units, "units/s", "a call for each unit", one_by_one,
              f">= {UNITS_AIM_PER_S:,}/s", None if tiny else units >= UNITS_AIM_PER_S)  # fmt: skip
    yield Row("filter by SQL92, 2 of 9 properties", decided, "messages/s", "decode all properties", decoded,
              f">= {SQL_AIM_PER_S:,}/s", None if tiny else decided >= SQL_AIM_PER_S)  # fmt: skip
    for name, (rate, longest_ms) in searches.items():
        yield Row(f"search by SQL92, {name}", rate, "messages/s", "decode all properties", decoded)
        yield Row(f"longest slice of the search, {name}", longest_ms, "ms CPU", "", None,
                  f"<= {HOLD_MAX_MS:.0f} ms", None if tiny else longest_ms <= HOLD_MAX_MS)  # fmt: skip
