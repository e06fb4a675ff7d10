"""Benchmarks a broker with many queues: latency of sends, disk, descriptors, memory, and start time.

Each size gets a new broker on an empty store, with the broker's own defaults (SYNC_FLUSH, RocketMQ's file sizes). One
message to each queue warms up. Then messages go to random queues at a fixed rate, far below the broker's limit, so that
a latency is the broker's work and not a queue of requests. A latency counts from the moment at which the message was
due. The run is long enough for several checkpoints, which sync every queue with new messages.

- Disk beyond the messages: all blocks of the store's folder, folders included, without the CommitLog's. The files of
  the CommitLog hold the messages, and are allocated ahead in steps that do not depend on the number of queues. The
  index has a row of its own too, because it grows with the keys of the messages and not with the queues.
- Start: time from the creation of the process until it answers. The page cache is warm. Before the broker is killed, it
  takes messages for many queues, so that the next start has data to recover.

A size that can't be measured becomes a row with the reason. The store of a size may take 10,000 MiB at most, and no
size starts unless twice that is free.
"""

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks import frames
from benchmarks.load import Result, frames_closed_loop, frames_open_loop
from benchmarks.report import Row
from benchmarks.stack import (
    SMALL_FILES,
    Service,
    address_of,
    allocated_bytes,
    anonymous_mib,
    broker_alone,
    descriptors,
    scratch,
)
from gantry.model.topic import TopicConfig
from gantry.remoting.bodies.config import encode_topic_configs
from gantry.remoting.codes import RequestCode

SIZES = (100, 1_000, 10_000, 30_000)
TINY_SIZES = (4, 12)
QUEUES_PER_TOPIC = 100
RATE_PER_S, SECONDS = 1_000, 25
CONNECTIONS = 8
IN_FLIGHT = 128
SEED = 9
# Queues of the first part of the warm-up. They are few, because a queue may take megabytes.
WARM_UP_PART = 50
KILLED_AFTER = 10_000
STORE_BYTES_MAX = 10_000 << 20
FAILURE_CHARS_MAX = 300
MIB = 1 << 20

AIM_QUEUES = 10_000
P99_RATIO_MAX, START_S_MAX, DISK_MIB_MAX = 2.0, 5.0, 100.0


class NotMeasurableError(Exception):
    """A size that can't be measured; the report shows the message."""


@dataclass(slots=True)
class SizeFigures:
    """The figures of one size; 0 for a figure that a failure prevented."""

    queues: int
    touched: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    descriptors: int = 0
    memory_mib: float = 0.0
    stop_s: float = 0.0
    disk_mib: float = 0.0
    index_mib: float = 0.0
    start_s: float = 0.0
    start_killed_s: float = 0.0
    failure: str = ""


def run(*, tiny: bool = False, sizes: Sequence[int] = (), store_bytes_max: int = STORE_BYTES_MAX) -> Iterator[Row]:
    """Run the benchmark. Ratios are to the first size."""
    baseline: SizeFigures | None = None
    for queues in sizes or (TINY_SIZES if tiny else SIZES):
        measured = measure(queues, tiny=tiny, store_bytes_max=store_bytes_max)
        baseline = baseline or measured
        yield from rows(measured, baseline)


def measure(queues: int, *, tiny: bool, store_bytes_max: int) -> SizeFigures:
    """Measure one size. If it fails, the result contains the failure."""
    measured = SizeFigures(queues)
    with scratch(f"scale-{queues}") as folder:
        broker = broker_alone(folder, SMALL_FILES if tiny else {})
        try:
            _refuse_full_disk(folder, store_bytes_max)
            _Size(measured, broker, folder / "store", store_bytes_max, tiny=tiny).measure()
        except (NotMeasurableError, OSError, RuntimeError, TimeoutError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            # The error of a process that does not start contains its log. The last line of the log gives the reason.
            measured.failure = " … ".join(dict.fromkeys([lines[0], lines[-1]]))[:FAILURE_CHARS_MAX]
        finally:
            broker.kill()
    return measured


def _refuse_full_disk(folder: Path, store_bytes_max: int) -> None:
    free = shutil.disk_usage(folder).free
    # Twice as much must be free, so that other users of the disk do not run out of space.
    if free < 2 * store_bytes_max:
        raise NotMeasurableError(
            f"the disk has {free / MIB:,.0f} MiB free, {2 * store_bytes_max / MIB:,.0f} MiB are needed"
        )


class _Size:
    """The steps of one size."""

    def __init__(
        self, measured: SizeFigures, broker: Service, store: Path, store_bytes_max: int, *, tiny: bool
    ) -> None:
        self._measured = measured
        self._broker = broker
        self._store = store
        self._store_bytes_max = store_bytes_max
        self._per_topic = min(QUEUES_PER_TOPIC, TINY_SIZES[0] if tiny else measured.queues)
        self._requests = 200 if tiny else RATE_PER_S * SECONDS
        self._rng = random.Random(SEED)
        self._sent = 0

    def measure(self) -> None:
        """Run all steps in order and fill in the figures."""
        measured, broker = self._measured, self._broker
        broker.start()
        self._create_topics()
        self._touch_each_queue()
        result = self._open_loop()
        measured.p50_ms, measured.p99_ms = result.percentile_ms(50), result.percentile_ms(99)
        measured.descriptors = descriptors(broker.pid)
        measured.memory_mib = anonymous_mib(broker.pid)
        measured.stop_s = self._stop()
        measured.disk_mib = (allocated_bytes(self._store) - allocated_bytes(self._store / "commitlog")) / MIB
        measured.index_mib = allocated_bytes(self._store / "index") / MIB
        broker.start()
        measured.start_s = broker.start_s
        self._send([self._rng.randrange(measured.queues) for _ in range(min(KILLED_AFTER, self._requests))])
        broker.kill()
        broker.start()
        measured.start_killed_s = broker.start_s

    def _stop(self) -> float:
        if not self._broker.stop():
            raise NotMeasurableError("the broker did not stop in order")
        return self._broker.stop_s

    def _create_topics(self) -> None:
        count = -(-self._measured.queues // self._per_topic)
        configs = [TopicConfig(_topic(number), self._per_topic, self._per_topic) for number in range(count)]
        body = encode_topic_configs(configs)
        request = frames.frame(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, 0, body)
        result = uvloop.run(
            frames_closed_loop(address_of(self._broker.facts), lambda _: request, in_flight=1, requests=1)
        )
        if result.failures:
            raise NotMeasurableError("the broker refused the topics")

    def _touch_each_queue(self) -> None:
        """Send a message to each queue, in parts that double in size. Stop before a part that would take too much disk."""
        bound, used, per_queue = self._store_bytes_max, allocated_bytes(self._store), 0.0
        start, count = 0, WARM_UP_PART
        while start < self._measured.queues:
            part = range(start, min(start + count, self._measured.queues))
            expected = used + per_queue * len(part)
            if expected > bound:
                raise NotMeasurableError(
                    f"the store would take {expected / MIB:,.0f} MiB, the bound is {bound / MIB:,.0f}"
                )
            self._send(part)
            before, used = used, allocated_bytes(self._store)
            per_queue = (used - before) / len(part)
            self._measured.touched = start = part.stop
            count *= 2

    def _send(self, queues: Sequence[int]) -> None:
        """Send one message to each of the queues, as fast as the broker accepts them."""
        made = self._frames(queues)
        address = address_of(self._broker.facts)
        result = uvloop.run(frames_closed_loop(address, made.__getitem__, in_flight=IN_FLIGHT, requests=len(made)))
        _check(result)

    def _open_loop(self) -> Result:
        made = self._frames([self._rng.randrange(self._measured.queues) for _ in range(self._requests)])
        result = uvloop.run(
            frames_open_loop(
                address_of(self._broker.facts),
                made.__getitem__,
                connections=CONNECTIONS,
                rate=RATE_PER_S,
                requests=len(made),
            )
        )
        _check(result)
        return result

    def _frames(self, queues: Sequence[int]) -> list[bytes]:
        made = []
        for queue in queues:
            self._sent += 1
            topic = _topic(queue // self._per_topic)
            made.append(frames.send_frame(topic, self._sent, queue_id=queue % self._per_topic))
        return made


def _topic(number: int) -> str:
    return f"ScaleTopic{number}"


def _check(result: Result) -> None:
    if result.failures:
        raise NotMeasurableError(f"{result.failures} of {result.requests} sends failed")


def rows(measured: SizeFigures, baseline: SizeFigures) -> Iterator[Row]:
    """Yield the report of one size: all its figures, and its failure."""
    size = f"{measured.queues:,} queues"
    name = f"{size}: {measured.failure}" if measured.failure else f"{size} that took a message"
    yield Row(name, measured.touched, "queues", "", None, size, not measured.failure)
    ratio = measured.p99_ms / baseline.p99_ms if baseline.p99_ms else None
    is_p99_reached = ratio is not None and ratio <= P99_RATIO_MAX
    is_disk_reached, is_start_reached = measured.disk_mib <= DISK_MIB_MAX, measured.start_s <= START_S_MAX
    for what, field, unit, aim, is_reached in (
        (f"send, p50 at {RATE_PER_S:,}/s", "p50_ms", "ms", "", None),
        (f"send, p99 at {RATE_PER_S:,}/s", "p99_ms", "ms", f"≤ {P99_RATIO_MAX:.0f} x", is_p99_reached),
        ("disk beyond the messages", "disk_mib", "MiB", f"≤ {DISK_MIB_MAX:.0f} MiB", is_disk_reached),
        ("the index's part of it", "index_mib", "MiB", "", None),
        ("open descriptors", "descriptors", "descriptors", "", None),
        ("anonymous memory", "memory_mib", "MiB", "", None),
        ("stop in order", "stop_s", "s", "", None),
        ("start after it", "start_s", "s", f"≤ {START_S_MAX:.0f} s", is_start_reached),
        ("start after kill -9", "start_killed_s", "s", "", None),
    ):
        figure, before = getattr(measured, field), getattr(baseline, field) or None
        if measured.queues != AIM_QUEUES:
            aim, is_reached = "", None
        if figure:
            yield Row(f"{size}, {what}", figure, unit, f"{baseline.queues:,} queues", before, aim, is_reached)
