"""Limits: everything of which there may only be so much at once, in one place.

`/v1/limits` tells them to callers, `/metrics` shows what is used and refused. What a single request or frame may hold is
fixed by the contract instead (settings.py, ws/limits.py).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from services.gateway.quotas import ADDRESS, KEY, Quota
from services.gateway.rates import Rate
from services.gateway.settings import GatewaySettings

# 1 MB of memory.
TICKETS_MAX: Final = 10_000


class Limits:
    """The quotas and rates of one gateway.

    Attributes:
        requests: Requests under way. Those that wait for a message count as long polls meanwhile.
        long_polls: Requests that wait for a message.
        streams: WebSockets, by key; `address_streams` counts the same by address.
        waiting_queues: Queues of streams that wait at their brokers for messages.
        tickets: Tickets that are neither used nor too old.
        rates: How many requests a second a key or an address may make; none unless settings say so.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.requests = Quota("requests", KEY, each_max=settings.key_in_flight_max, total_max=settings.in_flight_max)
        self.long_polls = Quota(
            "long_polls", KEY, each_max=settings.key_long_polls_max, total_max=settings.long_polls_max
        )
        self.streams = Quota("streams", KEY, each_max=settings.key_streams_max, total_max=settings.streams_max)
        self.address_streams = Quota(
            "streams", ADDRESS, each_max=settings.address_streams_max, total_max=settings.streams_max
        )
        self.waiting_queues = Quota(
            "waiting_queues", KEY, each_max=settings.key_waiting_queues_max, total_max=settings.waiting_queues_max
        )
        self.tickets = Quota("tickets", KEY, each_max=settings.key_tickets_max, total_max=TICKETS_MAX)
        per_s = {KEY: settings.key_requests_per_s, ADDRESS: settings.address_requests_per_s}
        self.rates = {scope: Rate("requests_per_s", scope, per_s=rate) for scope, rate in per_s.items() if rate}

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """Return all quotas."""
        return (
            self.requests,
            self.long_polls,
            self.streams,
            self.address_streams,
            self.waiting_queues,
            self.tickets,
        )

    def view(self, holders: Mapping[str, str], now_ms: int) -> dict[str, Any]:
        """Return what each of these holders, by scope, may have and has, as `/v1/limits` shows it."""
        shown: dict[str, Any] = {scope: {} for scope in holders}
        for quota in self.quotas:
            holder = holders[quota.scope]
            shown[quota.scope][quota.name] = {
                "max": quota.each_max,
                "used": quota.held_by(holder),
                "all_max": quota.total_max,
            }
        for scope, holder in holders.items():
            rate = self.rates.get(scope)
            shown[scope]["requests_per_s"] = (
                {"max": None, "left": None}
                if rate is None
                else {"max": rate.per_s, "left": rate.allowance(holder, now_ms).left}
            )
        return shown


class Slot:
    """The place of one request among those under way; a request that waits has a place among those instead."""

    __slots__ = ("_holder", "_limits")

    def __init__(self, limits: Limits, holder: str) -> None:
        """Take the place. Raises ProblemError (429, 503)."""
        limits.requests.take(holder)
        self._limits = limits
        self._holder = holder

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Have the place of one that waits until the block ends. Raises ProblemError (429, 503)."""
        limits, holder = self._limits, self._holder
        limits.long_polls.take(holder)
        limits.requests.give(holder)
        try:
            yield
        finally:
            limits.long_polls.give(holder)
            limits.requests.take_back(holder)

    def leave(self) -> None:
        """Give the place back."""
        self._limits.requests.give(self._holder)
