"""Benchmarks messages for a set time: their cost beside plain sends, their punctuality, memory and start.

- *Beside*: plain sends to a broker with 100,000 timed messages against those to a broker with none, in alternating
  rounds. The rates are per second of processor time (bench_waiting).
- *Late*: 100,000 messages for the whole seconds of 50 s, on an otherwise idle broker. The delay is the store time of
  the delivered message minus the time that its producer asked for. A message for a time within a second waits for the
  end of this second, so it would be up to a second later.
- *Due at once*: 100,000 messages for one second, with plain sends at a fixed rate meanwhile. The latencies of these
  show whether the delivery is paced.
- *A million*: anonymous memory with 1,000,000 waiting messages, and the start with them and 10,000 open transactions.
  A start lasts until the broker has answered a request for its open transactions, which it does not before it has read
  them. Without: the same broker on its empty store. The page cache is warm.

Every message must be delivered exactly once, and none may be missing after a start; otherwise the benchmark fails.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

import uvloop

from benchmarks import frames
from benchmarks.bench_waiting import IN_FLIGHT, SETTINGS, TOPIC, Loads
from benchmarks.load import Result, frames_closed_loop, frames_open_loop
from benchmarks.peer import Address, ask, enqueue_lag, max_offsets, read_topic, runtime_figures
from benchmarks.report import Row
from benchmarks.stack import Service, address_of, anonymous_mib, broker_alone, scratch
from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.remoting.bodies.transaction import OpenTransactions
from gantry.remoting.codes import RequestCode

TIMED, MILLION, OPEN = 100_000, 1_000_000, 10_000
BODY = b"x" * 64
ROUNDS, ROUND_MESSAGES = 7, 10_000
FIRE_SECONDS = 50
# Enough to send the messages before the first second fires.
LEAD_S, TINY_LEAD_S = 40, 2
PLAIN_PER_S, PLAIN_CONNECTIONS = 500, 4
DELIVERED_WITHIN_S = 300
ENQUEUED_WITHIN_S = 300
SECOND_MS, HOUR_MS = 1000, 3_600_000

BESIDE_RATIO_MIN = 1 / 1.05
LATE_MS_MAX = 1000.0
MEMORY_MIB_MAX = 100.0
START_S_MORE_MAX = 10.0


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    count = 400 if tiny else TIMED
    with scratch("timers-waiting") as waiting_folder, scratch("timers-plain") as plain_folder:
        waiting, plain = broker_alone(waiting_folder, SETTINGS), broker_alone(plain_folder, SETTINGS)
        try:
            waiting.start()
            plain.start()
            yield _beside(waiting, plain, count, tiny=tiny)
            plain.kill()
            yield _late(waiting, count, tiny=tiny)
            yield from _due_at_once(waiting, count, tiny=tiny)
        finally:
            waiting.kill()
            plain.kill()
    with scratch("timers-million") as folder:
        broker = broker_alone(folder, SETTINGS)
        try:
            yield from _million(broker, 2_000 if tiny else MILLION, 100 if tiny else OPEN)
        finally:
            broker.kill()


def _beside(waiting: Service, plain: Service, count: int, *, tiny: bool) -> Row:
    # A topic of its own, so that its messages are not among those of the next steps.
    _send_timed(address_of(waiting.facts), "BesideTopic", [int(time.time() * 1000) + HOUR_MS] * count)
    loads = {broker: Loads(broker, 300 if tiny else ROUND_MESSAGES) for broker in (waiting, plain)}
    rates: dict[Service, list[float]] = {broker: [] for broker in loads}
    for number in range(2 if tiny else ROUNDS + 1):
        for broker, load in loads.items():
            rate = load.plain()
            if number:  # The first round warms up.
                rates[broker].append(rate)
    beside, alone = median(rates[waiting]), median(rates[plain])
    return Row(
        f"plain send beside {count:,} timed messages", beside, "messages/s", "none", alone, "costs ≤ 5 % more",
        beside / alone >= BESIDE_RATIO_MIN,
    )  # fmt: skip


def _late(broker: Service, count: int, *, tiny: bool) -> Row:
    address = address_of(broker.facts)
    first = int(time.time()) + (TINY_LEAD_S if tiny else LEAD_S)
    seconds = 2 if tiny else FIRE_SECONDS
    _send_timed(address, "LateTopic", [(first + number % seconds) * SECOND_MS for number in range(count)])
    late_ms = sorted(message.stored_at_ms - _wanted_ms(message) for message in _delivered(address, "LateTopic", count))
    p99_ms = late_ms[len(late_ms) * 99 // 100]
    return Row(
        f"{count:,} timed messages within {seconds} s, p99 late", p99_ms, "ms", aim=f"≤ {LATE_MS_MAX:,.0f} ms",
        reached=0 <= p99_ms <= LATE_MS_MAX,
    )  # fmt: skip


def _due_at_once(broker: Service, count: int, *, tiny: bool) -> Iterator[Row]:
    address = address_of(broker.facts)
    due = int(time.time()) + (TINY_LEAD_S if tiny else LEAD_S)
    _send_timed(address, "OnceTopic", [due * SECOND_MS] * count)
    idle = _plain_latencies(address, 1 if tiny else 5)
    time.sleep(max(0.0, due - time.time()))
    beside = _plain_latencies(address, 1 if tiny else 10)
    messages = list(_delivered(address, "OnceTopic", count))
    took_s = max(message.stored_at_ms for message in messages) / SECOND_MS - due
    yield Row(f"{count:,} due in one second, all delivered once", count / took_s, "messages/s")
    yield Row(
        f"plain send, p99 at {PLAIN_PER_S}/s meanwhile", beside.percentile_ms(99), "ms", "before",
        idle.percentile_ms(99),
    )  # fmt: skip


def _plain_latencies(address: Address, seconds: int) -> Result:
    made = [frames.send_frame(TOPIC, number) for number in range(PLAIN_PER_S * seconds)]
    result = uvloop.run(
        frames_open_loop(address, made.__getitem__, connections=PLAIN_CONNECTIONS, rate=PLAIN_PER_S, requests=len(made))
    )
    assert not result.failures, f"{result.failures} of {result.requests} sends failed"
    return result


def _million(broker: Service, count: int, open_count: int) -> Iterator[Row]:
    without_s = _start(broker, 0)
    address = address_of(broker.facts)
    Loads(broker, 2_000).plain()  # Fills caches and loads code.
    before_mib = anonymous_mib(broker.pid)
    now_ms = int(time.time() * 1000)
    _send_timed(address, TOPIC, [now_ms + 2 * HOUR_MS + number * HOUR_MS // count for number in range(count)])
    memory_mib = anonymous_mib(broker.pid) - before_mib
    yield Row(
        f"memory of {count:,} timed messages", memory_mib, "MiB", aim=f"≤ {MEMORY_MIB_MAX:.0f} MiB",
        reached=memory_mib <= MEMORY_MIB_MAX,
    )  # fmt: skip
    ask(address, [frames.half_frame(TOPIC, number) for number in range(open_count)], in_flight=IN_FLIGHT)
    for name, stop in (("", broker.stop), (" after kill -9", broker.kill)):
        stop()
        start_s = _start(broker, open_count)
        address = address_of(broker.facts)
        while enqueue_lag(address):
            time.sleep(0.2)
        waiting = int(runtime_figures(address)["timerCongestNum"])
        assert waiting == count, f"{waiting} of {count} timed messages wait after the start"
        yield Row(
            f"start{name} with {count:,} timed messages and {open_count:,} transactions", start_s, "s", "without",
            without_s, f"≤ {START_S_MORE_MAX:.0f} s more", start_s - without_s <= START_S_MORE_MAX,
        )  # fmt: skip


def _start(broker: Service, open_count: int) -> float:
    """Start the broker and ask for its open transactions. Return the seconds until its first answer."""
    began = time.monotonic()
    broker.start()
    address, found, seconds = address_of(broker.facts), 0, 0.0
    offset: int | None = 0
    while offset is not None:
        fields = {"offset": str(offset)}
        (reply,) = ask(address, [frames.frame(RequestCode.GANTRY_OPEN_TRANSACTIONS, fields, 0)])
        seconds = seconds or time.monotonic() - began
        page = OpenTransactions.decode(reply.body_bytes)
        found, offset = found + len(page.transactions), page.next_offset
    assert found == open_count, f"{found} of {open_count} transactions are open after the start"
    return seconds


def _send_timed(address: Address, topic: str, due_ms: Sequence[int]) -> None:
    """Send messages for these times, and wait until all of them are in the wheel."""

    def make(start: int, at: int) -> bytes:
        more = f"TIMER_DELIVER_MS\x01{due_ms[start + at]}\x02"
        return frames.send_frame(topic, start + at, more=more, body=BODY)

    for start in range(0, len(due_ms), TIMED):
        count = min(TIMED, len(due_ms) - start)
        result = uvloop.run(frames_closed_loop(address, partial(make, start), in_flight=IN_FLIGHT, requests=count))
        assert not result.failures, f"{result.failures} of {count} timed sends failed"
    deadline = time.monotonic() + ENQUEUED_WITHIN_S
    while enqueue_lag(address):
        assert time.monotonic() < deadline, "the wheel does not get the messages"
        time.sleep(0.2)


def _delivered(address: Address, topic: str, count: int) -> Iterator[StoredMessage]:
    """Wait until `count` messages are delivered, and yield them. Fail if one is missing, or there twice."""
    deadline = time.monotonic() + DELIVERED_WITHIN_S
    while (found := sum(max_offsets(address, topic))) < count:
        assert time.monotonic() < deadline, f"{found} of {count} timed messages were delivered"
        time.sleep(0.5)
    seen: Counter[str] = Counter()
    for message in read_topic(address, topic):
        seen[message.message_id] += 1
        yield message
    assert len(seen) == count == seen.total(), f"{seen.total()} deliveries of {len(seen)} messages, {count} were sent"


def _wanted_ms(message: StoredMessage) -> int:
    return int(message.properties[PropertyName.TIMER_DELIVER_MS])
