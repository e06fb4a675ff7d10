"""Searches of a sampling round for the first unconsumed messages of groups.

A filter by tags is decided by units, and a broker examines millions of them in a second. An SQL filter is applied to
records, which costs a thousand times more. So each round continues these searches by at most SQL_REQUESTS_MAX requests
of about 16,000 messages, and the age is unknown until a search has ended.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gantry.client.backlog import Backlog, FirstUnconsumed, FirstUnconsumedQuery, query_parts
from gantry.runtime.telemetry import logger
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.sampling.rounds import Filter, Pair, PairState, is_unfinished, search_result

log = logger("gateway.samples")

# A filter that matches nothing may make a broker read millions of ConsumeQueue units.
SEARCH_TIMEOUT_S: Final = 10.0
SQL_REQUESTS_MAX: Final = 8
"""Limit for a broker and survey: about 0.1 s of its processor time for each request."""
QUERIES_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class HeadSearch:
    """A search to make.

    Attributes:
        begun_at: Offset of the group. Messages between it and `offset` are known not to match.
        is_moved: Whether the first unconsumed message is unknown without the search.
        searched_ms: Monotonic time of the last search in this queue, in ms; 0 if there was none.
    """

    pair: Pair
    queue_id: int
    begun_at: int
    offset: int
    filter: Filter
    is_moved: bool
    searched_ms: int

    def to_query(self) -> FirstUnconsumedQuery:
        """Return the query for the broker."""
        return FirstUnconsumedQuery(self.pair[1], self.queue_id, self.offset, self.filter.codes, self.filter.sql)


class HeadSearches:
    """Makes the searches of a round, and keeps their results in the states of pairs."""

    def __init__(self, backlog: Backlog, metrics: GatewayMetrics) -> None:
        self._backlog = backlog
        self._metrics = metrics

    async def search(self, broker: str, asks: list[HeadSearch], states: Mapping[Pair, PairState], now_ms: int) -> None:
        """Search for first unconsumed messages and keep the results; a failed request affects only its own queues."""
        for start in range(0, len(asks), QUERIES_AT_ONCE):
            part = asks[start : start + QUERIES_AT_ONCE]
            heads: list[FirstUnconsumed] | list[None]
            try:
                async with asyncio.timeout(SEARCH_TIMEOUT_S):
                    heads = await self._backlog.first_unconsumed(broker, [ask.to_query() for ask in part])
            except TimeoutError:
                heads = [None] * len(part)
                self._metrics.count("sample_searches_given_up", len(part))
                log.warning("searches were given up", broker=broker, queues=len(part), after_s=SEARCH_TIMEOUT_S)
            for ask, head in zip(part, heads, strict=True):
                states[ask.pair].heads[ask.queue_id] = search_result(head, ask.begun_at, ask.filter, now_ms)

    async def search_sql(
        self, broker: str, asks: list[HeadSearch], states: Mapping[Pair, PairState], now_ms: int
    ) -> None:
        """Continue the searches for SQL filters, those first that have waited longest, and keep the results."""
        waiting = sorted(asks, key=lambda ask: ask.searched_ms)
        try:
            async with asyncio.timeout(SEARCH_TIMEOUT_S):
                for _ in range(SQL_REQUESTS_MAX):
                    if not waiting:
                        return
                    queries = next(query_parts(ask.to_query() for ask in waiting))
                    heads = await self._backlog.search_part(broker, queries)
                    part, waiting, advanced = waiting[: len(queries)], waiting[len(queries) :], []
                    stuck = []
                    for ask, head in zip(part, heads, strict=True):
                        result = search_result(head, ask.begun_at, ask.filter, now_ms)
                        if is_unfinished(head) and result.reached <= ask.offset:
                            stuck.append(ask)
                            continue
                        states[ask.pair].heads[ask.queue_id] = result
                        if is_unfinished(head):
                            advanced.append(replace(ask, offset=result.reached))
                    waiting = stuck + waiting + advanced
        except TimeoutError:
            self._metrics.count("sample_searches_given_up", len(waiting))
            log.warning("searches for SQL filters were interrupted", broker=broker, after_s=SEARCH_TIMEOUT_S)
