"""All brokers restart under load: no answer says that an existing name is unknown, or that a retry is pointless."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.stack import Stack

BROKERS = ("broker-a", "broker-b")
TOPIC = "/v1/topics/AWAY"
SENDERS = 8


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack(brokers=len(BROKERS)) as running:
        yield running


class RecordedAnswers:
    """The answers to sends and reads while brokers were away."""

    def __init__(self) -> None:
        self.stopping = False
        self.sends: Counter[tuple[int, str, bool]] = Counter()
        self.reads: Counter[tuple[str, int]] = Counter()

    async def send(self, http: httpx.AsyncClient, number: int) -> None:
        while not self.stopping:
            answer = await http.post(f"{TOPIC}/messages", json={"body": "m", "ordering_key": f"k{number}"})
            content = answer.json()
            self.sends[answer.status_code, content["outcome"], content.get("retryable", True)] += 1
            await asyncio.sleep(0.02)

    async def read(self, http: httpx.AsyncClient, path: str) -> None:
        while not self.stopping:
            answer = await http.get(path)
            self.reads[path, answer.status_code] += 1
            await asyncio.sleep(0.1)


@pytest.mark.timeout(180)
async def test_existing_names_are_not_unknown_while_all_brokers_restart(stack: Stack) -> None:
    """866 ordered sends within 21 s were answered 404, as not retryable."""
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    recorded = RecordedAnswers()
    async with httpx.AsyncClient(base_url=stack.facts["http"], headers=headers, timeout=30, trust_env=False) as http:
        (await http.put(TOPIC, json={})).raise_for_status()
        (await http.put("/v1/groups/AWAY", json={})).raise_for_status()
        paths = await everything_that_is_there(http)
        tasks = [asyncio.ensure_future(recorded.send(http, number)) for number in range(SENDERS)]
        tasks += [asyncio.ensure_future(recorded.read(http, path)) for path in paths]
        for _ in range(2):
            await restart_all(stack)
            await until_all_are_back(http)
        recorded.stopping = True
        await asyncio.gather(*tasks)
    print(dict(recorded.sends), dict(recorded.reads))
    assert {status for status, _, _ in recorded.sends} <= {201, 202, 503, 504}, recorded.sends
    assert all(retryable for _, _, retryable in recorded.sends), recorded.sends
    assert recorded.sends[503, "not_stored", True] > 0, "the brokers were never away"
    assert {status for _, status in recorded.reads} <= {200, 503, 504}, recorded.reads


async def everything_that_is_there(http: httpx.AsyncClient) -> list[str]:
    sent: dict[str, Any] = (await http.post(f"{TOPIC}/messages", json={"body": "m", "keys": ["k"]})).json()
    queue = f"{TOPIC}/queues/{sent['broker']}/{sent['queue_id']}"
    return [
        TOPIC,
        "/v1/groups/AWAY",
        f"{TOPIC}/queues",
        f"{queue}/messages?offset=0",
        f"{queue}/offsets?at=2020-01-01T00:00:00Z",
        f"{TOPIC}/messages?key=k",
        f"/v1/messages/{sent['stored_id']}",
        f"/v1/messages/{sent['message_id']}?topic=AWAY",
        "/v1/groups/AWAY/offsets?topic=AWAY",
        "/v1/groups/AWAY/clients",
    ]


async def restart_all(stack: Stack) -> None:
    killed = {name: stack.pid_of(name) for name in BROKERS}
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)

    def all_are_replaced() -> bool:
        pids = {process["name"]: process["pid"] for process in stack.facts["processes"]}
        return all(pids.get(name, pid) != pid for name, pid in killed.items())

    await asyncio.to_thread(stack.wait_for, all_are_replaced, "to start the brokers again")


async def until_all_are_back(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            answer = await http.get(f"{TOPIC}/queues")
            if answer.status_code == 200:
                items = answer.json()["items"]
                if {item["broker"] for item in items if item["max_offset"] is not None} == set(BROKERS):
                    return
            await asyncio.sleep(0.1)
