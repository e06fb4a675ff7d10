"""Health: whether the gateway can serve, and which parts are down.

Load balancers ask several times a second, so the answer is cached for a second.

Name servers notice late that a broker has died, and forget it some time after. So each check makes sure that there is a
connection to every master, which costs nothing if there is one already. A broker that name servers no longer name
counts as down for as long as the gateway remembers it (brokers.py).
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.runtime.clock import Clock
from services.gateway.db.errors import MetadataUnavailableError
from services.gateway.usecases.cluster.brokers import KnownSet, merge_known_sets
from services.gateway.usecases.metadata import Metadata

CACHED_MS: Final = 1_000
TIMEOUT_MS: Final = 2_000
# Shorter than the time-out of load balancers. An attempt that takes longer continues, and the next check sees its
# result.
CONNECT_TIMEOUT_MS: Final = 300
_NAMED_MAX: Final = 10


class ReadyStatus(enum.StrEnum):
    """Whether the gateway can serve."""

    READY = "ready"
    DEGRADED = "degraded"  # Some requests fail.
    UNREADY = "unready"


@dataclass(frozen=True, slots=True)
class FailedPart:
    """A part that is down.

    Attributes:
        part: Name of the part: `brokers`, `gateway`, `keys`, `metadata` or `namesrv`.
        detail: Reason.
        is_fatal: Whether nothing works without the part.
    """

    part: str
    detail: str
    is_fatal: bool


@dataclass(frozen=True, slots=True)
class Readiness:
    """The status of the gateway, and the parts that are down if it is not `ready`."""

    status: ReadyStatus
    failed_parts: Sequence[FailedPart] = ()


class Health:
    """The checks that readiness depends on.

    Concurrency: the event loop's thread. Concurrent calls share one check.
    """

    def __init__(
        self, engine: ClientEngine, metadata: Metadata, *, clock: Clock, keys_loaded: Callable[[], bool]
    ) -> None:
        self._engine = engine
        self._metadata = metadata
        self._clock = clock
        self._keys_loaded = keys_loaded
        self._lock = asyncio.Lock()
        self._seen: tuple[int, Readiness] | None = None
        self._known: Mapping[str, KnownSet] = {}
        self.is_draining = False
        """Whether load balancers should turn to another gateway; requests are still served."""
        self.is_stopping = False

    async def readiness(self) -> Readiness:
        """Return whether the gateway can serve."""
        if self.is_draining or self.is_stopping:
            return judge([FailedPart("gateway", "it is stopping", is_fatal=True)])
        async with self._lock:
            now_ms = self._clock.monotonic_ms()
            if self._seen is None or now_ms - self._seen[0] >= CACHED_MS:
                looks: list[Awaitable[FailedPart | None]] = [self._check_brokers(), self._check_metadata()]
                self._seen = (now_ms, judge([found for found in await asyncio.gather(*looks) if found is not None]))
            return self._seen[1]

    async def _check_brokers(self) -> FailedPart | None:
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1_000):
                cluster = await self._engine.cluster_info()
        except TimeoutError:
            return FailedPart("namesrv", f"no name server answered within {TIMEOUT_MS} ms", is_fatal=True)
        except ClientError as error:
            return FailedPart("namesrv", str(error), is_fatal=True)
        self._known = merge_known_sets(self._known, cluster.broker_addr_table, self._clock.monotonic_ms())
        reasons = await asyncio.gather(*(self._check_broker(name) for name in sorted(self._known)))
        away = [reason for reason in reasons if reason is not None]
        if not cluster.broker_addr_table:
            return FailedPart("brokers", "no broker is registered", is_fatal=True)
        if not away:
            return None
        more = f"; and {len(away) - _NAMED_MAX} more" if len(away) > _NAMED_MAX else ""
        return FailedPart("brokers", "; ".join(away[:_NAMED_MAX]) + more, is_fatal=len(away) == len(reasons))

    async def _check_broker(self, name: str) -> str | None:
        """Return the reason why a broker cannot be used, or None."""
        known = self._known[name]
        address = known.data.master_address
        if address is None:
            return f"broker {name}: its master is not registered"
        if known.missing_since_ms is not None:
            return f"broker {name}: it is no longer registered"
        try:
            await self._engine.reach(address, timeout_ms=CONNECT_TIMEOUT_MS)
        except ClientError as error:
            return f"broker {name}: {error}"
        return None

    async def _check_metadata(self) -> FailedPart | None:
        database = self._metadata.database
        if database is None:
            return FailedPart("metadata", "no database is configured", is_fatal=not self._keys_loaded())
        try:
            await database.ping(within_ms=TIMEOUT_MS)
        except MetadataUnavailableError as error:
            # Without Postgres, messages still flow, but only for callers whose keys are loaded.
            return FailedPart("metadata", error.reason, is_fatal=not self._keys_loaded())
        return None if self._keys_loaded() else FailedPart("keys", "the API keys are not loaded yet", is_fatal=True)


def judge(failed: Sequence[FailedPart]) -> Readiness:
    """Return the readiness of the gateway while these parts are down; pure."""
    if any(part.is_fatal for part in failed):
        return Readiness(ReadyStatus.UNREADY, failed)
    return Readiness(ReadyStatus.DEGRADED if failed else ReadyStatus.READY, failed)
