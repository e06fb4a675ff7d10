"""The replies that a name server makes from its tables (pure): routes, members, lists of topics.

Source: RocketMQ 5.3 RouteInfoManager.pickupTopicRouteData, ZoneRouteRPCHook and the topic lists.
"""

from dataclasses import replace

from gantry.model.route import MASTER_ID, BrokerData, QueueData, TopicRoute
from gantry.model.topic import Perm
from services.namesrv.errors import NoRouteError
from services.namesrv.liveness import BrokerKey
from services.namesrv.routetable import RouteTable

# Bits of topicSysFlag.
UNIT = 0x1
UNIT_SUB = 0x2

# Members of a set find each other through this topic, so its route must show the actual members.
_MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"

_FAQ = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def find_route(table: RouteTable, topic: str, *, support_acting_master: bool = False) -> TopicRoute:
    """Return the route of a topic.

    Args:
        table: The tables.
        topic: Name of the topic.
        support_acting_master: Whether to show a slave that acts for a missing master under the master's id.

    Raises:
        NoRouteError: No living broker set serves the topic.
    """
    queues = table.topics.get(topic, {})
    brokers = [table.brokers[name] for name in sorted(queues) if name in table.brokers]
    if not brokers:
        # Clients check the code, and people read the first sentence. RocketMQ's tools print the rest.
        raise NoRouteError(f"No topic route info in name server for the topic: {topic}\n{_FAQ}")
    if support_acting_master and not topic.startswith(_MEMBER_TOPIC_PREFIX):
        brokers = [_with_acting_master(broker, queues[broker.broker_name]) for broker in brokers]
    filter_servers = {}
    if table.filter_servers:
        for broker in brokers:
            for address in broker.broker_addrs.values():
                filter_servers[address] = table.filter_servers.get(BrokerKey(broker.cluster, address), ())
    return TopicRoute(
        queue_datas=tuple(queues[name] for name in sorted(queues)),
        broker_datas=tuple(brokers),
        filter_server_table=filter_servers,
    )


def within_zone(route: TopicRoute, zone_name: str) -> TopicRoute:
    """Return the route without the sets of other zones. A set without a master stays: clients read its slaves."""
    left_out = {
        broker.broker_name
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs and (broker.zone_name or "").lower() != zone_name.lower()
    }
    if not left_out:
        return route
    gone = {
        address
        for broker in route.broker_datas
        if broker.broker_name in left_out
        for address in broker.broker_addrs.values()
    }
    return replace(
        route,
        broker_datas=tuple(broker for broker in route.broker_datas if broker.broker_name not in left_out),
        queue_datas=tuple(queue for queue in route.queue_datas if queue.broker_name not in left_out),
        filter_server_table={
            address: servers for address, servers in route.filter_server_table.items() if address not in gone
        },
    )


def member_addresses(table: RouteTable, cluster: str, broker_name: str) -> dict[int, str]:
    """Return a set's members by id; an empty dict if the set is not registered in this cluster."""
    broker = table.brokers.get(broker_name)
    return dict(broker.broker_addrs) if broker is not None and broker.cluster == cluster else {}


def topics_of_cluster(table: RouteTable, cluster: str) -> list[str]:
    """Return the topics that have a queue on any set of a cluster."""
    members = table.clusters.get(cluster, set())
    return sorted(topic for topic, queues in table.topics.items() if not members.isdisjoint(queues))


def topics_with_flags(table: RouteTable, *, have: int, lack: int = 0) -> list[str]:
    """Return the topics whose topicSysFlag has the bits `have` and not the bits `lack`."""

    def matches(queue: QueueData) -> bool:
        return queue.topic_sys_flag & have == have and not queue.topic_sys_flag & lack

    # All sets have the same flags for a topic, so the first set is enough.
    return sorted(topic for topic, queues in table.topics.items() if matches(next(iter(queues.values()))))


def system_topics(table: RouteTable) -> tuple[list[str], str | None]:
    """Return the names of clusters and broker sets, which are names of topics too, and the address of any broker."""
    names = {*table.clusters, *(name for members in table.clusters.values() for name in members)}
    addresses = (address for broker in table.brokers.values() for address in broker.broker_addrs.values())
    return sorted(names), next(addresses, None)


def _with_acting_master(broker: BrokerData, queue: QueueData) -> BrokerData:
    addresses = dict(broker.broker_addrs)
    if MASTER_ID in addresses or not broker.enable_acting_master or queue.perm & Perm.WRITE:
        return broker
    addresses[MASTER_ID] = addresses.pop(min(addresses))
    return replace(broker, broker_addrs=addresses)
