"""The living brokers, and the decision which of them have expired (pure).

A broker is identified by cluster and address. It lives as long as it sends a registration or heart-beat within its own
time-out, and as long as the connection of its registration is open. Times are monotonic ms, so that a change of the
wall clock does not make brokers expire.

Source: RocketMQ 5.3 RouteInfoManager.brokerLiveTable.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gantry.model.topic import DataVersion

HEARTBEAT_TIMEOUT_MS = 120_000


class Connection(Protocol):
    """The connection of a member's registration. Connections are compared by identity."""

    def close(self, reason: str) -> None:
        """Close the connection."""
        ...


class BrokerKey(NamedTuple):
    """The key of a member of a broker set.

    It contains the cluster, because two clusters in different networks may use the same address.
    """

    cluster: str
    address: str


@dataclass(slots=True)
class LiveBroker:
    """The state of one living member."""

    key: BrokerKey
    broker_name: str
    broker_id: int
    data_version: DataVersion
    ha_server_address: str
    timeout_ms: int
    connection: Connection
    seen_at_ms: int

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the member has been silent for longer than its time-out."""
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
        """Return the state of a member, or None if it is not known."""
        return self._brokers.get(key)

    def put(self, broker: LiveBroker) -> None:
        """Store the state of a member that has registered; replace an earlier state."""
        self._brokers[broker.key] = broker

    def touch(self, key: BrokerKey, now_ms: int) -> bool:
        """Record a sign of life of a member. Return False for an unknown member: an address alone makes no route."""
        broker = self._brokers.get(key)
        if broker is None:
            return False
        assert now_ms >= broker.seen_at_ms, f"monotonic time went from {broker.seen_at_ms} to {now_ms} ms"
        broker.seen_at_ms = now_ms
        return True

    def remove(self, key: BrokerKey) -> None:
        """Remove a member."""
        self._brokers.pop(key, None)

    def expired(self, now_ms: int) -> list[LiveBroker]:
        """Return the members that have been silent for longer than their time-out."""
        return [broker for broker in self._brokers.values() if broker.has_expired(now_ms)]

    def registered_over(self, connection: Connection) -> list[LiveBroker]:
        """Return the members whose last registration came over this connection."""
        return [broker for broker in self._brokers.values() if broker.connection is connection]

    def is_version_current(self, key: BrokerKey, version: DataVersion) -> bool:
        """Return whether the member is known with exactly this version of its tables."""
        broker = self._brokers.get(key)
        return broker is not None and broker.data_version == version
