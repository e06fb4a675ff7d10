"""Looking at brokers for samples: what groups have committed, how far queues reach, and when first messages were stored.

A group that has committed in a topic on one broker, or is connected for it, is sampled on all brokers of the topic: rates and
forecasts are sums over all queues. Where else groups commit is known from the look before, so that no broker waits for another one.

A topic that no group has committed in, or is connected for, is sampled by itself: what is only produced into has a
throughput, too. Where there is a group, its samples say how far the queues reach, and the topic's own would say it twice.

Brokers are asked gently: a few at once, and each one request after the other. In a round a broker is asked for its table of
offsets and for its topics, then how far queues reach, 256 a request, and then for the first unconsumed messages that are
not known any more (rounds.py). Those cost most by far. Where more than SEARCHES_MAX queues have moved, they are asked for only with
blocks of all pairs, every four minutes: in between nobody knows how old a moving group's oldest message is.

Where a group's commits went far at once, brokers are asked who is connected: a commit that nobody can have consumed was set. What is
not known then is unknown in the sample, be it that a broker does not answer, or that somebody was there a short time ago. Postgres
says who was, but is half a minute behind: too late for who is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gantry.client.backlog import Backlog, Head, HeadQuery
from gantry.client.errors import BrokerError, ClientError, NotServedError
from gantry.model import names
from gantry.model.route import BrokerData
from gantry.model.topic import TopicConfig
from gantry.remoting.errors import BodyError, HeaderError
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.configs.kinds import TopicKind
from services.gateway.usecases.sampling.rounds import (
    EVERYTHING,
    Extent,
    Filter,
    Pair,
    PairState,
    Sample,
    find_search,
    first_stored_at,
    learned,
    note_commits,
    sample_of,
)

log = logger("gateway.samples")

PAIRS_MAX: Final = 50_000
"""Triples of group, topic and broker; what is beyond is left out, counted and logged, topics without a group first."""
LOOK_TIMEOUT_S: Final = 60.0
# A filter that lets nothing pass may make a broker look at millions of units.
SEARCH_TIMEOUT_S: Final = 10.0
SEARCHES_MAX: Final = 4_000
"""Of a broker and look: 130 ms of its processor. Where more queues moved, first messages are searched for every few minutes only."""

GROUPS_ASKED_MAX: Final = 64
"""Of so many is asked in a look who is connected; first of those for which nobody seems to be."""
ASK_TIMEOUT_S: Final = 5.0

_BROKERS_AT_ONCE: Final = 4
_QUERIES_AT_ONCE: Final = 256
# Tens of thousands of queues are worked through between requests; others want the loop, too.
_PAIRS_AT_ONCE: Final = 200
# Nothing is at or beyond it, so that a broker has nothing to look for and tells how far the queue reaches.
_BEYOND: Final = 2**62


Connected = Callable[[str], Awaitable[Collection[str] | None]]
"""Returns the topics for which somebody is connected in a group; None where a broker does not say. Raises ProblemError."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """What subscriptions say.

    Attributes:
        filters: By (group, topic), where not all is wanted.
        active: For which somebody is connected.
        recent: For which somebody was connected a short time ago.
    """

    filters: Mapping[tuple[str, str], Filter]
    active: frozenset[tuple[str, str]]
    recent: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class _Ask:
    """A search that is to be made: of which pair, queue and filter, from where; and whether nothing is known without it."""

    pair: Pair
    queue_id: int
    offset: int
    filter: Filter
    is_moved: bool

    def to_query(self) -> HeadQuery:
        return HeadQuery(self.pair[1], self.queue_id, self.offset, self.filter.codes)


class SampleLook:
    """Looks at all brokers, and remembers what it found.

    Attributes:
        states: Of each (group or None, topic, broker) that was seen in the last look.
        read_at_ms: Broker → when it gave the numbers of the last look, in wall ms; those that did are in it.

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
        clock: Clock,
    ) -> None:
        self._backlog = backlog
        self._connected = connected
        self._topics = topics
        self._brokers = brokers
        self._metrics = metrics
        self._clock = clock
        self.states: dict[Pair, PairState] = {}
        self.read_at_ms: dict[str, int] = {}
        # Broker → in which topics groups had committed at its last answer; of one that is away, too.
        self._committed_in: dict[str, set[tuple[str, str]]] = {}

    def forget(self) -> None:
        """Forget everything: it is asked for, and due, anew."""
        self.states = {}
        self._committed_in = {}

    async def look(
        self, sets: Mapping[str, BrokerData], subscribed: Subscribed, *, thorough: Container[str] | None = None
    ) -> tuple[list[Sample], list[str]]:
        """Return what was seen, and the names of the brokers that did not answer. Raises nothing that brokers do.

        Args:
            sets: Brokers by name.
            subscribed: What subscriptions say.
            thorough: At which brokers all first messages are searched for, however many; None: at all of them.
        """
        samples: list[Sample] = []
        missing: list[str] = []
        states: dict[Pair, PairState] = {}
        doubtful: set[Pair] = set()
        room = asyncio.Semaphore(_BROKERS_AT_ONCE)
        self.read_at_ms = {}
        self._committed_in = {broker: pairs for broker, pairs in self._committed_in.items() if broker in sets}

        async def look_at(broker: str) -> None:
            try:
                async with room, asyncio.timeout(LOOK_TIMEOUT_S):
                    is_thorough = thorough is None or broker in thorough
                    samples.extend(
                        await self._look(broker, sets, subscribed, states, doubtful, is_thorough=is_thorough)
                    )
            except (ClientError, BodyError, HeaderError, ProblemError, TimeoutError) as error:
                missing.append(broker)
                self._metrics.count("sample_broker_failures")
                log.warning("a broker was not sampled", broker=broker, reason=str(error) or "not in time")

        await asyncio.gather(*(look_at(broker) for broker in sets))
        # What is kept of a broker that is away is as old as its silence, and asked for anew when it is back.
        self.states = states
        await self._find_served(doubtful, subscribed)
        return [self._with_served(sample, doubtful) for sample in samples], sorted(missing)

    async def _look(
        self,
        broker: str,
        sets: Mapping[str, BrokerData],
        subscribed: Subscribed,
        states: dict[Pair, PairState],
        doubtful: set[Pair],
        *,
        is_thorough: bool,
    ) -> list[Sample]:
        """Look at one broker. Raises ClientError, BodyError, HeaderError, ProblemError."""
        topics = await self._topics.table(await self._brokers.master(broker))
        # Right before the queues' ends: what takes time is done before, or after.
        committed = await self._backlog.committed_offsets(broker)
        self._committed_in[broker] = {(group, topic) for group, there in committed.items() for topic in there}
        pairs = self._pairs(broker, topics, subscribed, sets)
        extents, is_searchable = await self._extents(broker, sorted({pair[1] for pair in pairs}), topics)
        self.read_at_ms[broker] = self._clock.now_ms()
        now_ms = self._clock.monotonic_ms()
        asks: list[_Ask] = []
        for count, pair in enumerate(pairs):
            if count % _PAIRS_AT_ONCE == 0:
                await asyncio.sleep(0)
            group, topic, _ = pair
            states[pair] = state = self.states.get(pair) or PairState()
            if group is None:
                continue
            offsets = committed.get(group, {}).get(topic, {})
            if note_commits(state, offsets):
                doubtful.add(pair)
            wanted = subscribed.filters.get((group, topic), EVERYTHING)
            reached = extents.get(topic, {})
            state.heads = {queue_id: head for queue_id, head in state.heads.items() if queue_id in reached}
            if not is_searchable or not wanted.is_known:
                state.heads.clear()
                continue
            for queue_id, offset in offsets.items():
                if queue_id in reached:
                    known, extent = state.heads.get(queue_id), reached[queue_id]
                    start = find_search(known, offset, extent, wanted.codes, now_ms)
                    if start is not None:
                        is_moved = first_stored_at(known, offset, extent) is None
                        asks.append(_Ask(pair, queue_id, start, wanted, is_moved))
        unknown: set[Pair] = set()
        if len(asks) > SEARCHES_MAX and not is_thorough:
            # The oldest of all queues is not known where one is not; a message that is still the first one may be asked for later.
            unknown = {ask.pair for ask in asks if ask.is_moved}
            self._metrics.count("sample_searches_put_off", len(asks))
            asks = []
        await self._search(broker, asks, states, now_ms)
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

    async def _find_served(self, doubtful: Collection[Pair], subscribed: Subscribed) -> None:
        """Ask who is connected for the groups of some pairs; what nobody says stays unknown."""
        of_groups: dict[str, list[Pair]] = {}
        for pair in doubtful:
            if pair[0] is not None:
                of_groups.setdefault(pair[0], []).append(pair)
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
                # Who was there a short time ago may have consumed, and gone.
                if is_served or (group, pair[1]) not in subscribed.recent:
                    self.states[pair].is_served = is_served

        await asyncio.gather(*map(ask, wanted))

    def _with_served(self, sample: Sample, doubtful: Container[Pair]) -> Sample:
        pair = sample.group, sample.topic, sample.broker
        return replace(sample, is_served=self.states[pair].is_served) if pair in doubtful else sample

    def _pairs(
        self,
        broker: str,
        topics: Mapping[str, TopicConfig],
        subscribed: Subscribed,
        sets: Mapping[str, BrokerData],
    ) -> list[Pair]:
        """Return what is sampled: what groups committed in on any broker, or are connected for, and all other topics by themselves.

        Nothing of the system's own.
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
                async with asyncio.timeout(SEARCH_TIMEOUT_S):
                    heads = await self._backlog.heads(broker, [ask.to_query() for ask in part])
            except TimeoutError:
                heads = [None] * len(part)
                self._metrics.count("sample_searches_given_up", len(part))
                log.warning("searches were given up", broker=broker, queues=len(part), after_s=SEARCH_TIMEOUT_S)
            for ask, head in zip(part, heads, strict=True):
                states[ask.pair].heads[ask.queue_id] = learned(head, ask.offset, ask.filter.codes, now_ms)
