"""The client's pure rules against the reference's vectors."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gantry.client.faultlatency import LADDER, fault_duration_ms
from gantry.client.queueselector import hash_index
from gantry.model.allocate import allocate_averagely
from gantry.model.message import MessageQueue

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "vectors.json").read_text())

# RocketMQ 4.9's delays; ours are those of 5.3.
LADDER_4_9 = ((50, 0), (100, 0), (550, 30_000), (1_000, 60_000), (2_000, 120_000), (3_000, 180_000), (15_000, 600_000))


@pytest.mark.parametrize("case", VECTORS["allocate"]["AVG"], ids=lambda case: f"{case['mq']}q{len(case['cids'])}c")
def test_average_allocation(case: dict[str, Any]):
    queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(case["mq"])]
    for client_id in case["cids"]:
        share = allocate_averagely(client_id, queues, case["cids"])
        assert [f"{queue.broker_name}:{queue.queue_id}" for queue in share] == case["result"][client_id]


@pytest.mark.parametrize(("release", "ladder"), [("5.x", LADDER), ("4.9", LADDER_4_9)])
def test_fault_durations(release: str, ladder: Sequence[tuple[int, int]]):
    for latency_ms, duration_ms in VECTORS["fault_duration"][release]:
        assert fault_duration_ms(latency_ms, ladder=ladder) == duration_ms


@pytest.mark.parametrize("case", VECTORS["java_string_hash"], ids=lambda case: case["s"])
def test_a_key_s_queue_follows_java_s_hash(case: dict[str, Any]):
    for count in (1, 3, 7, 16):
        assert hash_index(case["s"], count) == abs(case["hash"]) % count
