"""Surveys of brokers for samples: committed offsets, queue ranges, and store times of first unconsumed messages.

A group that has committed in a topic on one broker, or is connected for the topic, is sampled on all brokers of the
topic, because rates and forecasts are sums over all queues. The commits on other brokers are taken from the survey
before, so that no broker waits for another one.

A topic without such a group is sampled by itself, because a topic that only has producers has a throughput, too. If
there is a group, its samples already contain the queue ranges, and samples of the topic itself would repeat them.

The load on brokers stays low: a few brokers at once, and one request after the other for each. A round asks a broker
for its table of offsets and for its topics, then for the queue ranges, 256 queues a request, and then for the first
unconsumed messages that are no longer known (rounds.py). These searches cost most by far. If more than SEARCHES_MAX
queues have moved, the searches run only for blocks of all pairs, every four minutes; in between, the age of a moving
group's oldest message is unknown.

Searches for SQL filters have a limit of their own, and take several rounds (searches.py).

If the commits of a group advance far at once, the brokers are asked for its connected clients: without a consumer, the
commit was an offset reset. They are not asked about a group that has just consumed through this gateway. The sample says "unknown" if a broker does not answer, or if a client was connected a short
time ago. Postgres knows the recent clients, but half a minute late, which is too late for the current ones.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gantry.client.backlog import Backlog, FirstUnconsumedQuery, OffsetsOfBroker
from gantry.client.errors import BrokerError, ClientError, NotServedError
from gantry.model import names
from gantry.model.route import BrokerData
from gantry.model.topic import TopicConfig
from gantry.remoting.bodies.resets import MadeReset
from gantry.remoting.errors import BodyError, HeaderError
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.configs.kinds import TopicKind
from services.gateway.usecases.sampling.rounds import (
    EVERYTHING,
    Filter,
    OffsetRange,
    Pair,
    PairState,
    Sample,
    find_search,
    first_stored_at,
    record_commits,
    sample_of,
)
from services.gateway.usecases.sampling.searches import QUERIES_AT_ONCE, HeadSearch, HeadSearches

log = logger("gateway.samples")

PAIRS_MAX: Final = 50_000
"""Limit of triples of group, topic and broker.

Triples beyond the limit are left out, counted and logged, topics without a group first.
"""
SURVEY_TIMEOUT_S: Final = 60.0
SEARCHES_MAX: Final = 4_000
"""Limit for a broker and survey: 130 ms of its processor time.

If more queues have moved, first unconsumed messages are searched for only every few minutes.
"""

GROUPS_ASKED_MAX: Final = 64
"""Groups whose connected clients are asked for in one survey; groups that seem to have none come first."""
ASK_TIMEOUT_S: Final = 5.0
UNKNOWN_RESETS_MS: Final = 600_000
"""Age of the resets that the first survey of a broker notes, if it is unknown what an earlier survey contained: longer
than the time between two samples."""

_BROKERS_AT_ONCE: Final = 4
# The loop over tens of thousands of queues yields this often to other tasks.
_PAIRS_AT_ONCE: Final = 200
# No queue reaches this offset, so a broker searches for nothing and returns the range of the queue.
_BEYOND: Final = 2**62


Connected = Callable[[str], Awaitable[Collection[str] | None]]
"""Returns the topics for which clients of a group are connected; None: a broker is silent. Raises ProblemError."""
HasConsumed = Callable[[str, str], bool]
"""Returns whether a group has consumed from a topic through this gateway a short time ago."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The subscriptions that Postgres knows.

    Attributes:
        filters: Filters by (group, topic), for subscriptions that do not take all messages.
        active: Pairs (group, topic) with a connected client.
        recent: Pairs (group, topic) for which a client was connected a short time ago.
    """

    filters: Mapping[tuple[str, str], Filter]
    active: frozenset[tuple[str, str]]
    recent: frozenset[tuple[str, str]] = frozenset()


class SampleSurvey:
    """Surveys all brokers, and keeps the results between surveys.

    Attributes:
        states: State of each (group or None, topic, broker) of the last survey.
        read_at_ms: Broker → wall time of its numbers in the last survey, in ms; only brokers that gave numbers.
        resets: Broker → resets of offsets that the last survey may contain and the survey before may not.
        reset_epochs: Broker → epoch of the last reset that the last survey contains for certain.

    Concurrency: one task calls it.
    """

    def __init__(
        self,
        backlog: Backlog,
        topics: TopicKind,
        brokers: Brokers,
        metrics: GatewayMetrics,
        *,
        connected: Connected,
        has_consumed: HasConsumed,
        clock: Clock,
    ) -> None:
        self._backlog = backlog
        self._connected = connected
        self._has_consumed = has_consumed
        self._topics = topics
        self._brokers = brokers
        self._metrics = metrics
        self._searches = HeadSearches(backlog, metrics)
        self._clock = clock
        self.states: dict[Pair, PairState] = {}
        self.read_at_ms: dict[str, int] = {}
        self.resets: dict[str, list[MadeReset]] = {}
        self.reset_epochs: dict[str, int] = {}
        # Broker → (group, topic) of the commits in its last answer; also kept for a broker that is down.
        self._committed_in: dict[str, set[tuple[str, str]]] = {}

    def forget(self) -> None:
        """Forget all results, so that the next survey asks for everything again."""
        self.states = {}
        self.reset_epochs = {}
        self._committed_in = {}

    async def survey(
        self, sets: Mapping[str, BrokerData], subscribed: Subscribed, *, thorough: Container[str] | None = None
    ) -> tuple[list[Sample], list[str]]:
        """Return the samples, and the names of the brokers that did not answer. A broker's failure raises nothing.

        Args:
            sets: Brokers by name.
            subscribed: Subscriptions that Postgres knows.
            thorough: Brokers on which all first unconsumed messages are searched for, however many; None: all brokers.
        """
        samples: list[Sample] = []
        missing: list[str] = []
        states: dict[Pair, PairState] = {}
        jumped: set[Pair] = set()
        room = asyncio.Semaphore(_BROKERS_AT_ONCE)
        self.read_at_ms, self.resets = {}, {}
        self._committed_in = {broker: pairs for broker, pairs in self._committed_in.items() if broker in sets}

        async def survey_broker(broker: str) -> None:
            try:
                async with room, asyncio.timeout(SURVEY_TIMEOUT_S):
                    is_thorough = thorough is None or broker in thorough
                    samples.extend(
                        await self._survey(broker, sets, subscribed, states, jumped, is_thorough=is_thorough)
                    )
            except (ClientError, BodyError, HeaderError, ProblemError, TimeoutError) as error:
                missing.append(broker)
                self._metrics.count("sample_broker_failures")
                log.warning("a broker was not sampled", broker=broker, reason=str(error) or "timed out")

        await asyncio.gather(*(survey_broker(broker) for broker in sets))
        # The state of a broker that did not answer is outdated, so it is dropped and read again when the broker is
        # back.
        self.states = states
        await self._look_up_connected(jumped, subscribed)
        return [self._with_served(sample, jumped) for sample in samples], sorted(missing)

    async def _survey(
        self,
        broker: str,
        sets: Mapping[str, BrokerData],
        subscribed: Subscribed,
        states: dict[Pair, PairState],
        jumped: set[Pair],
        *,
        is_thorough: bool,
    ) -> list[Sample]:
        """Survey one broker. Raises ClientError, BodyError, HeaderError, ProblemError."""
        topics = await self._topics.table(await self._brokers.master(broker))
        # Offsets are read right before the queue ranges, so that both are of the same time; slow requests come before
        # or after.
        table = await self._backlog.offset_table(broker)
        committed = table.offsets
        self._committed_in[broker] = {(group, topic) for group, there in committed.items() for topic in there}
        pairs = self._pairs(broker, topics, subscribed, sets)
        extents, is_searchable = await self._extents(broker, sorted({pair[1] for pair in pairs}), topics)
        self.read_at_ms[broker] = self._clock.now_ms()
        await self._note_resets(broker, table)
        now_ms = self._clock.monotonic_ms()
        asks: list[HeadSearch] = []
        sql_asks: list[HeadSearch] = []
        for count, pair in enumerate(pairs):
            if count % _PAIRS_AT_ONCE == 0:
                await asyncio.sleep(0)
            group, topic, _ = pair
            states[pair] = state = self.states.get(pair) or PairState()
            if group is None:
                continue
            offsets = committed.get(group, {}).get(topic, {})
            if record_commits(state, offsets):
                jumped.add(pair)
            wanted = subscribed.filters.get((group, topic), EVERYTHING)
            reached = extents.get(topic, {})
            state.heads = {queue_id: head for queue_id, head in state.heads.items() if queue_id in reached}
            if not is_searchable or not wanted.is_known:
                state.heads.clear()
                continue
            for queue_id, offset in offsets.items():
                if queue_id in reached:
                    known, extent = state.heads.get(queue_id), reached[queue_id]
                    start = find_search(known, offset, extent, wanted, now_ms)
                    if start is not None:
                        is_moved = first_stored_at(known, offset, extent) is None
                        begun_at, searched_ms = max(offset, extent.min_offset), 0 if known is None else known.at_ms
                        (asks if wanted.sql is None else sql_asks).append(
                            HeadSearch(pair, queue_id, begun_at, start, wanted, is_moved, searched_ms)
                        )
        unknown: set[Pair] = set()
        if len(asks) > SEARCHES_MAX and not is_thorough:
            # One unknown queue makes the oldest message of the pair unknown. Known first messages can be searched for
            # again later.
            unknown = {ask.pair for ask in asks if ask.is_moved}
            self._metrics.count("sample_searches_put_off", len(asks))
            asks = []
        await self._searches.search(broker, asks, states, now_ms)
        await self._searches.search_sql(broker, sql_asks, states, now_ms)
        samples = []
        for count, pair in enumerate(pairs):
            if count % _PAIRS_AT_ONCE == 0:
                await asyncio.sleep(0)
            group, topic, _ = pair
            if seen := extents.get(topic):
                offsets = {} if group is None else committed.get(group, {}).get(topic, {})
                state = states[pair]
                heads = {} if pair in unknown else state.heads
                samples.append(sample_of(pair, seen, offsets, heads, is_served=state.is_served))
        return samples

    async def _note_resets(self, broker: str, table: OffsetsOfBroker) -> None:
        """Note the resets since the last survey of a broker.

        A reset that came while the broker encoded its offsets may be in this survey or in the next, so it is noted in
        both. Raises ClientError.
        """
        if table.reset_epoch is None or table.reset_epoch_end is None:
            return
        # Epochs are near the broker's wall time. Without a known survey before, earlier resets do not matter.
        after = self.reset_epochs.get(broker, self._clock.now_ms() - UNKNOWN_RESETS_MS)
        if after < table.reset_epoch_end:
            self.resets[broker] = await self._backlog.resets(broker, after=after, until=table.reset_epoch_end)
        self.reset_epochs[broker] = table.reset_epoch

    async def _look_up_connected(self, jumped: Collection[Pair], subscribed: Subscribed) -> None:
        """Look up the connected clients for the groups of some pairs; a pair without an answer stays unknown."""
        of_groups: dict[str, list[Pair]] = {}
        for pair in jumped:
            group, topic, _ = pair
            if group is not None and self._has_consumed(group, topic):
                self.states[pair].is_served = True
            elif group is not None:
                of_groups.setdefault(group, []).append(pair)
        active = {group for group, _ in subscribed.active}
        wanted = sorted(of_groups, key=lambda group: (group in active, group))[:GROUPS_ASKED_MAX]

        async def ask(group: str) -> None:
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    topics = await self._connected(group)
            except (ProblemError, TimeoutError):
                return
            if topics is None:
                return
            for pair in of_groups[group]:
                is_served = pair[1] in topics
                # A client that was connected a short time ago may have consumed the messages and left.
                if is_served or (group, pair[1]) not in subscribed.recent:
                    self.states[pair].is_served = is_served

        await asyncio.gather(*map(ask, wanted))

    def _with_served(self, sample: Sample, jumped: Container[Pair]) -> Sample:
        pair = sample.group, sample.topic, sample.broker
        return replace(sample, is_served=self.states[pair].is_served) if pair in jumped else sample

    def _pairs(
        self,
        broker: str,
        topics: Mapping[str, TopicConfig],
        subscribed: Subscribed,
        sets: Mapping[str, BrokerData],
    ) -> list[Pair]:
        """Return the pairs to sample: committed or connected on any broker, then the other topics.

        Names reserved for the system are left out.
        """
        wanted = subscribed.active.union(*self._committed_in.values())
        data = sets[broker]
        pairs: list[Pair] = [
            (group, topic, broker)
            for group, topic in sorted(wanted)
            if topic in topics
            and not names.is_system_group(group)
            and not names.is_system_topic(topic, data.cluster, broker)
        ]
        with_group = {topic for _, topic, _ in pairs}
        pairs += [
            (None, topic, broker)
            for topic in sorted(topics)
            if topic not in with_group and not names.is_system_topic(topic, data.cluster, broker)
        ]
        if len(pairs) > PAIRS_MAX:
            self._metrics.count("sample_pairs_left_out", len(pairs) - PAIRS_MAX)
            log.warning("too many pairs to sample", broker=broker, pairs=len(pairs), sampled=PAIRS_MAX)
        return pairs[:PAIRS_MAX]

    async def _extents(
        self, broker: str, wanted: list[str], topics: Mapping[str, TopicConfig]
    ) -> tuple[dict[str, dict[int, OffsetRange]], bool]:
        """Return the ranges of the topics' queues, and whether the broker supports searches."""
        queues = [
            (topic, queue_id)
            for topic in wanted
            for queue_id in range(max(topics[topic].read_queue_nums, topics[topic].write_queue_nums))
        ]
        extents: dict[str, dict[int, OffsetRange]] = {}
        try:
            for start in range(0, len(queues), QUERIES_AT_ONCE):
                part = queues[start : start + QUERIES_AT_ONCE]
                heads = await self._backlog.first_unconsumed(
                    broker, [FirstUnconsumedQuery(*queue, _BEYOND) for queue in part]
                )
                for (topic, queue_id), head in zip(part, heads, strict=True):
                    if head.min_offset is not None and head.max_offset is not None:
                        extents.setdefault(topic, {})[queue_id] = OffsetRange(head.min_offset, head.max_offset)
        except NotServedError:
            return await self._foreign_extents(broker, wanted), False
        return extents, True

    async def _foreign_extents(self, broker: str, wanted: list[str]) -> dict[str, dict[int, OffsetRange]]:
        """Ask a broker that is not Gantry's, one topic after the other."""
        extents: dict[str, dict[int, OffsetRange]] = {}
        for topic in wanted:
            try:
                states = await self._backlog.queue_states(topic, broker)
            except BrokerError as error:
                log.debug("a topic was not sampled", broker=broker, topic=topic, reason=str(error))
                continue
            extents[topic] = {state.queue_id: OffsetRange(state.min_offset, state.max_offset) for state in states}
        return extents
