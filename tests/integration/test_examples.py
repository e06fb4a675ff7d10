"""The examples against a real stack, run as the README says."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from examples.flights import Check, read_flights, read_rows, share_out
from tests.support.gatewayprocess import GatewayProcess
from tests.support.stack import Stack

RUN = "0F1E2D3C"


def run(stack: Stack, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"examples.{name}", *arguments, "--data", str(stack.directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_send_and_consume(stack: Stack) -> None:
    sent = run(stack, "send", "hello", "first message", "--tag", "A")
    assert sent.returncode == 0, sent.stderr
    assert sent.stdout.startswith("stored: ")
    consumed = run(stack, "consume", "hello", "--count", "1")
    assert consumed.returncode == 0, consumed.stderr
    assert consumed.stdout.endswith("[A] first message\n")


def test_ask_and_reply(stack: Stack) -> None:
    for _ in range(2):
        asked = run(stack, "ask", "questions", "who is there?")
        assert (asked.returncode, asked.stdout) == (0, "WHO IS THERE?\n"), asked.stderr


@pytest.mark.parametrize("options", [(), ("--orderly",)])
def test_a_listener_gets_a_message_again_that_failed(stack: Stack, options: tuple[str, ...]) -> None:
    topic = f"listened{len(options)}"
    for body in ("first", "fail", "last"):
        assert run(stack, "send", topic, body).returncode == 0
    ended = run(stack, "listen", topic, "--group", topic, "--count", "3", *options)
    assert ended.returncode == 0, ended.stderr
    texts = [line.partition(" ")[2] for line in ended.stdout.splitlines()]
    assert sorted(texts) == ["failed 0: first", "failed 0: last", "failed 1: fail"]


def test_broadcasting_listeners_get_every_message_and_go_on_where_they_ended(stack: Stack, tmp_path: Path) -> None:
    def listen(name: str, count: int) -> list[str]:
        options = ("--group", "broadcast", "--broadcast", str(tmp_path), "--name", name, "--count", str(count))
        ended = run(stack, "listen", "broadcast", *options)
        assert ended.returncode == 0, ended.stderr
        return sorted(line.rpartition(" ")[2] for line in ended.stdout.splitlines())

    for body in ("first", "last"):
        assert run(stack, "send", "broadcast", body).returncode == 0
    assert listen("one", 2) == listen("two", 2) == ["first", "last"]
    assert run(stack, "send", "broadcast", "new").returncode == 0
    assert listen("one", 1) == ["new"]


def test_the_flights_example_runs_twice(stack: Stack) -> None:
    for _ in range(2):
        ended = run(stack, "flights", "--limit", "3000")
        assert ended.returncode == 0, ended.stderr
        assert "all there, all equal, all in order" in ended.stdout


def test_four_workers_pull_the_flights_from_two_gateways(stack: Stack, tmp_path: Path) -> None:
    with GatewayProcess(stack, tmp_path / "gateway-1") as gateway:
        ended = run(stack, "flights", "--limit", "3000", "--pull", "--gateway", gateway.url)
    assert ended.returncode == 0, ended.stderr
    assert "3000 flights pulled over 2 gateways" in " ".join(ended.stdout.split())


@pytest.mark.parametrize("example", ["send T x", "consume T", "listen T", "ask T x", "flights"])
def test_without_a_stack(example: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    name, *arguments = example.split()
    data = str(tmp_path_factory.mktemp("none"))
    command = [sys.executable, "-m", f"examples.{name}", *arguments, "--data", data]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr == f"no stack runs in {data}: start one with `gantry up --data {data}`\n"


def test_the_rows_are_all_there_and_typed() -> None:
    rows = list(read_rows())
    assert len(rows) == 336_776
    assert sum(row["tailnum"] is None for row in rows) == 2_512
    assert rows[0] == {
        "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830,
        "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR",
        "dest": "IAH", "air_time": 227, "distance": 1400, "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip
    assert rows[-1]["dep_time"] is None


def test_flights_become_messages() -> None:
    flights = read_flights(RUN, 100)
    first = flights[0].message
    assert (first.tag, first.keys, first.ordering_key) == ("UA", ["UA1545"], "N14228")
    assert msgspec.json.decode(first.body)["dest"] == "IAH"
    lanes = share_out(flights)
    assert sorted(flight.number for lane in lanes for flight in lane) == list(range(100))
    for lane in lanes:
        assert [flight.number for flight in lane] == sorted(flight.number for flight in lane)


def test_the_check_finds_every_difference() -> None:
    flights = read_flights(RUN, 300)
    tails = [flight.tail for flight in flights]
    later = next(number for number, tail in enumerate(tails) if tail is not None and tail in tails[:number])
    earlier = tails.index(tails[later])
    check = Check(RUN, flights)
    for number in (later, earlier, 5, 5):
        check.take(f"{RUN}{number:024X}", flights[number].body)
    check.take("FFFFFFFF" + "0" * 24, b"of another run")
    check.take(f"{RUN}{10**6:024X}", b"")
    check.take(f"{RUN}{6:024X}", b"changed")
    assert (check.duplicates_count, check.foreign_count, check.is_complete) == (1, 1, False)
    report = "\n".join(check.report())
    for expected in ("296 flights are missing", f"arrived after {later}", "was never sent", "flight 6: sent"):
        assert expected in report
