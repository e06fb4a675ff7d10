"""Statistics of the message traffic: counts by topic and group over windows (request 315), and rates (request 28).

The hot path only adds to plain integers, and a timer samples them. The figure of a window is the difference between now
and the oldest sample inside the window.

Source: RocketMQ 5.x store/stats. The names of its statistics are kept. Those of single queues and of commerce are left
out.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

SAMPLE_INTERVAL_MS = 10_000
SAMPLE_TICK_MS = 100
# A slice takes about 2 ms. 50,000 flows are sampled within 3 s, in which sampling takes 4 % of the loop's time.
SAMPLE_SLICE_MAX = 2_000
_MINUTE_SAMPLES = 6
_HOUR_EVERY_MS, _HOUR_SAMPLES = 600_000, 6
_DAY_EVERY_MS, _DAY_SAMPLES = 3_600_000, 24
# A flow that no group has read for two days is removed, so that the table does not grow without limit.
IDLE_MAX_MS = 2 * 86_400_000

RATE_SECONDS = (10, 60, 600)


class Sample(NamedTuple):
    """The counters of a flow at one moment."""

    at_ms: int
    messages: int
    size_bytes: int
    calls: int


@dataclass(frozen=True, slots=True)
class Window:
    """The figures of one window: the sum, the sum per second, the mean of one call, and the time that it covers."""

    sum: int
    tps: float
    average: float
    elapsed_ms: int


class Flow:
    """Counters of messages, bytes and calls since the start. The hot path adds to the three fields directly."""

    __slots__ = ("_day", "_hour", "_minute", "calls", "changed_at_ms", "messages", "size_bytes")

    def __init__(self, now_ms: int) -> None:
        self.messages = 0
        self.size_bytes = 0
        self.calls = 0
        self.changed_at_ms = now_ms
        zero = Sample(now_ms, 0, 0, 0)
        self._minute = deque([zero], _MINUTE_SAMPLES + 1)
        self._hour = deque([zero], _HOUR_SAMPLES + 1)
        self._day = deque([zero], _DAY_SAMPLES + 1)

    def sample(self, now_ms: int) -> None:
        """Take a sample. Called every SAMPLE_INTERVAL_MS."""
        sample = Sample(now_ms, self.messages, self.size_bytes, self.calls)
        if sample.calls != self._minute[-1].calls:
            self.changed_at_ms = now_ms
        self._minute.append(sample)
        if now_ms - self._hour[-1].at_ms >= _HOUR_EVERY_MS:
            self._hour.append(sample)
        if now_ms - self._day[-1].at_ms >= _DAY_EVERY_MS:
            self._day.append(sample)

    def windows(self, now_ms: int, *, size: bool = False) -> tuple[Window, Window, Window]:
        """Return the figures of the last minute, hour and day, of messages or (with `size`) of bytes."""
        now = Sample(now_ms, self.messages, self.size_bytes, self.calls)
        minute, hour, day = (_window(ring[0], now, size) for ring in (self._minute, self._hour, self._day))
        return minute, hour, day


def _window(first: Sample, now: Sample, size: bool) -> Window:
    total = now.size_bytes - first.size_bytes if size else now.messages - first.messages
    calls = now.calls - first.calls
    elapsed_ms = now.at_ms - first.at_ms
    return Window(
        sum=total,
        tps=total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0,
        average=total / calls if calls else 0.0,
        elapsed_ms=elapsed_ms,
    )


TOPIC_PUT_NUMS, GROUP_GET_NUMS = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS"
# Name of a statistic → (table, whether it counts bytes instead of messages).
_NAMES: Mapping[str, tuple[str, bool]] = {
    TOPIC_PUT_NUMS: ("put", False),
    "TOPIC_PUT_SIZE": ("put", True),
    GROUP_GET_NUMS: ("get", False),
    "GROUP_GET_SIZE": ("get", True),
    "BROKER_PUT_NUMS": ("broker_put", False),
    "BROKER_GET_NUMS": ("broker_get", False),
}
SNDBCK_PUT_NUMS, DLQ_PUT_NUMS = "SNDBCK_PUT_NUMS", "DLQ_PUT_NUMS"
_RETURNS = (SNDBCK_PUT_NUMS, DLQ_PUT_NUMS)


class Totals(NamedTuple):
    """All traffic in one direction since the start."""

    messages: int
    size_bytes: int
    calls: int


class BrokerStats:
    """All flows of the broker.

    Concurrency: the loop's thread. The metrics are read from another thread, which may see a slightly older figure.
    """

    def __init__(self, cluster: str, now_ms: int) -> None:
        self._cluster = cluster
        self._puts: dict[str, Flow] = {}
        self._gets: dict[tuple[str, str], Flow] = {}
        # Messages that a group sent back, and those of them that became dead letters: (statistic, topic, group) → flow.
        self._returns: dict[tuple[str, str, str], Flow] = {}
        self._broker_put = Flow(now_ms)
        self._broker_get = Flow(now_ms)
        self._sampling: Iterator[None] | None = None
        self._sampled_at_ms = 0
        self._now_ms = now_ms
        # The counts of removed flows. They are part of the totals, which never decrease.
        self._forgotten_put = Totals(0, 0, 0)
        self._forgotten_get = Totals(0, 0, 0)
        self.get_found = 0
        self.get_missed = 0
        self.put_failed = 0

    def find_put_flow(self, topic: str) -> Flow | None:
        """Return the flow into a topic, or None if there was none yet."""
        return self._puts.get(topic)

    def put_flow(self, topic: str, now_ms: int) -> Flow:
        """Return the flow into a topic; create it if it is new."""
        flow = self._puts.get(topic)
        if flow is None:
            flow = self._puts[topic] = Flow(now_ms)
        return flow

    def get_flow(self, topic: str, group: str, now_ms: int) -> Flow:
        """Return the flow from a topic to a group; create it if it is new."""
        key = (topic, group)
        flow = self._gets.get(key)
        if flow is None:
            flow = self._gets[key] = Flow(now_ms)
        return flow

    def return_flow(self, name: str, topic: str, group: str, now_ms: int) -> Flow:
        """Return the flow of SNDBCK_PUT_NUMS or DLQ_PUT_NUMS; create it if it is new."""
        key = (name, topic, group)
        flow = self._returns.get(key)
        if flow is None:
            flow = self._returns[key] = Flow(now_ms)
        return flow

    def totals(self) -> tuple[Totals, Totals]:
        """Return the totals of puts and of gets."""
        return _total(self._forgotten_put, self._puts.values()), _total(self._forgotten_get, self._gets.values())

    def find(self, name: str, key: str, now_ms: int) -> tuple[Window, Window, Window] | None:
        """Return minute, hour and day of the statistic with RocketMQ's name and key, or None if there is none."""
        if name in _RETURNS:
            topic, _, group = key.partition("@")
            returned = self._returns.get((name, topic, group))
            return None if returned is None else returned.windows(now_ms)
        if name not in _NAMES:
            return None
        table, size = _NAMES[name]
        flow: Flow | None
        if table == "put":
            flow = self._puts.get(key)
        elif table == "get":
            topic, _, group = key.partition("@")
            flow = self._gets.get((topic, group))
        elif key != self._cluster:
            flow = None
        else:
            self._sum_up()
            flow = self._broker_put if table == "broker_put" else self._broker_get
        return None if flow is None else flow.windows(now_ms, size=size)

    def flows_of(self, topic: str | None, group: str | None) -> Iterator[tuple[str, str, str | None, Flow]]:
        """Iterate over (statistic, topic, group, flow) of a topic, of a group, or of both.

        The statistic is TOPIC_PUT_NUMS, GROUP_GET_NUMS, SNDBCK_PUT_NUMS or DLQ_PUT_NUMS. Messages into a topic have no
        group, so a group alone has none of them.
        """
        put = None if topic is None or group is not None else self._puts.get(topic)
        if topic is not None and put is not None:
            yield TOPIC_PUT_NUMS, topic, None, put
        for (its_topic, its_group), flow in self._gets.items():
            if topic in (None, its_topic) and group in (None, its_group):
                yield GROUP_GET_NUMS, its_topic, its_group, flow
        for (name, its_topic, its_group), flow in self._returns.items():
            if topic in (None, its_topic) and group in (None, its_group):
                yield name, its_topic, its_group, flow

    def put_tps(self, topic: str, now_ms: int) -> float:
        """Return the messages per second into a topic over the last minute."""
        flow = self._puts.get(topic)
        return 0.0 if flow is None else flow.windows(now_ms)[0].tps

    def get_tps(self, topic: str, group: str, now_ms: int) -> float:
        """Return the messages per second from a topic to a group over the last minute."""
        flow = self._gets.get((topic, group))
        return 0.0 if flow is None else flow.windows(now_ms)[0].tps

    def tick(self, monotonic_ms: int, now_ms: int) -> None:
        """Sample one slice of the flows if a round is in progress or due. Called every SAMPLE_TICK_MS."""
        if self._sampling is None:
            if monotonic_ms - self._sampled_at_ms < SAMPLE_INTERVAL_MS:
                return
            self._sampled_at_ms = monotonic_ms
            self._sampling = self._sample_slices()
        self._now_ms = now_ms
        is_over = next(self._sampling, True)
        if is_over:
            self._sampling = None

    def sample(self, now_ms: int) -> None:
        """Sample every flow, and remove the flows of groups that no longer read.

        The flow of a topic stays as long as the topic: senders keep a reference to it and count in it.
        """
        self._now_ms = now_ms
        for _ in self._sample_slices():
            pass

    def _sample_slices(self) -> Iterator[None]:
        """Sample everything, one slice at each step: with many topics, one step for all would block the loop."""
        for number, put in enumerate(list(self._puts.values()), 1):
            put.sample(self._now_ms)
            if number % SAMPLE_SLICE_MAX == 0:
                yield
        for number, (key, got) in enumerate(list(self._gets.items()), 1):
            got.sample(self._now_ms)
            if self._now_ms - got.changed_at_ms > IDLE_MAX_MS and self._gets.get(key) is got:
                self._forget_get(key)
            if number % SAMPLE_SLICE_MAX == 0:
                yield
        for number, (name, returned) in enumerate(list(self._returns.items()), 1):
            returned.sample(self._now_ms)
            if self._now_ms - returned.changed_at_ms > IDLE_MAX_MS:
                self._returns.pop(name, None)
            if number % SAMPLE_SLICE_MAX == 0:
                yield
        self._sum_up()
        self._broker_put.sample(self._now_ms)
        self._broker_get.sample(self._now_ms)

    def forget_topic(self, topic: str) -> None:
        """Remove the flows of a deleted topic."""
        flow = self._puts.pop(topic, None)
        if flow is not None:
            self._forgotten_put = _total(self._forgotten_put, (flow,))
        for key in [key for key in self._gets if key[0] == topic]:
            self._forget_get(key)
        self._returns = {key: flow for key, flow in self._returns.items() if key[1] != topic}

    def forget_group(self, group: str) -> None:
        """Remove the flows of a deleted group."""
        for key in [key for key in self._gets if key[1] == group]:
            self._forget_get(key)
        self._returns = {key: flow for key, flow in self._returns.items() if key[2] != group}

    def put_items(self) -> list[tuple[str, Flow]]:
        """Return (topic, flow) of all puts, for the metrics."""
        return list(self._puts.items())

    def get_items(self) -> list[tuple[tuple[str, str], Flow]]:
        """Return ((topic, group), flow) of all gets, for the metrics."""
        return list(self._gets.items())

    def _forget_get(self, key: tuple[str, str]) -> None:
        self._forgotten_get = _total(self._forgotten_get, (self._gets.pop(key),))

    def _sum_up(self) -> None:
        for flow, totals in zip((self._broker_put, self._broker_get), self.totals(), strict=True):
            flow.messages, flow.size_bytes, flow.calls = totals


def _total(start: Totals, flows: Iterable[Flow]) -> Totals:
    messages, size_bytes, calls = start
    for flow in flows:
        messages += flow.messages
        size_bytes += flow.size_bytes
        calls += flow.calls
    return Totals(messages, size_bytes, calls)


class Rates:
    """Rates of counters per second over 10 seconds, one minute and ten minutes, from one sample a second."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=RATE_SECONDS[-1] + 1)

    def sample(self, now_ms: int, values: tuple[int, ...]) -> None:
        """Record the values of the counters, in the order of the names."""
        assert len(values) == len(self._names), "one value a name"
        self._samples.append((now_ms, values))

    def text(self, name: str) -> str:
        """Return the three rates of a counter, separated by blanks; 0.0 before the second sample.

        RocketMQ omits the spans for which it has no samples. Its own tools then read past the end of the text.
        """
        index = self._names.index(name)
        return " ".join(str(self._rate((index,), seconds)) for seconds in RATE_SECONDS)

    def sum_text(self, names: tuple[str, ...]) -> str:
        """Return the three rates of the sum of several counters."""
        indices = tuple(self._names.index(name) for name in names)
        return " ".join(str(self._rate(indices, seconds)) for seconds in RATE_SECONDS)

    def _rate(self, indices: tuple[int, ...], seconds: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        first_at, first = self._samples[max(0, len(self._samples) - 1 - seconds)]
        last_at, last = self._samples[-1]
        elapsed_ms = last_at - first_at
        if elapsed_ms <= 0:
            return 0.0
        return sum(last[index] - first[index] for index in indices) * 1000 / elapsed_ms


class DailyTotals:
    """The count since the start at the last local midnight and at the one before it."""

    def __init__(self) -> None:
        self.yesterday_morning = 0
        self.today_morning = 0

    def midnight(self, total: int) -> None:
        """Record the count at the start of a new day."""
        self.yesterday_morning = self.today_morning
        self.today_morning = total
