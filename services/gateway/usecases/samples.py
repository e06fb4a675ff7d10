"""The sampler: the offsets of all groups, kept in Postgres, so that growth and drain have a history.

One gateway at a time does it (Postgres advisory lock). A round asks each broker, one request after the other, what groups
have committed, which topics there are, how far their queues reach, and where that is not known (sampling.py) when the
first message was stored that a group has not consumed. What differs from the row before is written. A broker that does not
answer is named with the round; nothing is written of it, since silence is no number.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from gantry.client.backlog import Backlog, Head, HeadQuery
from gantry.client.errors import BrokerError, ClientError, NotServedError
from gantry.model import names
from gantry.model.route import BrokerData
from gantry.model.topic import TopicConfig
from gantry.remoting.errors import BodyError, HeaderError
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.gateway.db.leadership import Leadership
from services.gateway.db.samples import SampleRepository
from services.gateway.db.subscriptions import SubscriptionRepository
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.brokers import Brokers, no_broker
from services.gateway.usecases.kinds import TopicKind
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.sampling import (
    EVERYTHING,
    Extent,
    Filter,
    PairState,
    Sample,
    due_of,
    filter_of,
    find_search,
    learned,
    sample_of,
)

log = logger("gateway.samples")

DUTY: Final = "samples"
PAIRS_MAX: Final = 50_000
"""Triples of group, topic and broker; what is beyond is left out, counted and logged."""

_BROKERS_AT_ONCE: Final = 4
_LOOK_TIMEOUT_S: Final = 60.0
# A filter that lets nothing pass may make a broker look at millions of units.
_SEARCH_TIMEOUT_S: Final = 10.0
_QUERIES_AT_ONCE: Final = 256
_ROWS_AT_ONCE: Final = 500
# Tens of thousands of queues are worked through between requests; others want the loop, too.
_PAIRS_AT_ONCE: Final = 200
_TIDY_INTERVAL_MS: Final = 600_000
# Nothing is at or beyond it, so that a broker has nothing to look for and tells how far the queue reaches.
_BEYOND: Final = 2**62

Pair = tuple[str, str, str]
Filters = Mapping[tuple[str, str], Filter]


@dataclass(frozen=True, slots=True)
class _Ask:
    """A search that is to be made: of which pair, queue and filter, from where."""

    pair: Pair
    queue_id: int
    offset: int
    filter: Filter

    def to_query(self) -> HeadQuery:
        return HeadQuery(self.pair[1], self.queue_id, self.offset, self.filter.codes)


@dataclass(frozen=True, slots=True)
class _Subscribed:
    """What subscriptions say: filters by (group, topic), and those of them that somebody is connected for."""

    filters: Filters
    active: frozenset[tuple[str, str]]


class Sampler:
    """Does the rounds for as long as this gateway has the duty.

    Concurrency: one task runs it.
    """

    def __init__(
        self,
        backlog: Backlog,
        topics: TopicKind,
        brokers: Brokers,
        metadata: Metadata,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        interval_ms: int,
        keep_days: int,
    ) -> None:
        self._backlog = backlog
        self._topics = topics
        self._brokers = brokers
        self._metadata = metadata
        self._metrics = metrics
        self._clock = clock
        self._interval_ms = interval_ms
        self._keep_days = keep_days
        is_on = metadata.database is not None and interval_ms > 0
        self._leadership = Leadership(metadata.database, DUTY) if is_on and metadata.database is not None else None
        self._states: dict[Pair, PairState] = {}
        self._made_for: date | None = None
        self._tidied_ms: int | None = None

    async def run(self) -> None:
        """Sample for ever."""
        if self._leadership is None:
            return
        try:
            while True:
                began_ms = self._clock.monotonic_ms()
                await self._turn(self._leadership)
                took_ms = self._clock.monotonic_ms() - began_ms
                # One that takes longer than the interval still leaves brokers a while to themselves.
                await asyncio.sleep(max(self._interval_ms - took_ms, took_ms // 4) / 1_000)
        finally:
            await self._leadership.release()

    async def _turn(self, leadership: Leadership) -> None:
        try:
            if await leadership.hold():
                await self.round()
            else:
                # Whoever leads now has written other rows; what we have seen is worth nothing when we lead again.
                self._forget()
        except ProblemError as error:
            # Postgres or all brokers are away; the next round finds out whether they are back.
            self._failed(error.detail)
        except Exception as error:  # noqa: BLE001 # boundary: samples are never worth a gateway that ends.
            self._forget()
            self._failed("a fault of the gateway's own", error)
        self._metrics.gauges["is_sampler"] = float(leadership.is_leader)

    async def round(self) -> None:
        """Sample everything once. Raises ProblemError (503)."""
        now_ms, began_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        sampled_at = datetime.fromtimestamp(now_ms // 1_000, UTC).replace(microsecond=now_ms % 1_000 * 1_000)
        await self._make_partitions(sampled_at.date())
        subscribed = await self._subscribed()
        sets = await self._brokers.sets()
        if not sets:
            raise no_broker()
        samples, missing = await self._look_at_all(sets, subscribed)
        due = due_of(samples, self._states, began_ms)
        took_ms = self._clock.monotonic_ms() - began_ms
        await self._write(sampled_at, [sample for sample, _ in due], took_ms, missing)
        for sample, digest in due:
            state = self._states[sample.group, sample.topic, sample.broker]
            state.digest, state.written_ms = digest, began_ms
        self._metrics.count("sample_rounds")
        self._metrics.count("sample_rows", len(due))
        self._metrics.gauges["sample_round_seconds"] = took_ms / 1_000
        self._metrics.gauges["sample_brokers_missing"] = float(len(missing))
        await self._tidy(sampled_at.date())

    # Looking

    async def _subscribed(self) -> _Subscribed:
        async with self._metadata.transaction() as session:
            rows = await SubscriptionRepository(session).filters()
        filters: dict[tuple[str, str], Filter] = {}
        for group, topic, kind, expression, _ in rows:
            known = filter_of(kind, expression)
            if known is not EVERYTHING:
                filters[group, topic] = known
        return _Subscribed(filters, frozenset((row[0], row[1]) for row in rows if row[4]))

    async def _look_at_all(
        self, sets: Mapping[str, BrokerData], subscribed: _Subscribed
    ) -> tuple[list[Sample], list[str]]:
        samples: list[Sample] = []
        missing: list[str] = []
        states: dict[Pair, PairState] = {}
        room = asyncio.Semaphore(_BROKERS_AT_ONCE)

        async def look(broker: str) -> None:
            try:
                async with room, asyncio.timeout(_LOOK_TIMEOUT_S):
                    samples.extend(await self._look(broker, sets, subscribed, states))
            except (ClientError, BodyError, HeaderError, ProblemError, TimeoutError) as error:
                missing.append(broker)
                self._metrics.count("sample_broker_failures")
                log.warning("a broker was not sampled", broker=broker, reason=str(error) or "not in time")

        await asyncio.gather(*(look(broker) for broker in sets))
        # What is kept of a broker that is away is as old as its silence, and asked for anew when it is back.
        self._states = states
        return samples, sorted(missing)

    async def _look(
        self, broker: str, sets: Mapping[str, BrokerData], subscribed: _Subscribed, states: dict[Pair, PairState]
    ) -> list[Sample]:
        """Look at one broker. Raises ClientError, BodyError, HeaderError, ProblemError."""
        committed = await self._backlog.committed_offsets(broker)
        topics = await self._topics.table(await self._brokers.master(broker))
        pairs = self._pairs(broker, committed, topics, subscribed, sets)
        extents, is_searchable = await self._extents(broker, sorted({pair[1] for pair in pairs}), topics)
        now_ms = self._clock.monotonic_ms()
        asks: list[_Ask] = []
        for count, pair in enumerate(pairs):
            if count % _PAIRS_AT_ONCE == 0:
                await asyncio.sleep(0)
            group, topic, _ = pair
            states[pair] = state = self._states.get(pair) or PairState()
            wanted = subscribed.filters.get((group, topic), EVERYTHING)
            reached = extents.get(topic, {})
            state.heads = {queue_id: head for queue_id, head in state.heads.items() if queue_id in reached}
            if not is_searchable or not wanted.is_known:
                state.heads.clear()
                continue
            for queue_id, offset in committed.get(group, {}).get(topic, {}).items():
                if queue_id in reached:
                    known, extent = state.heads.get(queue_id), reached[queue_id]
                    start = find_search(known, offset, extent, wanted.codes, now_ms)
                    if start is not None:
                        asks.append(_Ask(pair, queue_id, start, wanted))
        await self._search(broker, asks, states, now_ms)
        samples = []
        for count, pair in enumerate(pairs):
            if count % _PAIRS_AT_ONCE == 0:
                await asyncio.sleep(0)
            group, topic, _ = pair
            if seen := extents.get(topic):
                samples.append(sample_of(pair, seen, committed.get(group, {}).get(topic, {}), states[pair].heads))
        return samples

    def _pairs(
        self,
        broker: str,
        committed: Mapping[str, Mapping[str, Mapping[int, int]]],
        topics: Mapping[str, TopicConfig],
        subscribed: _Subscribed,
        sets: Mapping[str, BrokerData],
    ) -> list[Pair]:
        """Return what is sampled: what groups committed in, or are connected for; nothing of the system's own."""
        wanted = {(group, topic) for group, there in committed.items() for topic in there} | subscribed.active
        data = sets[broker]
        pairs = [
            (group, topic, broker)
            for group, topic in sorted(wanted)
            if topic in topics
            and not names.is_system_group(group)
            and not names.is_system_topic(topic, data.cluster, broker)
        ]
        if len(pairs) > PAIRS_MAX:
            self._metrics.count("sample_pairs_left_out", len(pairs) - PAIRS_MAX)
            log.warning("too much to sample", broker=broker, pairs=len(pairs), sampled=PAIRS_MAX)
        return pairs[:PAIRS_MAX]

    async def _extents(
        self, broker: str, wanted: list[str], topics: Mapping[str, TopicConfig]
    ) -> tuple[dict[str, dict[int, Extent]], bool]:
        """Return how far the queues of topics reach, and whether the broker can search in them."""
        queues = [
            (topic, queue_id)
            for topic in wanted
            for queue_id in range(max(topics[topic].read_queue_nums, topics[topic].write_queue_nums))
        ]
        extents: dict[str, dict[int, Extent]] = {}
        try:
            for start in range(0, len(queues), _QUERIES_AT_ONCE):
                part = queues[start : start + _QUERIES_AT_ONCE]
                heads = await self._backlog.heads(broker, [HeadQuery(*queue, _BEYOND) for queue in part])
                for (topic, queue_id), head in zip(part, heads, strict=True):
                    if head.min_offset is not None and head.max_offset is not None:
                        extents.setdefault(topic, {})[queue_id] = Extent(head.min_offset, head.max_offset)
        except NotServedError:
            return await self._foreign_extents(broker, wanted), False
        return extents, True

    async def _foreign_extents(self, broker: str, wanted: list[str]) -> dict[str, dict[int, Extent]]:
        """Ask a broker that is not ours, topic by topic."""
        extents: dict[str, dict[int, Extent]] = {}
        for topic in wanted:
            try:
                states = await self._backlog.queue_states(topic, broker)
            except BrokerError as error:
                log.debug("a topic was not sampled", broker=broker, topic=topic, reason=str(error))
                continue
            extents[topic] = {state.queue_id: Extent(state.min_offset, state.max_offset) for state in states}
        return extents

    async def _search(self, broker: str, asks: list[_Ask], states: Mapping[Pair, PairState], now_ms: int) -> None:
        """Search for first messages and keep what is found; one that fails costs only its own part."""
        for start in range(0, len(asks), _QUERIES_AT_ONCE):
            part = asks[start : start + _QUERIES_AT_ONCE]
            heads: list[Head] | list[None]
            try:
                async with asyncio.timeout(_SEARCH_TIMEOUT_S):
                    heads = await self._backlog.heads(broker, [ask.to_query() for ask in part])
            except TimeoutError:
                heads = [None] * len(part)
                self._metrics.count("sample_searches_given_up", len(part))
                log.warning("searches were given up", broker=broker, queues=len(part), after_s=_SEARCH_TIMEOUT_S)
            for ask, head in zip(part, heads, strict=True):
                states[ask.pair].heads[ask.queue_id] = learned(head, ask.offset, ask.filter.codes, now_ms)

    # Writing

    async def _make_partitions(self, today: date) -> None:
        if self._made_for != today:
            async with self._metadata.transaction() as session:
                await SampleRepository(session).make_partitions((today, today + timedelta(days=1)))
            self._made_for = today

    async def _write(self, sampled_at: datetime, due: list[Sample], took_ms: int, missing: list[str]) -> None:
        """Write the samples in short transactions, and the round last: where it is, they are all there."""
        for start in range(0, len(due), _ROWS_AT_ONCE):
            rows = [{"sampled_at": sampled_at, **sample.to_row()} for sample in due[start : start + _ROWS_AT_ONCE]]
            async with self._metadata.transaction() as session:
                await SampleRepository(session).add(rows)
        async with self._metadata.transaction() as session:
            await SampleRepository(session).end_round(sampled_at, took_ms=took_ms, missing=missing)

    async def _tidy(self, today: date) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._tidied_ms is not None and now_ms - self._tidied_ms < _TIDY_INTERVAL_MS:
            return
        self._tidied_ms = now_ms
        async with self._metadata.transaction() as session:
            dropped, kept = await SampleRepository(session).drop_before(today - timedelta(days=self._keep_days))
        if dropped or kept:
            log.info("old samples", partitions_dropped=dropped, partitions_in_use=kept, keep_days=self._keep_days)

    def _forget(self) -> None:
        self._states = {}
        self._made_for = None

    def _failed(self, reason: str, error: Exception | None = None) -> None:
        self._metrics.count("sample_failures")
        log.warning("not sampled", reason=reason, exc_info=error)
