"""Which brokers are alive, and who has expired (pure).

A broker is known here by cluster and address. It lives as long as it registers or says that it is alive within the
time-out it named itself, and as long as the connection over which it registered is open. Times are monotonic ms, so
that nobody expires because the wall clock was set.

Source: RocketMQ 5.3 RouteInfoManager.brokerLiveTable.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gantry.model.topic import DataVersion

HEARTBEAT_TIMEOUT_MS = 120_000


class Connection(Protocol):
    """What a member registered over; told apart by identity."""

    def close(self, reason: str) -> None:
        """End it."""
        ...


class BrokerKey(NamedTuple):
    """A member of a broker set: two clusters may use the same address, as seen from different networks."""

    cluster: str
    address: str


@dataclass(slots=True)
class LiveBroker:
    """What is known of one living member."""

    key: BrokerKey
    broker_name: str
    broker_id: int
    data_version: DataVersion
    ha_server_address: str
    timeout_ms: int
    connection: Connection
    seen_at_ms: int

    def has_expired(self, now_ms: int) -> bool:
        """Say whether nothing was heard for longer than the time-out."""
        return self.seen_at_ms + self.timeout_ms < now_ms


class LiveTable:
    """All living members.

    Concurrency: one thread.
    """

    __slots__ = ("_brokers",)

    def __init__(self) -> None:
        self._brokers: dict[BrokerKey, LiveBroker] = {}

    def __len__(self) -> int:
        return len(self._brokers)

    def __iter__(self) -> Iterator[LiveBroker]:
        return iter(self._brokers.values())

    def find(self, key: BrokerKey) -> LiveBroker | None:
        """Return what is known of a member, or None."""
        return self._brokers.get(key)

    def put(self, broker: LiveBroker) -> None:
        """Note that a member has registered; replaces what was known of it."""
        self._brokers[broker.key] = broker

    def touch(self, key: BrokerKey, now_ms: int) -> bool:
        """Note that a member is alive; False if it is not known, since an address alone makes no route."""
        broker = self._brokers.get(key)
        if broker is None:
            return False
        broker.seen_at_ms = now_ms
        return True

    def remove(self, key: BrokerKey) -> None:
        """Forget a member."""
        self._brokers.pop(key, None)

    def expired(self, now_ms: int) -> list[LiveBroker]:
        """Return the members of which nothing was heard for too long."""
        return [broker for broker in self._brokers.values() if broker.has_expired(now_ms)]

    def registered_over(self, connection: Connection) -> list[LiveBroker]:
        """Return the members whose last registration came over a connection."""
        return [broker for broker in self._brokers.values() if broker.connection is connection]

    def is_version_current(self, key: BrokerKey, version: DataVersion) -> bool:
        """Say whether a member's tables are known in exactly this version."""
        broker = self._brokers.get(key)
        return broker is not None and broker.data_version == version
