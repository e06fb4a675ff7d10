"""Lag histories over HTTP on a real Postgres: the same values that Spark reads, in messages and in seconds."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from services.gateway.db.engine import Database
from services.gateway.usecases.reports import laghistory
from services.gateway.usecases.sampling.blocks import BlockWriter
from spark.laghistory import read_history, read_homes
from spark.postgres import Connection, connect
from tests.integration.test_gateway_reports import client, key
from tests.support.postgres import PostgresServer
from tests.support.sampleblocks import EPOCH, millis, sample_of_one

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
PATH = "/v1/reports/lag_report/history"
PAIR = {"group": "G", "topic": "T"}


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[Connection]:
    with connect(postgres.url, application="gantry-test") as connected:
        # Not TRUNCATE, which waits for the readers of this test.
        connected.execute("DELETE FROM lag_sample_blocks")
        yield connected
        connected.execute("DELETE FROM lag_sample_blocks")


@pytest.fixture
async def http(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    async with client(database) as made:
        yield made


class Looks:
    """Writes samples of a broker as the gateway does, one every 15 s."""

    def __init__(self, connection: Connection, broker: str = "broker-a") -> None:
        self._connection = connection
        self._broker = broker
        self._writer = BlockWriter()

    def put(self, seconds: float, committed: int | None, *, high: int = 100, first_s: float | None = None) -> None:
        """Write a sample: one queue of G on T up to `high`, and another group."""
        at_ms = millis(NOON + timedelta(seconds=seconds))
        first = None if first_s is None else millis(NOON + timedelta(seconds=first_s))
        samples = [
            sample_of_one("F", "T", self._broker, (0, 5, 5, None)),
            sample_of_one("G", "T", self._broker, (0, high, committed, first), (0, 7, 7, None)),
        ]
        plan = self._writer.plan(samples, at_ms=at_ms, now_ms=at_ms)
        if plan is None:
            return
        self._writer.keep(plan, now_ms=at_ms)
        based_at = None if plan.based_at_ms is None else EPOCH + timedelta(milliseconds=plan.based_at_ms)
        moment = EPOCH + timedelta(milliseconds=plan.at_ms)
        row = (moment, self._broker, int(plan.kind), based_at, plan.queues, plan.data)
        self._connection.execute("INSERT INTO lag_sample_blocks VALUES (%s, %s, %s, %s, %s, %s)", row)


async def ask(http: httpx.AsyncClient, seconds: float, *, since_s: float = 0, **more: str) -> dict[str, Any]:
    times = {"from": moment(since_s), "to": moment(seconds)}
    answer = await http.get(PATH, params={**PAIR, **times, **more}, headers=key("metrics"))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def moment(seconds: float) -> str:
    return (NOON + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def test_messages_and_seconds_over_time(http: httpx.AsyncClient, connection: Connection) -> None:
    looks = Looks(connection)
    looks.put(0, 100)
    looks.put(15, 90, first_s=10)
    looks.put(30, None)
    looks.put(45, 95, first_s=40)
    found = await ask(http, 50)
    assert (found["group"], found["topic"], found["step_s"]) == ("G", "T", 15)
    assert (found["from"], found["to"]) == (moment(0), moment(50))
    assert [(item["at"], item["lag_messages"], item["lag_seconds"]) for item in found["items"]] == [
        (moment(0), 0, 0.0), (moment(15), 10, 5.0), (moment(30), None, None), (moment(45), 5, 5.0),
    ]  # fmt: skip
    assert (await ask(http, 50, group="NOBODY"))["items"] == []
    assert (await ask(http, 9_000, since_s=8_000))["items"] == []


async def test_a_point_without_a_broker_has_no_lag_and_names_it(
    http: httpx.AsyncClient, connection: Connection
) -> None:
    one, other = Looks(connection), Looks(connection, "broker-b")
    one.put(0, 90)
    other.put(1, 80)
    one.put(15, 91)
    one.put(30, 92)
    one.put(45, 93)
    other.put(46, 84)
    outage = "INSERT INTO lag_sample_outages VALUES ('broker-b', %s, %s)"
    connection.execute(outage, [NOON + timedelta(seconds=seconds) for seconds in (14, 29)])
    try:
        found = await ask(http, 50)
        points = list(read_history(connection, since=NOON, until=NOON + timedelta(seconds=50), pairs=[("G", "T")]))
    finally:
        connection.execute("DELETE FROM lag_sample_outages")
    items = [(item["lag_messages"], item["missing_brokers"], item["late_brokers"]) for item in found["items"]]
    assert items == [(30, [], []), (None, ["broker-b"], []), (None, ["broker-b"], []), (23, [], [])]
    # The lines of pages are the same.
    assert [point["lag"] for point in points] == [item[0] for item in items]


def test_the_brokers_of_topics_are_those_that_were_seen_to_hold_them(connection: Connection) -> None:
    topic = "INSERT INTO topics (name, config, version, state, origin, observed) VALUES (%s, '{}', 1, %s, 'api', %s)"
    held = '{"broker-a": {"read_queues": 2}, "broker-b": {"read_queues": 3}}'
    names = ["HomesHeld", "HomesNew", "HomesDeleting"]
    for name, state, observed in zip(names, ("applied", "applied", "deleting"), (held, "{}", held), strict=True):
        connection.execute(topic, (name, state, observed))
    try:
        found, wanted = read_homes(connection), read_homes(connection, ["HomesHeld", "HomesDeleting"])
    finally:
        connection.execute("DELETE FROM topics WHERE name = ANY(%s)", (names,))
    assert {name: found[name] for name in names if name in found} == {
        "HomesHeld": {"broker-a", "broker-b"},
        "HomesNew": set(),
    }
    assert wanted == {"HomesHeld": {"broker-a", "broker-b"}}


async def test_a_late_broker_is_named(http: httpx.AsyncClient, connection: Connection) -> None:
    one, other = Looks(connection), Looks(connection, "broker-b")
    one.put(1, 90)
    other.put(12, 80)
    connection.execute("INSERT INTO lag_sample_rounds VALUES (%s, 12500)", [NOON])
    try:
        found = await ask(http, 14)
    finally:
        connection.execute("DELETE FROM lag_sample_rounds")
    assert [(item["lag_messages"], item["late_brokers"]) for item in found["items"]] == [(None, ["broker-b"])]


@pytest.mark.parametrize("hours", [1, 4, 24])
async def test_the_history_equals_the_lines_of_a_page(
    http: httpx.AsyncClient, connection: Connection, hours: int
) -> None:
    for number, broker in enumerate(("broker-a", "broker-b")):
        looks = Looks(connection, broker)
        for at_s in range(0, hours * 3_600, 15 if hours == 1 else 120):
            grown = at_s // 10
            # No sample was taken for ten minutes.
            if not 1_000 < at_s < 1_600:
                looks.put(at_s + number, grown // 2, high=grown, first_s=at_s / 2 if grown // 2 < grown else None)
    end = NOON + timedelta(hours=hours)
    found = await ask(http, hours * 3_600)
    points = list(read_history(connection, since=NOON, until=end, pairs=[("G", "T")]))
    assert len(found["items"]) > 50
    assert [(item["at"], item["lag_messages"], item["lag_seconds"]) for item in found["items"]] == [
        (moment((point["sampled_at"] - NOON).total_seconds()), point["lag"], point["behind_s"]) for point in points
    ]


async def test_a_day_ends_with_the_last_sample(http: httpx.AsyncClient, connection: Connection) -> None:
    looks = Looks(connection)
    end_s = 24 * 3_600 + 100
    # All pairs are written at the beginning and every four minutes from then on.
    looks.put(100, 100)
    for before_s in (600, 360, 120, 20):
        looks.put(end_s - before_s, 100 - before_s // 20, first_s=0.0)
    found = await ask(http, end_s, since_s=100)
    assert found["step_s"] == 300
    last = found["items"][-1]
    assert (last["at"], last["lag_messages"], last["lag_seconds"]) == (moment(end_s - 20), 1, end_s - 20.0)
    end = NOON + timedelta(seconds=end_s)
    *_, point = read_history(connection, since=NOON, until=end, pairs=[("G", "T")])
    assert (point["sampled_at"], point["lag"]) == (end - timedelta(seconds=20), 1)


async def test_points_are_further_apart_if_there_is_much_to_read(
    http: httpx.AsyncClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(connection)
    for at_s in range(0, 3_600, 60):
        looks.put(at_s, at_s, high=5_000, first_s=0.0)
    monkeypatch.setattr(laghistory, "BYTES_MAX", 400)
    found = await ask(http, 3_600)
    assert found["step_s"] >= 600
    assert 1 <= len(found["items"]) <= 7


async def test_a_damaged_block_affects_its_own_time_only(http: httpx.AsyncClient, connection: Connection) -> None:
    looks = Looks(connection)
    for at_s in (0, 15, 30):
        looks.put(at_s, 100 - at_s, first_s=0.0)
    connection.execute("UPDATE lag_sample_blocks SET data = 'x' WHERE sampled_at = %s", (NOON + timedelta(seconds=15),))
    assert [item["lag_messages"] for item in (await ask(http, 40))["items"]] == [0, 0, 30]
    connection.execute("UPDATE lag_sample_blocks SET data = 'x' WHERE based_at IS NULL")
    assert (await ask(http, 40))["items"] == []


async def test_history_checks_rights_and_parameters(http: httpx.AsyncClient) -> None:
    assert (await http.get(PATH, params=PAIR, headers=key("none"))).status_code == 403
    for bad in (
        {"group": "G"}, {"topic": "T"}, {**PAIR, "from": moment(5), "to": moment(5)}, {**PAIR, "from": "yesterday"},
        {**PAIR, "from": moment(0), "to": moment(13 * 86_400)}, {**PAIR, "group": "a/b"}, {**PAIR, "unit": "hour"},
    ):  # fmt: skip
        assert (await http.get(PATH, params=bad)).status_code == 400, bad
    assert (await http.get(PATH, params=PAIR)).json()["items"] == []


async def test_without_a_database_it_is_503() -> None:
    async with client(None) as http:
        assert (await http.get(PATH, params=PAIR)).status_code == 503
