"""Benchmarks Apache RocketMQ's Java broker and Gantry's with the same frames, in the same run.

Apache's broker works on all cores, one broker of Gantry on one. So the processor time of a pop is compared as well.
"""

from collections.abc import Iterator

import uvloop

from benchmarks import frames
from benchmarks.bench_pop import pop_rate
from benchmarks.bench_remoting import IN_FLIGHT, QUEUES, TOPIC, broker, sends
from benchmarks.load import frames_closed_loop
from benchmarks.report import Row
from benchmarks.stack import address_of, child_named, cpu_s, scratch
from tests.support import foreign

# The JVM compiles the broker while it runs, so the broker needs this many rounds to become fast.
WARM_UP_ROUNDS = 4


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    made = [frames.send_frame(TOPIC, number, queues=QUEUES) for number in range(600 if tiny else 80_000)]
    for mode in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        with scratch("rocketmq") as folder:
            with broker(folder, mode) as facts:
                ours = max(sends(address_of(facts), made).rate for _ in range(2))
                our_pops, our_us = _pops(address_of(facts), len(made), "services.broker", rounds=2)
            settings = {"flushDiskType": mode, "mappedFileSizeCommitLog": str(256 << 20)}
            with foreign.java_broker(folder, folder / "java", settings, fully_compiled=True) as (_, address):
                host, port = address.split(":")
                for _ in range(1 if tiny else WARM_UP_ROUNDS):
                    uvloop.run(
                        frames_closed_loop((host, int(port)), made.__getitem__, in_flight=IN_FLIGHT, requests=len(made))
                    )
                theirs = max(sends((host, int(port)), made).rate for _ in range(2))
                rounds = 1 if tiny else 2 * WARM_UP_ROUNDS
                their_pops, their_us = _pops((host, int(port)), len(made), "BrokerStartup", rounds=rounds)
        yield Row(f"send, remoting, {mode}", ours, "messages/s", "Java broker", theirs, "≥ 1.0 x", ours >= theirs)
        yield Row(
            f"pop + ack of 32, remoting, {mode}", our_pops, "messages/s", "Java broker", their_pops, "≥ 1.0 x",
            our_pops >= their_pops,
        )  # fmt: skip
        yield Row(
            f"processor time of the broker for each, {mode}", our_us, "µs CPU", "Java broker", their_us, "≤ 1.0 x",
            our_us <= their_us,
        )  # fmt: skip


def _pops(address: tuple[str, int], count: int, broker: str, *, rounds: int) -> tuple[float, float]:
    """Return the best rate of pops of several groups, and the least processor time of the broker for a message, in µs.

    `broker` is in the command line of the broker.
    """
    pid, rates, times_us = child_named(broker), [], []
    for number in range(rounds):
        began_s = cpu_s(pid)
        rates.append(pop_rate(address, count, f"GID_{number}"))
        times_us.append((cpu_s(pid) - began_s) / count * 1e6)
    return max(rates), min(times_us)
