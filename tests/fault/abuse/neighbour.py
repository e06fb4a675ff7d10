"""A neighbour: another key of the same gateway, which sends 50 messages a second and should notice nothing."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import httpx

RATE: Final = 50
TOPIC: Final = "NEIGHBOUR"
_WORKERS: Final = 50
_TIMEOUT_S: Final = 30.0


@dataclass
class Notes:
    """The neighbour's measurements during one attack.

    Attributes:
        latencies_s: Latency of each send in seconds, from the moment when it was due.
        failures: Number of answers other than 201, by status or error.
        not_alive: Number of failed probes.
    """

    latencies_s: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    not_alive: int = 0

    def percentile_ms(self, percent: float) -> float:
        """Return a latency percentile in ms."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1_000


async def send_for(seconds: float, url: str, key: str) -> Notes:
    """Send at fixed moments for `seconds`, without waiting for answers, and call the probes once a second."""
    notes = Notes()
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=_WORKERS)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=_TIMEOUT_S, trust_env=False
    ) as http:
        begin = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(int(seconds * RATE)):
                due = begin + number / RATE
                await asyncio.sleep(due - time.monotonic())
                group.create_task(_send(http, due, notes))
                if number % RATE == 0:
                    group.create_task(_probe(http, notes))
    return notes


async def _send(http: httpx.AsyncClient, due: float, notes: Notes) -> None:
    try:
        answer = await http.post(f"/v1/topics/{TOPIC}/messages", json={"body": "hello", "ordering_key": "n"})
        outcome = str(answer.status_code)
    except httpx.HTTPError as error:
        outcome = type(error).__name__
    notes.latencies_s.append(time.monotonic() - due)
    if outcome != "201":
        notes.failures[outcome] += 1


async def _probe(http: httpx.AsyncClient, notes: Notes) -> None:
    try:
        answers = [await http.get(path) for path in ("/livez", "/readyz")]
    except httpx.HTTPError:
        notes.not_alive += 1
    else:
        notes.not_alive += any(answer.status_code != 200 for answer in answers)
