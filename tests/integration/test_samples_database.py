"""Samples on a real Postgres: written once, found by their time, thinned as they age, and finally deleted."""

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.exc import IntegrityError

from gantry.model.route import BrokerData
from gantry.model.sampleblock import Kind
from gantry.remoting.bodies.resets import MadeReset, MovedQueue
from gantry.runtime.clock import SystemClock
from gantry.runtime.workers import InlineWorker
from services.gateway.db.engine import Database
from services.gateway.db.models import Topic
from services.gateway.db.reporttables import LAG_OFFSET_RESETS, LAG_SAMPLE_BLOCKS, LAG_SAMPLE_ROUNDS
from services.gateway.db.sampleevents import SampleEventRepository
from services.gateway.db.samples import SampleRepository, StoredBlock
from services.gateway.errors import METADATA_UNAVAILABLE, ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.sampling.blocks import BlockWriter
from services.gateway.usecases.sampling.lagseries import LagSeries
from services.gateway.usecases.sampling.retention import SampleRetention
from services.gateway.usecases.sampling.rounds import Sample
from services.gateway.usecases.sampling.sampler import Sampler, moment_of, stored_block
from spark.lagsamples import read_samples
from spark.postgres import connect
from tests.support.postgres import PostgresServer
from tests.support.sampleblocks import millis, sample_of_one, stored_blocks
from tests.support.virtualtime import FakeClock

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
ROUND = timedelta(seconds=15)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.fixture
async def pooled(own_postgres: PostgresServer) -> AsyncIterator[Database]:
    database = Database.open(own_postgres.url, clock=SystemClock())
    yield database
    await database.close()


class Cluster:
    """A sampler of invented brokers: one group moves by one message in each round, all others stand still."""

    def __init__(self, database: Database, *brokers: str, moves: int = 1) -> None:
        self.database = database
        self.moves = moves
        self.writers = {broker: BlockWriter() for broker in brokers}

    def samples(self, broker: str, turn: int) -> list[Sample]:
        at = millis(NOON) - 5_000
        busy = sample_of_one("BUSY", "T", broker, (0, turn * self.moves + 9, turn * self.moves, at))
        return [busy, sample_of_one("QUIET", "T", broker, (0, 9, 4, at), (0, 0, None, None))]

    async def rounds(self, turns: range, *, start: datetime = NOON, away: tuple[str, ...] = ()) -> None:
        for turn in turns:
            at = start + turn * ROUND
            async with self.database.transaction() as session:
                samples = SampleRepository(session)
                for broker, writer in self.writers.items():
                    if broker in away:
                        continue
                    plan = writer.plan(self.samples(broker, turn), at_ms=millis(at), now_ms=millis(at))
                    if plan is not None:
                        await samples.add(stored_block(broker, plan))
                        writer.keep(plan, now_ms=millis(at))
                await samples.end_round(at, took_ms=5, missing=away)


def retention_of(database: Database, now: datetime, **settings: Any) -> SampleRetention:
    return SampleRetention(
        Metadata(database),
        GatewayMetrics(),
        worker=InlineWorker(),
        clock=FakeClock(millis(now)),
        **{"raw_hours": 24, "keep_days": 90, **settings},
    )


async def tidied(database: Database, now: datetime, **settings: Any) -> int:
    """Run all pending pieces; return their number."""
    tidy = retention_of(database, now, **settings)
    pieces = 0
    while await tidy.piece():
        pieces += 1
        assert pieces < 10_000
    return pieces


async def kinds(database: Database) -> dict[Kind, int]:
    query = select(LAG_SAMPLE_BLOCKS.c.kind, func.count()).group_by(LAG_SAMPLE_BLOCKS.c.kind)
    async with database.transaction() as session:
        return {Kind(row[0]): row[1] for row in (await session.execute(query)).all()}


def states(url: str, until: datetime, *, group: str, broker: str = "broker-a") -> list[int]:
    """Return the samples of a group's first queue in the five minutes before a time, in the order of time."""
    with connect(url, application="gantry-test") as connection:
        table = read_samples(connection, since=until, until=until, groups=[group])
    rows = sorted(table.to_pylist(), key=lambda row: row["sampled_at"])
    return [row["committed_offset"] for row in rows if row["broker"] == broker and row["queue_id"] == 0]


async def test_a_block_is_written_once(database: Database) -> None:
    block = StoredBlock(NOON, "broker-a", Kind.FULL, None, 3, b"x")
    async with database.transaction() as session:
        samples = SampleRepository(session)
        await samples.add(block)
        await samples.add(block._replace(broker="broker-b"))
        assert await samples.stretch("broker-a", NOON, NOON + MINUTE) == [block._replace(data=b"")]
        await samples.end_round(NOON, took_ms=12, missing=["broker-b"])
        await samples.end_round(NOON, took_ms=13, missing=[])
        assert (await session.execute(select(LAG_SAMPLE_ROUNDS))).all() == [(NOON, 12, ["broker-b"])]
        # Two samplers at once, and the same millisecond: a base is exactly one of their blocks.
    with pytest.raises(IntegrityError):
        async with database.transaction() as session:
            await SampleRepository(session).add(block)


async def test_a_window_is_read_by_index(pooled: Database, own_postgres: PostgresServer) -> None:
    rows = [
        {
            "sampled_at": NOON + turn * ROUND,
            "broker": f"broker-{broker}",
            "kind": 2 * (turn % 16 == 0),
            "queues": 1,
            "data": b"x" * 900,
        }
        for turn in range(4_000)
        for broker in range(2)
    ]
    async with pooled.transaction() as session:
        await session.execute(insert(LAG_SAMPLE_BLOCKS), rows)
    with connect(own_postgres.url, application="gantry-test") as connection:
        connection.execute("ANALYZE lag_sample_blocks")
        window = f"sampled_at BETWEEN '{NOON + HOUR}' AND '{NOON + HOUR + 10 * MINUTE}'"
        for query in (
            f"SELECT data FROM lag_sample_blocks WHERE {window} AND kind >= 0 ORDER BY broker, sampled_at",
            f"SELECT data FROM lag_sample_blocks WHERE {window} AND kind >= 2 ORDER BY broker, sampled_at",
            f"SELECT sum(queues) FROM lag_sample_blocks WHERE {window}",
            f"SELECT data FROM lag_sample_blocks WHERE sampled_at = '{NOON}' AND broker = 'broker-1'",
            f"SELECT 1 FROM lag_sample_blocks WHERE kind = 0 AND sampled_at < '{NOON + MINUTE}' ORDER BY sampled_at",
        ):
            plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {query}"))  # type: ignore[arg-type]
            assert "Seq Scan" not in plan, plan
            assert "Index Cond" in plan, plan


async def test_after_a_day_one_sample_a_minute_stays(pooled: Database, own_postgres: PostgresServer) -> None:
    cluster = Cluster(pooled, "broker-a", "broker-b")
    await cluster.rounds(range(480))
    end = NOON + 480 * ROUND
    before = await kinds(pooled)
    assert before[Kind.CHANGES] == 2 * (480 - 2 - 28), "two full ones, and one of all pairs every four minutes"
    read = [states(own_postgres.url, NOON + at, group="BUSY") for at in (50 * MINUTE, 110 * MINUTE)]
    # No block is old enough: an hour of samples is thinned after one more hour.
    assert await tidied(pooled, NOON + DAY) == 0
    assert await kinds(pooled) == before
    await tidied(pooled, end + DAY)
    after = await kinds(pooled)
    assert Kind.CHANGES not in after
    # A minute with a block of all pairs at its end has no other block.
    assert after[Kind.MINUTE] == pytest.approx(2 * 120, abs=4)
    assert {kind: after[kind] for kind in (Kind.STATE, Kind.FULL)} == {
        kind: before[kind] for kind in (Kind.STATE, Kind.FULL)
    }
    for at, raw in zip((50 * MINUTE, 110 * MINUTE), read, strict=True):
        thin = states(own_postgres.url, NOON + at, group="BUSY")
        assert thin == sorted(set(thin) & set(raw)), "what is left is what was seen, in the same order"
        assert 5 <= len(thin) < len(raw) / 2
        # Each minute keeps its last block: at its end both have the same values.
        assert states(own_postgres.url, NOON + at - ROUND, group="BUSY")[-1] == raw[-2]
    assert states(own_postgres.url, end - ROUND, group="QUIET")[-1] == 4


async def test_a_merged_block_does_not_say_between_which_samples_nothing_moved(
    pooled: Database, own_postgres: PostgresServer
) -> None:
    await Cluster(pooled, "broker-a").rounds(range(240))

    def looked() -> set[datetime | None]:
        with connect(own_postgres.url, application="gantry-test") as connection:
            table = read_samples(connection, since=NOON + 10 * MINUTE, until=NOON + 20 * MINUTE)
        return set(table.column("looked_at").to_pylist())

    assert len(looked() - {None}) > 40
    tidy = retention_of(pooled, NOON + DAY + 2 * HOUR)
    # The merge may stop anywhere, because rounds take precedence.
    for _ in range(5):
        assert await tidy.piece()
        assert looked() == {None}


async def test_a_failing_piece_leaves_samples_intact(
    pooled: Database, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Cluster(pooled, "broker-a").rounds(range(20))
    before = states(own_postgres.url, NOON + 5 * MINUTE, group="BUSY")

    async def fails(*_: object) -> None:
        raise RuntimeError("no")

    tidy = retention_of(pooled, NOON + DAY + HOUR)
    await tidy.piece()  # The rounds.
    with monkeypatch.context() as broken:
        broken.setattr(SampleRepository, "add", fails)
        with pytest.raises(RuntimeError):
            await tidy.piece()
    assert states(own_postgres.url, NOON + 5 * MINUTE, group="BUSY") == before
    assert await tidy.piece()
    assert len(states(own_postgres.url, NOON + 5 * MINUTE, group="BUSY")) == len(before) - 2


async def test_a_damaged_block_is_left_out_and_delays_nothing(pooled: Database, own_postgres: PostgresServer) -> None:
    await Cluster(pooled, "broker-a").rounds(range(12))
    with psycopg.connect(own_postgres.url) as connection:
        for turn in (1, 8, 9, 10, 11):
            connection.execute(
                "UPDATE lag_sample_blocks SET data = '\\x0102' WHERE sampled_at = %s", (NOON + turn * ROUND,)
            )
    assert states(own_postgres.url, NOON + HOUR - 50 * MINUTE, group="BUSY") == []
    assert states(own_postgres.url, NOON + 3 * MINUTE, group="BUSY") == [0, 2, 3, 4, 5, 6, 7]
    await tidied(pooled, NOON + DAY + HOUR)
    assert states(own_postgres.url, NOON + 3 * MINUTE, group="BUSY") == [0, 3, 7]


async def test_samples_are_thinned_as_they_age(pooled: Database, own_postgres: PostgresServer) -> None:
    cluster = Cluster(pooled, "broker-a", "broker-b")
    await cluster.rounds(range(720))
    end = NOON + 3 * HOUR
    await tidied(pooled, end + 7 * DAY + HOUR)
    week = await kinds(pooled)
    assert set(week) == {Kind.QUARTER, Kind.FULL}
    assert week[Kind.FULL] == 2 * 3
    # A quarter of an hour with nothing but a full block has no other kind.
    assert week[Kind.QUARTER] == 2 * 12
    assert states(own_postgres.url, end - HOUR, group="BUSY") == [464, 480]
    # Bases stay until no block is based on them.
    await tidied(pooled, end + 30 * DAY + HOUR)
    assert await kinds(pooled) == {Kind.FULL: 2 * 1, Kind.HOUR: 2 * 2}
    # Gateways that start often write more of them.
    cluster.writers = {broker: BlockWriter() for broker in cluster.writers}
    await cluster.rounds(range(725, 726))
    await tidied(pooled, end + 31 * DAY)
    assert await kinds(pooled) == {Kind.HOUR: 2 * 4}
    assert states(own_postgres.url, NOON + HOUR, group="BUSY") == [240]
    await tidied(pooled, end + 90 * DAY + HOUR)
    assert await kinds(pooled) == {Kind.HOUR: 2 * 2}
    await tidied(pooled, end + 90 * DAY + 4 * HOUR)
    assert await kinds(pooled) == {}
    async with pooled.transaction() as session:
        assert await session.scalar(select(func.count()).select_from(LAG_SAMPLE_ROUNDS)) == 0


async def test_samples_kept_for_a_day_are_deleted_after_it(pooled: Database, own_postgres: PostgresServer) -> None:
    await Cluster(pooled, "broker-a").rounds(range(240))
    await tidied(pooled, NOON + 30 * MINUTE + DAY, keep_days=1)
    assert len(states(own_postgres.url, NOON + HOUR, group="BUSY")) > 10
    assert states(own_postgres.url, NOON + 29 * MINUTE, group="BUSY") == []
    await tidied(pooled, NOON + 4 * HOUR + DAY, keep_days=1)
    assert await kinds(pooled) == {}


async def test_pieces_are_short_and_run_when_they_are_due(pooled: Database) -> None:
    await Cluster(pooled, "broker-a").rounds(range(240))
    tidy = retention_of(pooled, NOON + DAY + 2 * HOUR)
    clock = FakeClock(millis(NOON + DAY + 2 * HOUR))
    tidy = SampleRetention(
        Metadata(pooled), GatewayMetrics(), worker=InlineWorker(), clock=clock, raw_hours=24, keep_days=90
    )
    await tidy.round()
    done = await kinds(pooled)
    assert Kind.CHANGES not in done
    await Cluster(pooled, "broker-c").rounds(range(8))
    await tidy.round()
    assert (await kinds(pooled))[Kind.CHANGES] == 7
    clock.advance(60_000)
    await tidy.round()
    assert Kind.CHANGES not in await kinds(pooled)


async def test_a_new_sampler_starts_over_and_readers_see_no_difference(
    pooled: Database, own_postgres: PostgresServer
) -> None:
    first, second = Cluster(pooled, "broker-a"), Cluster(pooled, "broker-a")
    await first.rounds(range(8))
    await second.rounds(range(8, 12))
    # The first sampler did not know yet that it was no longer the leader.
    await first.rounds(range(12, 13), start=NOON + timedelta(seconds=1))
    await second.rounds(range(12, 20))
    expected = [*range(13), *range(12, 20)]
    assert states(own_postgres.url, NOON + 19 * ROUND, group="BUSY") == expected
    assert states(own_postgres.url, NOON + 19 * ROUND, group="QUIET") == [4, 4]
    await tidied(pooled, NOON + DAY + HOUR)
    assert states(own_postgres.url, NOON + 19 * ROUND, group="BUSY") == [0, 3, 7, 8, 11, 12, 15, 19]


async def test_an_unreachable_broker_has_no_samples_and_is_complete_when_it_is_back(
    pooled: Database, own_postgres: PostgresServer
) -> None:
    cluster = Cluster(pooled, "broker-a", "broker-b")
    await cluster.rounds(range(4))
    await cluster.rounds(range(4, 40), away=("broker-b",))
    await cluster.rounds(range(40, 42))
    until = NOON + 41 * ROUND
    assert states(own_postgres.url, until, group="QUIET", broker="broker-b") == [4]
    assert states(own_postgres.url, until, group="BUSY", broker="broker-b") == [40, 41]
    assert len(states(own_postgres.url, until, group="BUSY", broker="broker-a")) == 21
    with connect(own_postgres.url, application="gantry-test") as connection:
        table = read_samples(connection, since=until - MINUTE, until=until, groups=["BUSY"]).to_pylist()
    looked = {row["committed_offset"]: row["looked_at"] for row in table if row["broker"] == "broker-b"}
    assert looked == {40: None, 41: NOON + 40 * ROUND}


async def test_pairs_without_change_have_a_sample_before_each_window(
    pooled: Database, own_postgres: PostgresServer
) -> None:
    await Cluster(pooled, "broker-a", moves=0).rounds(range(300))
    assert set(await kinds(pooled)) == {Kind.FULL, Kind.STATE}
    with connect(own_postgres.url, application="gantry-test") as connection:
        for minutes in range(5, 75):
            at = NOON + timedelta(minutes=minutes)
            table = read_samples(connection, since=at, until=at)
            assert {row["group"] for row in table.to_pylist()} == {"BUSY", "QUIET"}, minutes


async def test_days_of_older_gateways_are_dropped_but_not_from_under_a_reader(pooled: Database) -> None:
    days = [date(2026, 8, 1) + timedelta(days=n) for n in range(3)]
    async with pooled.transaction() as session:
        for day in days:
            await session.execute(
                text(
                    f"CREATE TABLE lag_samples_{day:%Y%m%d} PARTITION OF lag_samples"
                    f" FOR VALUES FROM ('{day}T00:00Z') TO ('{day + DAY}T00:00Z')"
                )
            )
    async with pooled.transaction() as reader, pooled.transaction() as session:
        await reader.execute(text("SELECT count(*) FROM lag_samples_20260801"))
        assert await SampleRepository(session).drop_before(days[2]) == (1, 1)
    async with pooled.transaction() as session:
        samples = SampleRepository(session)
        assert await samples.drop_before(days[2]) == (1, 0)
        assert await samples.partitions() == days[2:]


def test_times_are_whole_milliseconds() -> None:
    assert millis(moment_of(1_700_000_000_123)) == 1_700_000_000_123


class StubSurvey:
    """Returns samples that a test gives it, of two brokers that do not exist."""

    def __init__(self, database: Database) -> None:
        self.clock = FakeClock(millis(NOON))
        self.ends = dict.fromkeys(("broker-a", "broker-b"), 10**6)
        self.turn = 0
        self.read_at_ms: dict[str, int] = {}
        self.resets: dict[str, list[MadeReset]] = {}
        self.reset_epochs: dict[str, int] = {}
        self.missing: list[str] = []
        self.thorough: list[set[str]] = []
        self.metrics = GatewayMetrics()
        self.sampler = Sampler(
            *(self, self, Metadata(database), self.metrics),  # type: ignore[arg-type]
            retention=retention_of(database, NOON),
            worker=InlineWorker(),
            series=LagSeries(series_max=9),
            clock=self.clock,
            interval_ms=15_000,
        )

    async def sets(self) -> dict[str, BrokerData]:
        return {broker: BrokerData("One", broker, {0: ""}) for broker in self.ends}

    async def survey(self, sets: Any, subscribed: Any, *, thorough: set[str]) -> tuple[list[Sample], list[str]]:
        self.thorough.append(thorough)
        self.read_at_ms = dict.fromkeys(sets, self.clock.now_ms())
        there = {broker: end for broker, end in self.ends.items() if broker not in self.missing}
        samples = [sample_of_one("BUSY", "T", broker, (0, end, self.turn, None)) for broker, end in there.items()]
        return samples, self.missing

    async def round(self) -> None:
        self.turn += 1
        self.clock.advance(15_000)
        await self.sampler.round()


async def test_resets_are_written_with_the_survey_that_shows_them(pooled: Database) -> None:
    rounds = StubSurvey(pooled)
    queues = [MovedQueue(queue_id=0, from_offset=9, offset=None)]
    made = [MadeReset(epoch=epoch, topic="T", group="BUSY", queues=queues) for epoch in (50, 60)]
    empty = MadeReset(epoch=55, topic="T", group="BUSY", queues=[])
    await rounds.round()
    rounds.resets, rounds.reset_epochs = {"broker-a": [*made, empty]}, {"broker-a": 50, "broker-b": 0}
    await rounds.round()
    seen_at = moment_of(rounds.clock.now_ms())
    async with pooled.transaction() as session:
        rows = (await session.execute(select(LAG_OFFSET_RESETS).order_by(LAG_OFFSET_RESETS.c.epoch))).all()
        events = SampleEventRepository(session)
        assert await events.settled_epochs(since=seen_at) == {"broker-a": 50}
        assert await events.settled_epochs(since=seen_at + timedelta(seconds=1)) == {}
    assert [(row.seen_at, row.broker, row.epoch, row.is_settled) for row in rows] == [
        (seen_at, "broker-a", 50, True),
        (seen_at, "broker-a", 60, False),
    ]
    assert [(row.queue_ids, row.from_offsets, row.to_offsets) for row in rows] == [([0], [9], [None])] * 2
    async with pooled.transaction() as session:
        events = SampleEventRepository(session)
        assert await events.delete(before=seen_at, limit=9) == 0
        assert await events.delete(before=seen_at + timedelta(seconds=1), limit=1) == 1
        assert await events.delete(before=seen_at + timedelta(seconds=1), limit=9) == 1


async def test_rounds_without_a_broker_are_one_outage(pooled: Database) -> None:
    rounds, times = StubSurvey(pooled), []
    # A gateway that begins to sample does not know whether an outage goes on.
    for missing in ([], ["broker-b"], ["broker-b"], [], ["broker-b"]):
        rounds.missing = missing
        await rounds.round()
        times.append(moment_of(rounds.clock.now_ms()))
    async with pooled.transaction() as session:
        events = SampleEventRepository(session)
        found = await events.outages(times[0], times[-1])
        assert found == [("broker-b", times[1], times[2]), ("broker-b", times[4], times[4])]
        assert await events.outages(times[3], times[3]) == []
        assert await events.delete(before=times[3], limit=9) == 1


async def test_a_broker_with_topics_that_is_not_registered_is_missing(pooled: Database) -> None:
    rounds = StubSurvey(pooled)
    async with pooled.transaction() as session:
        session.add(Topic(name="AWAY", config={}, version=1, state="applied", origin="api", observed={"broker-c": {}}))
    await rounds.round()
    async with pooled.transaction() as session:
        (missing,) = (await session.scalars(select(LAG_SAMPLE_ROUNDS.c.missing))).all()
        await session.execute(delete(Topic))
    assert missing == ["broker-c"]


async def test_a_lag_is_unknown_if_a_broker_of_the_topic_was_never_heard(pooled: Database) -> None:
    rounds = StubSurvey(pooled)
    rounds.missing = ["broker-b"]
    await rounds.round()
    # As far as anybody knows, the topic is on broker-a only.
    assert b"rocketmq_consumer_lag_messages{" in rounds.metrics.lag
    held: dict[str, Any] = {"broker-a": {}, "broker-b": {}}
    async with pooled.transaction() as session:
        session.add(Topic(name="T", config={}, version=1, state="applied", origin="api", observed=held))
    again = StubSurvey(pooled)
    again.clock.advance(15_000)
    again.missing = ["broker-b"]
    await again.round()
    async with pooled.transaction() as session:
        await session.execute(delete(Topic))
    assert b"rocketmq_consumer_lag_messages{" not in again.metrics.lag
    assert (
        b'consumer_group="BUSY",is_retry="false",is_system="false",missing="messages",topic="T"} 1.0'
        in again.metrics.lag
    )


async def test_a_block_that_may_be_lost_is_followed_by_a_full_one(
    pooled: Database, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, add = StubSurvey(pooled), SampleRepository.add
    await rounds.round()
    await rounds.round()

    async def lost(self: SampleRepository, block: StoredBlock) -> None:
        await add(self, block)
        if block.broker == "broker-b":
            raise ProblemError(METADATA_UNAVAILABLE, "the answer was lost")

    with monkeypatch.context() as broken:
        broken.setattr(SampleRepository, "add", lost)
        with pytest.raises(ProblemError):
            await rounds.round()
    await rounds.round()
    # A broker with an invalid number affects only itself.
    rounds.ends["broker-b"] = 2**63
    await rounds.round()
    with connect(own_postgres.url, application="gantry-test") as connection:
        written = [(broker[-1], kind.name) for broker, kind, _ in stored_blocks(connection)]
        missing = connection.execute("SELECT missing FROM lag_sample_rounds ORDER BY sampled_at").fetchall()
    of_a = [("a", "CHANGES")] * 4 + [("a", "FULL")]
    assert sorted(written) == [*of_a, ("b", "CHANGES"), ("b", "FULL"), ("b", "FULL")]
    assert [row[0] for row in missing] == [[], [], [], ["broker-b"]]
    assert rounds.thorough == [{"broker-a", "broker-b"}, set(), set(), {"broker-b"}, set()]
    assert states(own_postgres.url, NOON + 2 * MINUTE, group="BUSY", broker="broker-b") == [1, 2, 4]
