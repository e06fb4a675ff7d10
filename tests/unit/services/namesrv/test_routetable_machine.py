"""Registrations, unregistrations and timeouts in any order leave consistent tables."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gantry.model.route import QueueData
from gantry.model.topic import DataVersion, TopicConfig
from services.namesrv.errors import RefusedError
from services.namesrv.liveness import BrokerKey
from services.namesrv.routetable import Registration, RouteTable
from services.namesrv.routeviews import find_route

NAMES = st.sampled_from(["a", "b"])
CLUSTERS = st.sampled_from(["C", "D"])
ADDRESSES = st.sampled_from(["h:1", "h:2", "h:3"])
TOPICS = st.sets(st.sampled_from(["T1", "T2", "T3"]))


class Tables(RuleBasedStateMachine):
    """Checks the invariants between the tables after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(brokers_max=2, topics_max=3)
        self.now_ms = 0

    @rule(
        name=NAMES,
        cluster=CLUSTERS,
        address=ADDRESSES,
        broker_id=st.integers(0, 2),
        topics=TOPICS,
        state=st.integers(0, 1),
        counter=st.integers(0, 2),
        acting=st.sampled_from([None, False, True]),
        deletes=st.booleans(),
    )
    def register(self, name, cluster, address, broker_id, topics, state, counter, acting, deletes) -> None:
        registration = Registration(
            BrokerKey(cluster, address),
            name,
            broker_id,
            {topic: TopicConfig(topic) for topic in topics},
            DataVersion(state, 0, counter),
            heartbeat_timeout_ms=100,
            enable_acting_master=acting,
        )
        try:
            answer = self.table.register(
                registration, connection=address, now_ms=self.now_ms, delete_missing_topics=deletes
            )
        except RefusedError:
            return
        if not answer.is_stale:
            assert self.table.brokers[name].broker_addrs[broker_id] == address

    @rule(name=NAMES, cluster=CLUSTERS, address=ADDRESSES)
    def unregister(self, name, cluster, address) -> None:
        self.table.unregister(BrokerKey(cluster, address), name)

    @rule(address=ADDRESSES)
    def close(self, address) -> None:
        self.table.connection_closed(address)

    @rule(ms=st.integers(0, 80))
    def wait(self, ms) -> None:
        self.now_ms += ms
        self.table.expire(self.now_ms)
        assert all(not broker.has_expired(self.now_ms) for broker in self.table.live)

    @rule(topic=st.sampled_from(["T1", "T2"]), cluster=st.none() | CLUSTERS)
    def delete(self, topic, cluster) -> None:
        self.table.delete_topic(topic, cluster)

    @rule(name=NAMES)
    def add_topic(self, name) -> None:
        if len(self.table.topics) < 3 or "T3" in self.table.topics:
            self.table.register_topic("T3", [QueueData(name, 1, 1, 6)])

    @invariant()
    def the_tables_agree(self) -> None:
        table = self.table
        members = {name for names in table.clusters.values() for name in names}
        assert members == set(table.brokers)
        assert all(
            table.brokers[name].cluster == cluster for cluster, names in table.clusters.items() for name in names
        )
        assert all(broker.broker_addrs for broker in table.brokers.values())
        for topic, queues in table.topics.items():
            assert queues
            assert set(queues) <= set(table.brokers)
            assert len(find_route(table, topic, support_acting_master=True).broker_datas) == len(queues)
        for broker in table.brokers.values():
            addresses = list(broker.broker_addrs.values())
            assert len(addresses) == len(set(addresses))
            for address in addresses:  # Every member of a set has an entry that can expire.
                live = table.live.find(BrokerKey(broker.cluster, address))
                assert live is not None
                assert live.broker_name == broker.broker_name


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
