"""The tables of topics, broker sets and clusters, and the effect of registrations on them (pure).

Four tables change together: topic → broker name → QueueData; broker name → BrokerData; cluster → broker names; and
the living members (liveness.py). A registration is checked as a whole before anything changes, so a refused one
changes nothing.

An acting master may serve a broker set. With `enable_acting_master`, while there is no master, the slave with the
lowest id registers the topics, without their write bit.

Source: RocketMQ 5.3 RouteInfoManager; docs/formats/remoting.md for the messages.

Concurrency: one thread. No call waits for anything.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gantry.model.route import MASTER_ID, BrokerData, QueueData
from gantry.model.topic import DataVersion, Perm, TopicConfig
from services.namesrv.errors import RefusedError, TableFullError
from services.namesrv.liveness import HEARTBEAT_TIMEOUT_MS, BrokerKey, Connection, LiveBroker, LiveTable

# RocketMQ has no limits here. These limits keep a broken or hostile peer from filling the memory. They are far above
# the size of real clusters.
BROKERS_MAX = 4_096
TOPICS_MAX = 200_000

_PERM_READ_WRITE = int(Perm.READ | Perm.WRITE)


@dataclass(frozen=True, slots=True)
class Registration:
    """The data of a broker's registration."""

    key: BrokerKey
    broker_name: str
    broker_id: int
    topics: Mapping[str, TopicConfig]
    data_version: DataVersion = field(default_factory=DataVersion)
    ha_server_address: str = ""
    filter_servers: tuple[str, ...] = ()
    heartbeat_timeout_ms: int = HEARTBEAT_TIMEOUT_MS
    enable_acting_master: bool | None = None
    """None if the broker does not know of acting masters."""
    zone_name: str | None = None


class LowestIdChange(NamedTuple):
    """The change of the lowest broker id of a set (NOTIFY_MIN_BROKER_ID_CHANGE), and the addresses to notify."""

    broker_name: str
    lowest_id: int
    lowest_address: str
    offline_address: str | None
    ha_address: str | None
    notify: tuple[str, ...]


class RegistrationResult(NamedTuple):
    """The result of a registration: the content of the reply, and the notification of other members."""

    master_address: str | None = None
    master_ha_address: str | None = None
    change: LowestIdChange | None = None
    is_stale: bool = False
    """Whether the registration came from an older incarnation of a member whose successor is registered.

    The broker gets a reply, but the tables ignore the registration.
    """


class Removal(NamedTuple):
    """The removal of a member, and the notification of other members."""

    key: BrokerKey
    broker_name: str
    was_known: bool = False
    change: LowestIdChange | None = None


class RouteTable:
    """The tables of a name server."""

    def __init__(self, *, brokers_max: int = BROKERS_MAX, topics_max: int = TOPICS_MAX) -> None:
        self.live = LiveTable()
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.clusters: dict[str, set[str]] = {}
        self.filter_servers: dict[BrokerKey, tuple[str, ...]] = {}
        self._brokers_max = brokers_max
        self._topics_max = topics_max

    def register(
        self, registration: Registration, *, connection: Connection, now_ms: int, delete_missing_topics: bool = False
    ) -> RegistrationResult:
        """Apply a registration to the tables.

        Args:
            registration: The registration.
            connection: Connection of the registration. When it closes, the broker is removed.
            now_ms: Monotonic time.
            delete_missing_topics: Whether to remove the broker's topics that the registration does not name
                (deleteTopicWithBrokerRegistration).

        Raises:
            RefusedError: The member is not registered yet, and the registration names exactly one topic. Brokers send
                each new topic alone. If such a registration were the first, a broker with many topics would have only
                this one.
            TableFullError: The registration would make a table larger than its limit.
        """
        before = self.brokers.get(registration.broker_name)
        # If a set moves to another cluster, it does not keep its members of the old cluster.
        is_moving = before is not None and before.cluster != registration.key.cluster
        addresses = dict(before.broker_addrs) if before is not None and not is_moving else {}
        lowest_before = min(addresses) if addresses else MASTER_ID
        # A slave that became master keeps its address, so its old id must go.
        for broker_id in [one for one, address in addresses.items() if address == registration.key.address]:
            if broker_id != registration.broker_id:
                del addresses[broker_id]
        if self._has_newer_holder(registration, addresses.get(registration.broker_id)):
            self.unregister(registration.key, registration.broker_name)
            return RegistrationResult(is_stale=True)
        if registration.broker_id not in addresses and len(registration.topics) == 1:
            raise RefusedError(
                f"register broker failed: {registration.broker_name} at {registration.key.address} is not registered yet, "
                "and its first registration may not name exactly one topic"
            )
        self._check_room(registration, is_new=before is None)
        known = self.live.find(registration.key)
        if known is not None and known.broker_name != registration.broker_name:
            self.unregister(registration.key, known.broker_name)  # The member got another broker name.
        is_first = registration.broker_id not in addresses
        addresses[registration.broker_id] = registration.key.address
        self._put_broker(registration, before, addresses)
        self._put_topics(registration, addresses, is_first=is_first, delete_missing=delete_missing_topics)
        self.live.put(
            LiveBroker(
                key=registration.key,
                broker_name=registration.broker_name,
                broker_id=registration.broker_id,
                data_version=registration.data_version,
                ha_server_address=registration.ha_server_address,
                timeout_ms=registration.heartbeat_timeout_ms,
                connection=connection,
                seen_at_ms=now_ms,
            )
        )
        if registration.filter_servers:
            self.filter_servers[registration.key] = registration.filter_servers
        else:
            self.filter_servers.pop(registration.key, None)
        self._assert_registered(registration)
        change = None
        if registration.broker_id < lowest_before:
            change = self._lowest_id_change(
                registration.broker_name, offline=None, ha_address=registration.ha_server_address
            )
        return self._result(registration, addresses, change)

    def unregister(self, key: BrokerKey, broker_name: str) -> Removal:
        """Remove a member if it is known. If it was the last member of its set, remove the set and its queues too."""
        known = self.live.find(key)
        if known is not None and known.broker_name != broker_name:
            return Removal(key, broker_name)  # The address now belongs to a member of another set.
        was_live = known is not None
        self.live.remove(key)
        self.filter_servers.pop(key, None)
        broker = self.brokers.get(broker_name)
        # If the set has moved to another cluster, a member that remained in the old one must not change it.
        if broker is None or broker.cluster != key.cluster:
            return Removal(key, broker_name, was_live)
        left = {broker_id: address for broker_id, address in broker.broker_addrs.items() if address != key.address}
        if len(left) == len(broker.broker_addrs):
            return Removal(key, broker_name, was_live)
        change = None
        if left:
            lowest_has_gone = min(broker.broker_addrs) not in left
            self.brokers[broker_name] = replace(broker, broker_addrs=left)
            if broker.enable_acting_master and MASTER_ID not in left:
                self._change_perms(broker_name, lambda perm: perm & ~Perm.WRITE)
            if lowest_has_gone:
                change = self._lowest_id_change(broker_name, offline=key.address, ha_address=None)
        else:
            self._forget_broker(broker)
        assert self._sets_in_clusters() == len(self.brokers), "each broker set belongs to one cluster"
        return Removal(key, broker_name, True, change)

    def expire(self, now_ms: int) -> list[tuple[LiveBroker, Removal]]:
        """Remove the members that have been silent for longer than their time-out."""
        return [(broker, self.unregister(broker.key, broker.broker_name)) for broker in self.live.expired(now_ms)]

    def connection_closed(self, connection: Connection) -> list[Removal]:
        """Remove the members that registered over a connection that is closed now."""
        gone = self.live.registered_over(connection)
        return [self.unregister(broker.key, broker.broker_name) for broker in gone]

    def wipe_write_perm(self, broker_name: str) -> int:
        """Remove the write bit from all queues of a set. Return the number of its topics."""
        return self._change_perms(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Set the read and write bits on all queues of a set. Return the number of its topics."""
        return self._change_perms(broker_name, lambda _: _PERM_READ_WRITE)

    def register_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> int:
        """Add a topic's queues on registered sets, ignore the others, and return the number of added sets.

        Raises:
            TableFullError: The table of topics has reached its limit.
        """
        known = [queue for queue in queue_datas if queue.broker_name in self.brokers]
        if known:
            if topic not in self.topics and len(self.topics) >= self._topics_max:
                raise TableFullError(f"topic {topic}: there are {len(self.topics)} topics, which is the limit")
            self.topics.setdefault(topic, {}).update({queue.broker_name: queue for queue in known})
        return len(known)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, or only its queues on the sets of one cluster."""
        if cluster is None:
            self.topics.pop(topic, None)
            return
        for broker_name in self.clusters.get(cluster, set()) & self.topics.get(topic, {}).keys():
            self._drop_queue(topic, broker_name)

    def _assert_registered(self, registration: Registration) -> None:
        """Check the state of the tables after a registration. A failure is a bug and ends the process."""
        broker_name, broker_id = registration.broker_name, registration.broker_id
        addresses = self.brokers[broker_name].broker_addrs
        assert addresses[broker_id] == registration.key.address, f"{broker_name}: id {broker_id} has another address"
        assert len(set(addresses.values())) == len(addresses), f"{broker_name}: one address has two ids"
        assert self._sets_in_clusters() == len(self.brokers), "each broker set belongs to one cluster"
        assert len(self.brokers) <= self._brokers_max, f"{len(self.brokers)} broker sets"
        assert len(self.topics) <= self._topics_max, f"{len(self.topics)} topics"

    def _sets_in_clusters(self) -> int:
        return sum(len(members) for members in self.clusters.values())

    def _has_newer_holder(self, registration: Registration, holder_address: str | None) -> bool:
        if holder_address is None or holder_address == registration.key.address:
            return False
        holder = self.live.find(BrokerKey(registration.key.cluster, holder_address))
        return holder is not None and holder.data_version.state_version > registration.data_version.state_version

    def _check_room(self, registration: Registration, *, is_new: bool) -> None:
        if is_new and len(self.brokers) >= self._brokers_max:
            raise TableFullError(
                f"register broker failed: brokerName {registration.broker_name}: there are {len(self.brokers)} broker sets, "
                "which is the limit"
            )
        added = sum(topic not in self.topics for topic in registration.topics)
        if added and len(self.topics) + added > self._topics_max:
            raise TableFullError(
                f"register broker failed: {registration.broker_name} brings {added} new topics to the {len(self.topics)} that "
                f"are registered, at most {self._topics_max} are allowed"
            )

    def _put_broker(self, registration: Registration, before: BrokerData | None, addresses: dict[int, str]) -> None:
        cluster = registration.key.cluster
        if before is not None and before.cluster != cluster:
            self._leave_cluster(before.cluster, registration.broker_name)
        self.clusters.setdefault(cluster, set()).add(registration.broker_name)
        self.brokers[registration.broker_name] = BrokerData(
            cluster=cluster,
            broker_name=registration.broker_name,
            broker_addrs=addresses,
            zone_name=registration.zone_name,
            enable_acting_master=bool(registration.enable_acting_master),
        )

    def _put_topics(
        self, registration: Registration, addresses: Mapping[int, str], *, is_first: bool, delete_missing: bool
    ) -> None:
        is_master = registration.broker_id == MASTER_ID
        is_prime_slave = (
            not is_master and registration.enable_acting_master is not None and registration.broker_id == min(addresses)
        )
        if not is_master and not is_prime_slave:
            return
        # A single topic is an increment and not the whole table, so the topics it does not name stay.
        if delete_missing and len(registration.topics) != 1:
            for topic in [topic for topic, queues in self.topics.items() if registration.broker_name in queues]:
                if topic not in registration.topics:
                    self._drop_queue(topic, registration.broker_name)
        is_current = not is_first and self.live.is_version_current(registration.key, registration.data_version)
        wipes_write = is_prime_slave and bool(registration.enable_acting_master)
        for topic, config in registration.topics.items():
            queues = self.topics.setdefault(topic, {})
            if is_current and registration.broker_name in queues:
                continue
            queues[registration.broker_name] = QueueData(
                broker_name=registration.broker_name,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm & ~Perm.WRITE if wipes_write else config.perm,
                topic_sys_flag=config.topic_sys_flag,
            )

    def _result(
        self, registration: Registration, addresses: Mapping[int, str], change: LowestIdChange | None
    ) -> RegistrationResult:
        master_address = addresses.get(MASTER_ID)
        if registration.broker_id == MASTER_ID or master_address is None:
            return RegistrationResult(change=change)
        master = self.live.find(BrokerKey(registration.key.cluster, master_address))
        if master is None:
            return RegistrationResult(change=change)
        return RegistrationResult(master_address, master.ha_server_address, change)

    def _lowest_id_change(self, broker_name: str, *, offline: str | None, ha_address: str | None) -> LowestIdChange:
        addresses = self.brokers[broker_name].broker_addrs
        lowest_id = min(addresses)
        # A member that joins knows about it, so only the others are notified. If a member has left, all are notified.
        notify = tuple(
            address
            for broker_id, address in sorted(addresses.items())
            if offline is not None or len(addresses) == 1 or broker_id != lowest_id
        )
        return LowestIdChange(broker_name, lowest_id, addresses[lowest_id], offline, ha_address, notify)

    def _change_perms(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self.topics.values():
            queue = queues.get(broker_name)
            if queue is not None:
                queues[broker_name] = replace(queue, perm=int(change(queue.perm)))
                count += 1
        return count

    def _forget_broker(self, broker: BrokerData) -> None:
        del self.brokers[broker.broker_name]
        self._leave_cluster(broker.cluster, broker.broker_name)
        for topic in [topic for topic, queues in self.topics.items() if broker.broker_name in queues]:
            self._drop_queue(topic, broker.broker_name)

    def _leave_cluster(self, cluster: str, broker_name: str) -> None:
        members = self.clusters[cluster]
        assert broker_name in members, f"{broker_name} is not in cluster {cluster}"
        members.discard(broker_name)
        if not members:
            del self.clusters[cluster]

    def _drop_queue(self, topic: str, broker_name: str) -> None:
        queues = self.topics[topic]
        queues.pop(broker_name, None)
        if not queues:
            del self.topics[topic]
