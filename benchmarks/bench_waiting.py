"""Benchmarks what a broker does with messages that wait: delay levels, set times, messages sent back, transactions.

The figures are rates per second of the broker's processor time: messages divided by the seconds that all threads of the
broker were on a processor. Other load on the machine changes them little, and one broker can't do more than that. The
rounds of all kinds alternate on one broker. Plain sends before and after each load are its baseline, because the speed
of a processor changes within a run. Each figure and each ratio is the median of the rounds. The broker runs with ASYNC_FLUSH, so that no kind shares a wait for the disk with another one.

- *Sent back*: request 36 for a message of 1 KiB in memory; the broker chooses the level. The row by the clock shows the
  same requests; it depends on other load.
- *Half + commit*: a half message and its commit. The rate counts transactions.
- *For a set time*: until the message waits in the wheel, not only until the reply.

All levels and set times are hours away, so nothing becomes due during the run.
"""

import itertools
import time
from collections.abc import Iterator
from statistics import median

import uvloop

from benchmarks import frames
from benchmarks.load import frames_closed_loop
from benchmarks.peer import ask, enqueue_lag
from benchmarks.report import Row
from benchmarks.stack import Service, address_of, broker_alone, cpu_s, scratch

IN_FLIGHT = 128
ROUNDS = 7
TOPIC, GROUP = "WaitingTopic", "GID_waiting"
LEVEL = 3
AHEAD_MS = 3_600_000
DELAYED_RATIO_MIN, TRANSACTION_RATIO_MIN = 0.85, 0.40
SENT_BACK_PER_S_MIN = 10_000
SETTINGS = {
    "GANTRY_BROKER_FLUSH_DISK_TYPE": "ASYNC_FLUSH",
    "GANTRY_BROKER_MESSAGE_DELAY_LEVEL": " ".join(f"{hours}h" for hours in range(2, 20)),
    "GANTRY_BROKER_MAPPED_FILE_SIZE_COMMIT_LOG": str(256 << 20),
    "GANTRY_BROKER_MAX_INDEX_NUM": "2000000",
    "GANTRY_BROKER_MAX_HASH_SLOT_NUM": "500000",
}
# In the wheel within a few milliseconds; a broker that takes longer than this has lost them.
ENQUEUED_WITHIN_S = 60


class Loads:
    """The loads of one broker. Each call sends `count` messages and returns the rate per second of processor time.

    Attributes:
        by_clock: Rate per second of the clock, of the last call.
    """

    def __init__(self, broker: Service, count: int) -> None:
        self._address, self._pid, self._count = address_of(broker.facts), broker.pid, count
        # No two messages have the same unique key: the broker would take the second half message for the first one.
        self._numbers = itertools.count()
        self._origins: list[dict[str, str]] = []
        self.by_clock = 0.0

    def plain(self) -> float:
        """Send plain messages."""
        return self._rate([frames.send_frame(TOPIC, number) for number in self._next()])

    def delayed(self) -> float:
        """Send messages with a delay level."""
        more = f"DELAY\x01{LEVEL}\x02"
        return self._rate([frames.send_frame(TOPIC, number, more=more) for number in self._next()])

    def timed(self) -> float:
        """Send messages for a set time, and wait until all of them wait in the wheel."""
        more = f"TIMER_DELIVER_MS\x01{int(time.time() * 1000) + AHEAD_MS}\x02"
        made = [frames.send_frame(TOPIC, number, more=more) for number in self._next()]
        began_s = cpu_s(self._pid)
        self._send(made)
        deadline = time.monotonic() + ENQUEUED_WITHIN_S
        while enqueue_lag(self._address):
            assert time.monotonic() < deadline, "the wheel does not get the messages"
            time.sleep(0.2)
        return len(made) / (cpu_s(self._pid) - began_s)

    def sent_back(self) -> float:
        """Send messages back that the first call has stored."""
        if not self._origins:
            made = [frames.send_frame(TOPIC, number) for number in self._next()]
            self._origins = [reply.ext_fields for reply in ask(self._address, made, in_flight=IN_FLIGHT)]
        return self._rate(
            [frames.send_back_frame(GROUP, number, self._origins[number]) for number in range(self._count)]
        )

    def transactions(self) -> float:
        """Send half messages, and commit them."""
        made = [frames.half_frame(TOPIC, number) for number in self._next()]
        began_s = cpu_s(self._pid)
        halves = ask(self._address, made, in_flight=IN_FLIGHT)
        used_s = cpu_s(self._pid) - began_s
        commits = [frames.commit_frame(number, half.ext_fields) for number, half in enumerate(halves)]
        return self._count / (used_s + self._count / self._rate(commits))

    def _next(self) -> Iterator[int]:
        return itertools.islice(self._numbers, self._count)

    def _rate(self, made: list[bytes]) -> float:
        began_s = cpu_s(self._pid)
        self._send(made)
        return len(made) / (cpu_s(self._pid) - began_s)

    def _send(self, made: list[bytes]) -> None:
        result = uvloop.run(
            frames_closed_loop(self._address, made.__getitem__, in_flight=IN_FLIGHT, requests=len(made))
        )
        assert result.failures == 0, f"{result.failures} of {result.requests} failed"
        self.by_clock = result.rate


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    with scratch("waiting") as folder:
        broker = broker_alone(folder, SETTINGS)
        try:
            broker.start()
            yield from _rows(Loads(broker, 300 if tiny else 10_000), 1 if tiny else ROUNDS)
        finally:
            broker.kill()


def _rows(loads: Loads, rounds: int) -> Iterator[Row]:
    kinds = {
        "level": loads.delayed,
        "set time": loads.timed,
        "sent back": loads.sent_back,
        "transactions": loads.transactions,
    }
    rates: dict[str, list[float]] = {name: [] for name in (*kinds, "plain", "by the clock")}
    ratios: dict[str, list[float]] = {name: [] for name in kinds}
    # The first round warms up: it creates the topics, and each kind loads its code.
    for number in range(rounds + 1):
        before = loads.plain()
        for name, load in kinds.items():
            rate = load()
            by_clock = loads.by_clock
            after = loads.plain()
            if number:
                rates[name].append(rate)
                rates["plain"].append(after)
                ratios[name].append(rate / ((before + after) / 2))
            if number and name == "sent back":
                rates["by the clock"].append(by_clock)
            before = after
    figures = {name: median(values) for name, values in rates.items()}
    level, transactions = median(ratios["level"]), median(ratios["transactions"])
    sent_back = figures["sent back"]

    def row(what: str, name: str, aim: str = "", is_kept: bool | None = None) -> Row:
        plain = figures[name] / median(ratios[name])
        return Row(what, figures[name], "messages/s", "plain sends around it", plain, aim, is_kept)

    yield row("send with a delay level", "level", f"≥ {DELAYED_RATIO_MIN} x plain", level >= DELAYED_RATIO_MIN)
    yield row("send for a set time, with its way into the wheel", "set time")
    yield row("send back", "sent back", f"≥ {SENT_BACK_PER_S_MIN:,}/s", sent_back >= SENT_BACK_PER_S_MIN)
    yield Row("send back, by the clock", figures["by the clock"], "messages/s")
    yield row(
        "half + commit", "transactions", f"≥ {TRANSACTION_RATIO_MIN} x plain", transactions >= TRANSACTION_RATIO_MIN
    )
