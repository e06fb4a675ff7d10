"""Limits: all quotas and rates of the gateway in one place.

`/v1/limits` reports them to callers, and `/metrics` shows usage and rejections. The limits on a single request or frame
are fixed by the contract instead (settings.py, ws/limits.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from gantry.runtime.clock import Clock, SystemClock
from services.gateway.bodies import Bodies
from services.gateway.keyrates import KeyRates
from services.gateway.quotas import ADDRESS, KEY, Quota
from services.gateway.rates import Rate
from services.gateway.settings import GatewaySettings
from services.gateway.turns import Turns

# 1 MB of memory.
TICKETS_MAX: Final = 10_000
# Answers without a key: mostly the OpenAPI document.
PUBLIC_UNSENT_BYTES_MAX: Final = 32 * 1024 * 1024
# Unsent bytes that a connection may have without being counted: 40 MB for ten thousand connections.
UNSENT_BYTES_FREE: Final = 4 * 1024
RESULT_BYTES: Final = 512
"""Bytes counted for each message in the answer to a batch until the answer is known; longer than most."""


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """A quota, and the amount that one holder uses of it.

    Attributes:
        scope: `KEY` or `ADDRESS`: kind of the holder.
        name: Name of the resource.
        used: Amount that the holder has now.
        each_max: Limit of each holder.
        total_max: Limit of all holders together.
    """

    scope: str
    name: str
    used: int
    each_max: int
    total_max: int


@dataclass(frozen=True, slots=True)
class RateUsage:
    """A rate, and the requests that one holder has left.

    Attributes:
        scope: `KEY` or `ADDRESS`: kind of the holder.
        per_s: Limit in a second; None if there is none.
        left: Requests that the holder has left; None if there is no limit.
    """

    scope: str
    per_s: int | None
    left: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of all quotas and rates by one caller."""

    quotas: Sequence[QuotaUsage]
    rates: Sequence[RateUsage]


class Limits:
    """The quotas and rates of one gateway.

    Attributes:
        requests: Requests in progress. Those that wait for a message count as long polls meanwhile.
        long_polls: Requests that wait for a message.
        streams: WebSockets, by key; `address_streams` counts the same by address.
        waiting_queues: Queues of streams that wait at their brokers for messages.
        tickets: Tickets that are neither used nor too old.
        connections: Open connections, including streams, by address (admission.py).
        unsent_bytes: Bytes of answers and frames that callers have not taken yet, by key. The answer to a batch counts
            before the batch is sent.
        address_unsent_bytes: Bytes of answers to callers without a key, by address.
        bodies: Bytes of requests in memory, by key, or by address while the key is not known yet (bodies.py).
        body_bytes: Quota of `bodies` by key. All other data that a key sends counts there, too.
        key_rates: The limits that keys have of their own (keyrates.py).
        turns: Shares the turns of the event loop among requests and large pieces of work.
        rates: Limits on requests a second by key or address; empty unless settings define them.
    """

    def __init__(self, settings: GatewaySettings, clock: Clock | None = None) -> None:
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
        self.connections = Quota(
            "connections",
            ADDRESS,
            each_max=settings.connections_per_address_max,
            total_max=settings.connections_max,
        )
        self.unsent_bytes = Quota(
            "unsent_bytes", KEY, each_max=settings.key_unsent_bytes_max, total_max=settings.unsent_bytes_max
        )
        self.address_unsent_bytes = Quota(
            "unsent_bytes",
            ADDRESS,
            each_max=settings.address_unsent_bytes_max,
            total_max=max(PUBLIC_UNSENT_BYTES_MAX, settings.address_unsent_bytes_max),
        )
        self.bodies = Bodies(settings, clock or SystemClock())
        self.body_bytes = self.bodies.by_key
        self.turns = Turns()
        self.key_rates = KeyRates(
            self.streams, self.requests, self.long_polls, monotonic_ms=(clock or SystemClock()).monotonic_ms
        )
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
            self.connections,
            self.unsent_bytes,
            self.address_unsent_bytes,
            self.body_bytes,
            self.bodies.by_address,
        )

    def unsent_of(self, key: str | None, address: str) -> "Unsent":
        """Return the count of an answer to a key, or, without a key, to an address."""
        return Unsent(self.address_unsent_bytes, address) if key is None else Unsent(self.unsent_bytes, key)

    def usage(self, holders: Mapping[str, str], now_ms: int) -> Usage:
        """Return the usage of a caller.

        Args:
            holders: The caller's holder for each scope.
            now_ms: Monotonic time in ms.
        """
        return Usage(
            [
                QuotaUsage(
                    quota.scope, quota.name, quota.held_by(holders[quota.scope]), quota.each_max, quota.total_max
                )
                for quota in self.quotas
            ],
            [self._rate_usage(scope, holder, now_ms) for scope, holder in holders.items()],
        )

    def _rate_usage(self, scope: str, holder: str, now_ms: int) -> RateUsage:
        rate = self.rates.get(scope)
        if rate is None:
            return RateUsage(scope, None, None)
        return RateUsage(scope, rate.per_s, rate.allowance(holder, now_ms).left)


class Unsent:
    """Bytes of one answer that count for its caller until the caller has taken them."""

    __slots__ = ("_bytes", "_holder", "_quota")

    def __init__(self, quota: Quota, holder: str) -> None:
        self._quota = quota
        self._holder = holder
        self._bytes = 0

    def take(self, count: int) -> None:
        """Count `count` bytes in place of those counted before.

        An answer of any size may exceed the share, but no further answer starts then: otherwise some answers could
        never be given.

        Raises:
            ProblemError: 429, 503: there is no room.
        """
        self.release()
        self._quota.require_room(self._holder)
        self.take_back(count)

    def take_back(self, count: int) -> None:
        """Count bytes without a check, for an answer that must be given because its work is done."""
        self.release()
        self._quota.take_back(self._holder, count)
        self._bytes = count

    def release(self) -> None:
        """Remove the count."""
        if self._bytes:
            self._quota.give(self._holder, self._bytes)
            self._bytes = 0


class RequestSlot:
    """The slot of one request in progress; a request that waits has a slot among the long polls instead."""

    __slots__ = ("_holder", "_limits")

    def __init__(self, limits: Limits, holder: str) -> None:
        """Take the slot. Raises ProblemError (429, 503)."""
        limits.requests.take(holder)
        self._limits = limits
        self._holder = holder

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Hold a slot among the long polls until the block ends. Raises ProblemError (429, 503)."""
        limits, holder = self._limits, self._holder
        limits.long_polls.take(holder)
        limits.requests.give(holder)
        try:
            yield
        finally:
            limits.long_polls.give(holder)
            limits.requests.take_back(holder)

    def expect_answer(self, size: int) -> Unsent:
        """Count `size` bytes of the answer before it exists. Raises ProblemError (429, 503)."""
        unsent = Unsent(self._limits.unsent_bytes, self._holder)
        unsent.take(size)
        return unsent

    def require_room(self) -> None:
        """Raise ProblemError (429, 503) if the holder reads its answers too slowly to get another one."""
        self._limits.unsent_bytes.require_room(self._holder)

    async def take_turn(self, size: int = 0) -> None:
        """Wait until a piece of work of about `size` bytes may be done (turns.py)."""
        await self._limits.turns.take(self._holder, size)

    def leave(self) -> None:
        """Give the slot back."""
        self._limits.requests.give(self._holder)
