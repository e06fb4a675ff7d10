"""Benchmarks Apache RocketMQ's Java broker and Gantry's with the same frames, in the same run."""

from collections.abc import Iterator

import uvloop

from benchmarks import frames
from benchmarks.bench_pop import pop_rate
from benchmarks.bench_remoting import IN_FLIGHT, QUEUES, TOPIC, broker, sends
from benchmarks.load import frames_closed_loop
from benchmarks.report import Row
from benchmarks.stack import address_of, scratch
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
                our_pops = max(pop_rate(address_of(facts), len(made), f"GID_{number}") for number in range(2))
            settings = {"flushDiskType": mode, "mappedFileSizeCommitLog": str(256 << 20)}
            with foreign.java_broker(folder, folder / "java", settings, fully_compiled=True) as (_, address):
                host, port = address.split(":")
                for _ in range(1 if tiny else WARM_UP_ROUNDS):
                    uvloop.run(
                        frames_closed_loop((host, int(port)), made.__getitem__, in_flight=IN_FLIGHT, requests=len(made))
                    )
                theirs = max(sends((host, int(port)), made).rate for _ in range(2))
                groups = range(1 if tiny else WARM_UP_ROUNDS)
                their_pops = max(pop_rate((host, int(port)), len(made), f"GID_{number}") for number in groups)
        yield Row(f"send, remoting, {mode}", ours, "messages/s", "Java broker", theirs, "≥ 1.0 x", ours >= theirs)
        yield Row(
            f"pop + ack of 32, remoting, {mode}", our_pops, "messages/s", "Java broker", their_pops, "≥ 1.0 x",
            our_pops >= their_pops,
        )  # fmt: skip
