"""Benchmarks the gateway over HTTP: single sends, batches, and latency at half of the peak rate.

The baseline is a bare ASGI application that reads the body and answers 201, on uvicorn with the gateway's settings.
Gateway, broker and name server run in separate processes; the broker flushes synchronously. Requests are JSON without
blanks, as JavaScript, Go, Java and httpx write it.

Each figure is the median of several rounds. Rounds of the baseline and of the gateway alternate, so that other load on
the machine affects both. The median also keeps one lucky round from setting a peak that is too high for the open loop.
"""

from collections.abc import Callable, Iterator
from statistics import median

import httpx
import msgspec
import uvloop

from benchmarks import frames
from benchmarks.load import Result, http_closed_loop, http_open_loop
from benchmarks.report import Row
from benchmarks.stack import address_of, process, scratch
from tests.support.stack import Stack

CONNECTIONS = 32
BATCH_CONNECTIONS = 16
# The pools of many callers would open this many when answers are slow.
OPEN_LOOP_CONNECTIONS = 256
ROUNDS = 5
BATCH = 100
TOPIC = "BenchTopic"
RATIO_MIN = 0.30
BATCHED_PER_S_MIN = 60_000
P99_MS_MAX = 20.0
CREATED = b"HTTP/1.1 201"
OK = b"HTTP/1.1 200"


def single_body(number: int) -> bytes:
    """Return the body of a send with 1 KiB of text."""
    return msgspec.json.encode({"body": frames.BODY.decode(), "tag": "TagA", "keys": [f"key-{number}"]})


def batch_body() -> bytes:
    """Return the body of a batch of 100 messages of 1 KiB."""
    text = frames.BODY.decode()
    return msgspec.json.encode({"messages": [{"body": text, "tag": "TagA"} for _ in range(BATCH)]})


def address_and_key(stack: Stack) -> tuple[tuple[str, int], str]:
    """Return the address of the stack's gateway, and its API key."""
    url = httpx.URL(stack.facts["http"])
    return (url.host, url.port or 80), stack.facts["api_key"]


def create_topic(stack: Stack, topic: str) -> None:
    """Create the topic of the benchmark."""
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    httpx.put(f"{stack.facts['http']}/v1/topics/{topic}", json={}, headers=headers).raise_for_status()


def closed_loop(
    address: tuple[str, int], make_request: Callable[[int], bytes], requests: int, success: bytes, connections: int
) -> float:
    """Return the requests per second of one round. No request may fail."""
    result = uvloop.run(
        http_closed_loop(address, make_request, connections=connections, requests=requests, success=success)
    )
    assert result.failures == 0, f"{result.failures} requests failed"
    return result.rate


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    with (
        Stack(brokers=1) as stack,
        scratch("http") as folder,
        process(folder, "noop", "benchmarks.noop_asgi", "READY") as facts,
    ):
        create_topic(stack, TOPIC)
        address, key = address_and_key(stack)
        path = f"/v1/topics/{TOPIC}/messages"
        singles = [frames.http_request(path, key, single_body(number)) for number in range(1000)]

        def single(number: int) -> bytes:
            return singles[number % 1000]

        requests = 100 if tiny else 4_000
        baselines, peaks = [], []
        for _ in range(2 if tiny else ROUNDS + 1):
            baselines.append(closed_loop(address_of(facts), single, requests, CREATED, CONNECTIONS))
            peaks.append(closed_loop(address, single, requests, CREATED, CONNECTIONS))
        # The first round warms up.
        baseline, peak = median(baselines[1:]), median(peaks[1:])
        reached = peak / baseline >= RATIO_MIN
        yield Row("send, HTTP, SYNC_FLUSH", peak, "messages/s", "bare ASGI", baseline, f"≥ {RATIO_MIN} x", reached)
        yield _batches(address, frames.http_request(f"{path}:batch", key, batch_body()), tiny=tiny)
        yield _latency(address, single, peak / 2, tiny=tiny)


def _batches(address: tuple[str, int], batch: bytes, *, tiny: bool) -> Row:
    requests = 10 if tiny else 300
    rates = [
        closed_loop(address, lambda _: batch, requests, OK, BATCH_CONNECTIONS) for _ in range(2 if tiny else ROUNDS + 1)
    ]
    rate = median(rates[1:]) * BATCH
    aim = f"≥ {BATCHED_PER_S_MIN:,}/s"
    return Row("batch of 100, HTTP, SYNC_FLUSH", rate, "messages/s", "", None, aim, rate >= BATCHED_PER_S_MIN)


def _latency(address: tuple[str, int], single: Callable[[int], bytes], rate: float, *, tiny: bool) -> Row:
    def once() -> Result:
        result = uvloop.run(
            http_open_loop(
                address,
                single,
                connections=OPEN_LOOP_CONNECTIONS,
                rate=rate,
                requests=100 if tiny else 5_000,
                success=CREATED,
            )
        )
        assert result.failures == 0, f"{result.failures} sends failed"
        return result

    results = [once() for _ in range(2 if tiny else ROUNDS + 1)][1:]
    p99 = median(result.percentile_ms(99) for result in results)
    p50 = median(result.percentile_ms(50) for result in results)
    name = f"send, HTTP, p99 at {rate:,.0f}/s, open loop"
    return Row(name, p99, "ms", "median", p50, f"≤ {P99_MS_MAX:.0f} ms", p99 <= P99_MS_MAX)
