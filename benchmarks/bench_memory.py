"""Benchmarks anonymous memory: of an idle broker and gateway, and its growth while they store millions of messages.

Mapped files do not count: they are page cache, which the machine can take back. It can't take back anonymous memory.
"""

import json
from collections.abc import Iterator

import uvloop

from benchmarks import frames
from benchmarks.bench_http import BATCH, OK, address_and_key, create_topic
from benchmarks.load import http_closed_loop
from benchmarks.report import Row
from benchmarks.stack import anonymous_mib
from tests.support.stack import Stack

BROKER_MIB_MAX, GATEWAY_MIB_MAX = 120.0, 150.0
GROWTH_MIB_MAX = 10.0
MESSAGES = 2_000_000
# The bodies are small, because a leak would grow with the number of messages and not with their size.
BODY = "x" * 100


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    limits = {"broker-a": BROKER_MIB_MAX, "gateway-0": GATEWAY_MIB_MAX}
    with Stack(brokers=1) as stack:
        pids = {name: stack.pid_of(name) for name in limits}
        for name, limit in limits.items():
            idle = anonymous_mib(pids[name])
            yield Row(f"{name}, idle", idle, "MiB", "", None, f"≤ {limit:.0f} MiB", idle <= limit)
        create_topic(stack, "MemoryTopic")
        address, key = address_and_key(stack)
        body = json.dumps({"messages": [{"body": BODY, "keys": ["key"]} for _ in range(BATCH)]}).encode()
        request = frames.http_request("/v1/topics/MemoryTopic/messages:batch", key, body)
        before: dict[str, float] = {}
        # The first part fills buffers and caches and loads code. This happens only once.
        for share in (0.1, 0.9):
            before = {name: anonymous_mib(pids[name]) for name in limits}
            requests = int((2_000 if tiny else MESSAGES) * share) // BATCH
            result = uvloop.run(
                http_closed_loop(address, lambda _: request, connections=8, requests=requests, success=OK)
            )
            assert result.failures == 0
        for name in limits:
            growth = anonymous_mib(pids[name]) - before[name]
            aim = f"≤ {GROWTH_MIB_MAX:.0f} MiB"
            reached = growth <= GROWTH_MIB_MAX
            yield Row(f"{name}, growth over {MESSAGES:,} messages", growth, "MiB", "", None, aim, reached)
