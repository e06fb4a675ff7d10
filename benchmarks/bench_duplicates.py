"""Benchmarks duplicate windows: sends to a topic with a window against sends to one without, and the memory of the keys.

The rates are per second of the broker's processor time, as in bench_waiting.py. The rounds alternate on one broker. Every
message is new, so each send searches for its key and adds it. The second row sends the same messages once more: none of
them is stored.

The memory is that of a table with a million keys, after half of them were replaced by newer ones. The longest call is one of
those that filled it.
"""

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

import uvloop

from benchmarks import frames
from benchmarks.load import frames_closed_loop
from benchmarks.peer import ask
from benchmarks.report import Row
from benchmarks.stack import Service, address_of, anonymous_mib, broker_alone, cpu_s, scratch
from gantry.model.topic import DUPLICATE_WINDOW
from gantry.remoting.codes import RequestCode
from services.broker.duplicates.keytable import KeyTable

IN_FLIGHT = 128
ROUNDS = 9
PLAIN, WINDOWED = "PlainTopic", "WindowTopic"
RATIO_MIN = 0.95
KEYS, MIB_MAX, CALL_MS_MAX = 1_000_000, 64, 20
WINDOW_MS: Final = 86_400_000


class Loads:
    """The loads of one broker. Each call sends `count` messages and returns the rate per second of processor time."""

    def __init__(self, broker: Service, count: int) -> None:
        self._address, self._pid, self._count = address_of(broker.facts), broker.pid, count
        self._numbers = itertools.count()
        self._last: list[bytes] = []
        fields = {
            "topic": WINDOWED, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": f"+{DUPLICATE_WINDOW}={WINDOW_MS}",
        }  # fmt: skip
        ask(self._address, [frames.frame(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, 0)], in_flight=1)

    def plain(self) -> float:
        """Send to the topic without a window."""
        return self._rate(self._made(PLAIN))

    def windowed(self) -> float:
        """Send to the topic with a window."""
        self._last = self._made(WINDOWED)
        return self._rate(self._last)

    def again(self) -> float:
        """Send the last messages to the topic with a window once more."""
        return self._rate(self._last)

    def _made(self, topic: str) -> list[bytes]:
        return [frames.send_frame(topic, number) for number in itertools.islice(self._numbers, self._count)]

    def _rate(self, made: list[bytes]) -> float:
        began_s = cpu_s(self._pid)
        loop = frames_closed_loop(self._address, made.__getitem__, in_flight=IN_FLIGHT, requests=len(made))
        result = uvloop.run(loop)
        assert result.failures == 0, f"{result.failures} of {result.requests} failed"
        return len(made) / (cpu_s(self._pid) - began_s)


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    yield from _memory(20_000 if tiny else KEYS)
    with scratch("duplicates") as folder:
        yield from _rates(folder, tiny=tiny)


def _rates(folder: Path, *, tiny: bool) -> Iterator[Row]:
    settings = {
        "GANTRY_BROKER_FLUSH_DISK_TYPE": "ASYNC_FLUSH",
        "GANTRY_BROKER_MAPPED_FILE_SIZE_COMMIT_LOG": str(256 << 20),
        "GANTRY_BROKER_MAX_INDEX_NUM": "2000000",
        "GANTRY_BROKER_MAX_HASH_SLOT_NUM": "500000",
    }
    broker = broker_alone(folder, settings)
    try:
        broker.start()
        loads = Loads(broker, 300 if tiny else 10_000)
        kinds = {"plain": loads.plain, "windowed": loads.windowed, "again": loads.again}
        rates: dict[str, list[float]] = {name: [] for name in kinds}
        for number in range(2 if tiny else ROUNDS + 1):
            for name, load in kinds.items():
                rate = load()
                if number:  # The first round warms up.
                    rates[name].append(rate)
    finally:
        broker.kill()
    plain, windowed, again = (median(rates[name]) for name in kinds)
    ratio = windowed / plain
    goal = f"≥ {RATIO_MIN} x plain"
    yield Row("send, duplicate window", windowed, "messages/s", "plain send", plain, goal, ratio >= RATIO_MIN)
    yield Row("send of a known message", again, "messages/s", "plain send", plain, "≥ 1 x plain", again >= plain)


def _memory(count: int) -> Iterator[Row]:
    pid = os.getpid()
    before_mib = anonymous_mib(pid)
    table, longest_s = KeyTable(WINDOW_MS, count), 0.0
    for number in range(count + count // 2):
        began_s = time.thread_time()
        table.add(os.urandom(16), number * 1_000, number % 4, number, number)
        longest_s = max(longest_s, time.thread_time() - began_s)
    used_mib = anonymous_mib(pid) - before_mib
    assert table.count >= count, "the newest keys are kept"
    what, longest_ms = f"duplicate window of {count:,} keys", longest_s * 1_000
    yield Row(what, used_mib, "MiB", "", None, f"≤ {MIB_MAX} MiB", used_mib <= MIB_MAX)
    yield Row(f"{what}: longest call", longest_ms, "ms", "", None, f"≤ {CALL_MS_MAX} ms", longest_ms <= CALL_MS_MAX)
