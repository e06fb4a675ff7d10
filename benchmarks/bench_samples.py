"""Benchmarks offset samples: their size in Postgres for a day, and the CPU of a round in broker, gateway and Postgres.

Size: the benchmark writes an hour of rounds of groups with 16 queues each into the real Postgres of a stack, with the
sampler's own code. In a moving cluster, messages come into every queue and are consumed, at rates from one in ten
seconds to a hundred a second. In an idle cluster, nothing moves. The size of a day is extrapolated: 24 times that hour.

A round: the sampler looks at a real broker, with ten groups on each topic. In a moving cluster, every group has
committed in every queue since the last look. One look in 16 searches for all first messages.
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import uvloop

from benchmarks import frames
from benchmarks.load import frames_closed_loop
from benchmarks.report import Row
from benchmarks.stack import cpu_s
from gantry.client.backlog import Backlog
from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.remoting.codes import RequestCode
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from gantry.runtime.workers import InlineWorker
from services.gateway.db.engine import Database
from services.gateway.db.samples import SampleRepository
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.configs.kinds import TopicKind
from services.gateway.usecases.consuming.consumers import Consumers
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.sampling.blocks import BlockWriter
from services.gateway.usecases.sampling.retention import SampleRetention
from services.gateway.usecases.sampling.rounds import Sample
from services.gateway.usecases.sampling.sampler import moment_of, stored_block
from services.gateway.usecases.sampling.survey import SampleSurvey, Subscribed
from tests.support.stack import Stack
from tests.support.virtualtime import FakeClock

if TYPE_CHECKING:
    import numpy as np

SIZES = (10, 200, 2_000)
QUEUES = 16
GROUPS_A_TOPIC = 10
ROUND_MS = 15_000
ROUNDS_AN_HOUR, ROUNDS_A_DAY = 240, 5_760
MOVING_BYTES_MAX, IDLE_BYTES_MAX = 1_500_000_000, 50_000_000
MIB = 1 << 20
ROUNDS = 3
BATCH = 64
IN_FLIGHT = 64
TABLES = ("lag_sample_blocks", "lag_sample_rounds")
START_MS = 1_760_000_400_000


@dataclass(frozen=True, slots=True)
class Hour:
    """The cost of an hour of rounds.

    Attributes:
        blocks: Number of rows of blocks.
        size_bytes: Growth of the tables and indexes.
        gateway_s: CPU seconds of the gateway for building and writing blocks, and for merging them a day later.
        postgres_s: CPU seconds of Postgres for both.
    """

    blocks: int
    size_bytes: int
    gateway_s: float
    postgres_s: float


@dataclass(frozen=True, slots=True)
class RoundCost:
    """CPU seconds of a round that looks at one broker."""

    broker_s: float
    gateway_s: float


def run(*, tiny: bool = False, sizes: tuple[int, ...] = SIZES) -> Iterator[Row]:
    """Run the benchmark."""
    with Stack(brokers=1, environment={"GANTRY_GATEWAY_SAMPLE_INTERVAL_MS": "0"}) as stack:
        rounds = ROUNDS_AN_HOUR // 4 if tiny else ROUNDS_AN_HOUR
        for groups in (2,) if tiny else sizes:
            is_largest = groups == SIZES[-1]
            for name, moves, most in (("moving", True, MOVING_BYTES_MAX), ("idle", False, IDLE_BYTES_MAX)):
                hour = uvloop.run(_hour(stack, groups, rounds, moves=moves))
                size = hour.size_bytes / rounds * ROUNDS_A_DAY
                label = f"samples of {groups:,} groups x {QUEUES} queues, {name}, a day (extrapolated)"
                aim = f"≤ {most / MIB:,.0f} MiB" if is_largest else ""
                yield Row(label, size / MIB, "MiB", "", None, aim, size <= most if is_largest else None)
                per_round = 1_000 / rounds
                yield Row("CPU of writing a round, gateway", hour.gateway_s * per_round, "ms CPU")
                yield Row("CPU of writing a round, Postgres", hour.postgres_s * per_round, "ms CPU")
            for name, spent in _round_costs(stack, groups):
                label = f"sampling round, {groups:,} groups, {name}: CPU of the broker"
                yield Row(label, spent.broker_s * 1_000, "ms CPU")
                yield Row("CPU of the gateway", spent.gateway_s * 1_000, "ms CPU")


class _Figures:
    """The numbers of a simulated cluster, which move from round to round."""

    def __init__(self, groups: int, *, moves: bool) -> None:
        import numpy as np  # noqa: PLC0415 - other benchmarks run without numpy.

        self._rng = np.random.default_rng(11)
        self._moves = moves
        shape = (groups, QUEUES)
        self._rate = 10 ** self._rng.uniform(-1, 2, shape)
        self._end = self._rng.integers(10**5, 10**8, shape)
        self._begin = (self._end * self._rng.uniform(0.3, 1, shape)).astype(np.int64)
        self._lag = self._lags()
        self._stored_ms = START_MS - (self._lag / self._rate * 1_000).astype(np.int64)
        # One group in ten consumes nothing, so its backlog grows.
        self._stands = np.arange(groups) % 10 == 0

    def _lags(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        return self._rng.poisson(self._rate * self._rng.uniform(0.05, 3, self._rate.shape))

    def samples(self, at_ms: int) -> list[Sample]:
        """Return the samples of a moment, and move on."""
        if self._moves:
            came = self._rng.poisson(self._rate * ROUND_MS / 1_000)
            lag = self._lags()
            self._end += came
            self._lag = lag = (self._lag + came) * self._stands[:, None] + lag * ~self._stands[:, None]
            waiting_ms = (lag / self._rate * 1_000).astype(int)
            self._stored_ms = at_ms - waiting_ms
        columns = (self._begin, self._end, self._end - self._lag, self._stored_ms)
        ids = tuple(range(QUEUES))
        return [
            Sample(
                group=f"GID_group_{number}",
                topic=f"Topic_{number // GROUPS_A_TOPIC}",
                broker="broker-a",
                queue_ids=ids,
                min_offsets=tuple(low),
                max_offsets=tuple(high),
                committed_offsets=tuple(at),
                # The first unconsumed message of each queue is known. A queue without a lag has none.
                first_stored_at_ms=tuple(
                    ms if end > to else None for end, to, ms in zip(high, at, stored, strict=True)
                ),
                is_served=True,
                is_age_known=True,
            )
            for number, (low, high, at, stored) in enumerate(zip(*(column.tolist() for column in columns), strict=True))
        ]


async def _hour(stack: Stack, groups: int, rounds: int, *, moves: bool) -> Hour:
    """Write an hour of rounds into empty tables, and merge them as the gateway does a day later."""
    url, postgres = stack.facts["postgres"], stack.pid_of("postgres")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"TRUNCATE {', '.join(TABLES)}")
        before = _table_bytes(connection)
        figures, writer = _Figures(groups, moves=moves), BlockWriter()
        database = Database.open(url, clock=SystemClock())
        began, gateway_s = _family_cpu_s(postgres), 0.0
        for turn in range(rounds):
            at_ms = START_MS + turn * ROUND_MS
            samples = figures.samples(at_ms)
            started = time.process_time()
            plan = writer.plan(samples, at_ms=at_ms, now_ms=turn * ROUND_MS)
            async with database.transaction() as session:
                repository = SampleRepository(session)
                if plan is not None:
                    await repository.add(stored_block("broker-a", plan))
                    writer.keep(plan, now_ms=turn * ROUND_MS)
                await repository.end_round(moment_of(at_ms), took_ms=900, missing=[])
            gateway_s += time.process_time() - started
        row = connection.execute("SELECT count(*) FROM lag_sample_blocks").fetchone()
        assert row is not None
        size_bytes = _table_bytes(connection) - before
        gateway_s += await _merged(database)
        await database.close()
        return Hour(row[0], size_bytes, gateway_s, _family_cpu_s(postgres) - began)


async def _merged(database: Database) -> float:
    """Merge all minutes; return the gateway's CPU seconds."""
    clock = FakeClock(START_MS + 26 * 3_600_000)
    retention = SampleRetention(
        Metadata(database), GatewayMetrics(), worker=InlineWorker(), clock=clock, raw_hours=24, keep_days=90
    )
    started = time.process_time()
    while await retention.piece():
        pass
    return time.process_time() - started


def _table_bytes(connection: psycopg.Connection[Any]) -> int:
    sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in TABLES)
    row = connection.execute(f"SELECT {sizes}").fetchone()
    assert row is not None
    return int(row[0])


def _family_cpu_s(pid: int) -> float:
    """Return the CPU seconds of Postgres: its own, its children's, and those of children that have ended."""
    while True:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        try:
            return cpu_s(pid) + ended + sum([cpu_s(int(child)) for child in children])
        except OSError:
            # A child has ended since the list was read. The next look counts it among those.
            continue


def _round_costs(stack: Stack, groups: int) -> Iterator[tuple[str, RoundCost]]:
    """Yield the cost of a look if nothing has moved, and if everything has."""
    topics = max(1, groups // GROUPS_A_TOPIC)
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    with httpx.Client(base_url=stack.facts["http"], headers=headers) as client:
        for topic in range(topics):
            config = {"read_queues": QUEUES, "write_queues": QUEUES}
            client.put(f"/v1/topics/Topic_{topic}", json=config).raise_for_status()
    _send_frames(stack, [frames.batch_frame(f"Topic_{number % topics}", number // topics, messages=BATCH, queues=QUEUES)
                 for number in range(topics * QUEUES)])  # fmt: skip
    made = [json.dumps({"groupName": f"GID_group_{number}"}).encode() for number in range(groups)]
    _send_frames(stack, [frames.frame(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, number, body)
                 for number, body in enumerate(made)])  # fmt: skip
    _commit(stack, groups, 0)
    yield from uvloop.run(_measured(stack, groups)).items()


async def _measured(stack: Stack, groups: int) -> dict[str, RoundCost]:
    async with _sampler(stack) as (survey, brokers):
        sets = await brokers.sets(fresh=True)
        no_subscriptions = Subscribed({}, frozenset())
        samples, _ = await survey.survey(sets, no_subscriptions)
        assert len([one for one in samples if one.group is not None]) >= groups, f"{len(samples)} pairs were seen"

        async def cost(*thorough: str) -> RoundCost:
            broker = stack.pid_of("broker-a")
            broker_s, gateway_s = cpu_s(broker), time.process_time()
            await survey.survey(sets, no_subscriptions, thorough=thorough)
            return RoundCost(cpu_s(broker) - broker_s, time.process_time() - gateway_s)

        standing = [await cost() for _ in range(ROUNDS)]
        moving, thorough = [], []
        for turn in range(ROUNDS):
            await asyncio.to_thread(_commit, stack, groups, 2 * turn + 1)
            moving.append(await cost())
            await asyncio.to_thread(_commit, stack, groups, 2 * turn + 2)
            thorough.append(await cost("broker-a"))
        return {"standing": _mean(standing), "moving": _mean(moving), "moving, one in 16": _mean(thorough)}


def _mean(costs: list[RoundCost]) -> RoundCost:
    return RoundCost(sum(one.broker_s for one in costs) / len(costs), sum(one.gateway_s for one in costs) / len(costs))


@asynccontextmanager
async def _sampler(stack: Stack) -> Any:
    clock = SystemClock()
    engine = ClientEngine(ClientSettings(namesrv=tuple(stack.facts["namesrv"])), clock=clock, rng=Rng())
    await engine.start()
    brokers = Brokers(engine, clock=clock)
    try:
        metrics, consumers = GatewayMetrics(), Consumers(engine, brokers, Metadata(None), clock=clock)
        survey = SampleSurvey(
            Backlog(engine),
            TopicKind(engine),
            brokers,
            metrics,
            connected=consumers.subscribed_topics,
            has_consumed=lambda group, topic: False,
            clock=clock,
        )
        yield survey, brokers
    finally:
        await engine.stop()


def _commit(stack: Stack, groups: int, offset: int) -> None:
    _send_frames(
        stack,
        [
            frames.frame(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {
                    "consumerGroup": f"GID_group_{number}",
                    "topic": f"Topic_{number // GROUPS_A_TOPIC}",
                    "queueId": str(queue),
                    "commitOffset": str(offset),
                },
                number * QUEUES + queue,
            )
            for number in range(groups)
            for queue in range(QUEUES)
        ],
    )


def _send_frames(stack: Stack, made: list[bytes]) -> None:
    host, port = stack.facts["brokers"][0]["address"].rsplit(":", 1)
    result = uvloop.run(
        frames_closed_loop((host, int(port)), made.__getitem__, in_flight=IN_FLIGHT, requests=len(made))
    )
    assert result.failures == 0, f"{result.failures} of {result.requests} requests failed"
