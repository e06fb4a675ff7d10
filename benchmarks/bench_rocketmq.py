"""Benchmarks Apache RocketMQ's Java broker and Gantry's with the same frames, in the same run.

Apache's broker works on all cores, a broker of Gantry on one. So `gantry up` starts two brokers by default, and a client
pops from both of them. The rate of one broker and the processor time of a pop are shown beside it.
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
POP_ROUNDS = 4
_Address = tuple[str, int]


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    made = [frames.send_frame(TOPIC, number, queues=QUEUES) for number in range(600 if tiny else 80_000)]
    rounds = 1 if tiny else POP_ROUNDS
    for mode in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        with scratch("rocketmq") as folder:
            with broker(folder, mode) as facts:
                address = address_of(facts)
                ours = max(sends(address, made).rate for _ in range(2))
                one, our_us = _pops(address, len(made), child_named("services.broker"), rounds)
                (folder / "second").mkdir()
                with broker(folder / "second", mode) as second:
                    sends(address_of(second), made)
                    both = max(pop_rate([address, address_of(second)], len(made), f"GID_{n}") for n in range(rounds))
            settings = {"flushDiskType": mode, "mappedFileSizeCommitLog": str(256 << 20)}
            with foreign.java_broker(folder, folder / "java", settings, fully_compiled=True) as (_, text):
                host, port = text.split(":")
                for _ in range(1 if tiny else WARM_UP_ROUNDS):
                    uvloop.run(
                        frames_closed_loop((host, int(port)), made.__getitem__, in_flight=IN_FLIGHT, requests=len(made))
                    )
                theirs = max(sends((host, int(port)), made).rate for _ in range(2))
                java = child_named("BrokerStartup")
                their_pops, theirs_us = _pops((host, int(port)), len(made), java, 1 if tiny else 2 * WARM_UP_ROUNDS)
        name, aim = f"pop + ack of 32, remoting, {mode}", "≥ 1.0 x"
        yield Row(f"send, remoting, {mode}", ours, "messages/s", "Java broker", theirs, aim, ours >= theirs)
        yield Row(f"{name}, two brokers", both, "messages/s", "Java broker", their_pops, aim, both >= their_pops)
        yield Row(f"{name}, one broker", one, "messages/s", "Java broker", their_pops)
        yield Row("its processor time for each message", our_us, "µs CPU", "Java broker", theirs_us)


def _pops(address: _Address, count: int, pid: int, rounds: int) -> tuple[float, float]:
    """Return the best rate of pops of several groups, and the least processor time of the broker for a message, in µs."""
    rates, times_us = [], []
    for number in range(rounds):
        began_s = cpu_s(pid)
        rates.append(pop_rate([address], count, f"GID_one_{number}"))
        times_us.append((cpu_s(pid) - began_s) / count * 1e6)
    return max(rates), min(times_us)
