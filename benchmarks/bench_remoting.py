"""Benchmarks the broker over remoting: sends with both flush modes, and pulls, against an echo of the same frames.

The echo server is the same server class without a broker, so the ratio to it shows the cost of storing. Each figure is
the median of several rounds. The rounds of all servers alternate, so that other load on the machine affects all of
them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import uvloop

from benchmarks import frames
from benchmarks.load import Result, frames_closed_loop
from benchmarks.report import Row
from benchmarks.stack import address_of, process, scratch

IN_FLIGHT = 128
TOPIC = "BenchTopic"
QUEUES = 4
RATIO_ASYNC_MIN, RATIO_SYNC_MIN = 0.55, 0.40
PULLS_PER_S_MIN = 150_000
PULL_MESSAGES = 32
ROUNDS = 7


@contextmanager
def broker(folder: Path, mode: str) -> Iterator[dict[str, str]]:
    """Run a name server and a broker; yield the content of the broker's ready file."""
    namesrv_options = ("--listen", "127.0.0.1:0", "--data", str(folder / f"namesrv-{mode}"), "--metrics-port", "off")
    with process(folder, f"namesrv-{mode}", "services.namesrv", *namesrv_options, "--ready-file", "READY") as namesrv:
        options = (
            "--namesrv", namesrv["address"], "--name", "broker-a", "--cluster", "bench", "--listen", "127.0.0.1:0",
            "--store", str(folder / f"store-{mode}"), "--fast-port", "off", "--metrics-port", "off", "--ready-file", "READY",
        )  # fmt: skip
        environment = {
            "GANTRY_BROKER_FLUSH_DISK_TYPE": mode,
            "GANTRY_BROKER_MAPPED_FILE_SIZE_COMMIT_LOG": str(256 << 20),
            "GANTRY_BROKER_MAX_INDEX_NUM": "2000000",
            "GANTRY_BROKER_MAX_HASH_SLOT_NUM": "500000",
        }
        with process(folder, f"broker-{mode}", "services.broker", *options, environment=environment) as facts:
            yield facts


def sends(address: tuple[str, int], made: list[bytes]) -> Result:
    """Warm up, then send all the frames."""
    warm_up = min(len(made), 5_000)
    uvloop.run(frames_closed_loop(address, made.__getitem__, in_flight=IN_FLIGHT, requests=warm_up))
    result = uvloop.run(frames_closed_loop(address, made.__getitem__, in_flight=IN_FLIGHT, requests=len(made)))
    assert result.failures == 0, f"{result.failures} of {result.requests} sends failed"
    return result


def pulls(address: tuple[str, int], stored: int) -> Result:
    """Read every queue from its start, with pulls of 32 messages."""
    per_queue = stored // QUEUES // PULL_MESSAGES
    made = [
        frames.pull_frame(TOPIC, number, number // QUEUES * PULL_MESSAGES, queue_id=number % QUEUES)
        for number in range(per_queue * QUEUES)
    ]
    uvloop.run(frames_closed_loop(address, made.__getitem__, in_flight=8, requests=len(made)))
    result = uvloop.run(frames_closed_loop(address, made.__getitem__, in_flight=8, requests=len(made)))
    assert result.failures == 0, f"{result.failures} of {result.requests} pulls found nothing"
    return result


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    made = [frames.send_frame(TOPIC, number, queues=QUEUES) for number in range(600 if tiny else 20_000)]
    aims = {"SYNC_FLUSH": RATIO_SYNC_MIN, "ASYNC_FLUSH": RATIO_ASYNC_MIN}
    with ExitStack() as stack:
        folder = stack.enter_context(scratch("remoting"))
        servers = {"echo": stack.enter_context(process(folder, "echo", "benchmarks.echo_server", "READY"))}
        servers |= {mode: stack.enter_context(broker(folder, mode)) for mode in aims}
        addresses = {name: address_of(facts) for name, facts in servers.items()}
        rates: dict[str, list[float]] = {name: [] for name in servers}
        rounds = 1 if tiny else ROUNDS
        for _ in range(rounds):
            for name, address in addresses.items():
                rates[name].append(sends(address, made).rate)
        echo = median(rates["echo"])
        for mode, aim in aims.items():
            rate = median(rates[mode])
            yield Row(
                f"send, remoting, {mode}", rate, "messages/s", "echo", echo, f"≥ {aim} x echo", rate / echo >= aim
            )
        # Each round has stored some more messages while it warmed up.
        result = pulls(addresses["ASYNC_FLUSH"], rounds * len(made))
        rate = result.rate * PULL_MESSAGES
        yield Row(
            "pull of 32, remoting", rate, "messages/s", "", None, f"≥ {PULLS_PER_S_MIN:,}/s", rate >= PULLS_PER_S_MIN
        )
