"""Scripted brokers for reports: they answer only what a test gives them."""

from collections.abc import Mapping
from typing import Any

from gantry.model.group import SubscriptionGroup
from gantry.model.topic import TopicConfig
from gantry.remoting.bodies import ConsumerConnection
from gantry.remoting.bodies.config import SubscriptionGroupWrapper, TopicConfigSerializeWrapper
from gantry.remoting.bodies.offsets import ConsumerOffsetWrapper
from gantry.remoting.bodies.queuestates import QueueState, QueueStates
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from tests.support.scriptedpeer import ScriptedCluster, ScriptedOutcome, ok, refuse


class SurveyedBroker:
    """One broker set at `NAME:10911` of a ScriptedCluster."""

    def __init__(self, cluster: ScriptedCluster, name: str, topics: Mapping[str, int]) -> None:
        self.name = name
        self.address = f"{name}:10911"
        self.topics = dict(topics)
        self.committed: dict[str, dict[int, int]] = {}
        """`topic@group` → queue id → offset."""
        self.groups: dict[str, SubscriptionGroup] = {}
        self.ends: dict[tuple[str, int], tuple[int, int]] = {}
        """(topic, queue id) → min, max."""
        self.connections: dict[str, ConsumerConnection] = {}
        self._transport = cluster.transport
        for topic, queues in topics.items():
            known = [data.broker_name for data in cluster.routes[topic].queue_datas] if topic in cluster.routes else []
            cluster.topic(topic, *known, name, queues=queues)
        self.does(
            {
                RequestCode.GET_ALL_CONSUMER_OFFSET: self._offsets,
                RequestCode.GET_ALL_TOPIC_CONFIG: self._topics,
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._groups,
                RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
                RequestCode.GANTRY_QUEUE_STATES: self._states,
            }
        )

    def does(self, scripts: Mapping[int, Any]) -> None:
        """Set the scripts of these requests."""
        self._transport.at(self.address, scripts)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group's committed offset."""
        self.committed.setdefault(f"{topic}@{group}", {})[queue_id] = offset

    def _offsets(self, request: RemotingCommand) -> ScriptedOutcome:
        return ok(request, body=ConsumerOffsetWrapper(offset_table=self.committed).encode())

    def _topics(self, request: RemotingCommand) -> ScriptedOutcome:
        table = {name: TopicConfig(name, queues, queues) for name, queues in self.topics.items()}
        return ok(request, body=TopicConfigSerializeWrapper(topic_config_table=table).encode())

    def _groups(self, request: RemotingCommand) -> ScriptedOutcome:
        return ok(request, body=SubscriptionGroupWrapper(subscription_group_table=self.groups).encode())

    def _connections(self, request: RemotingCommand) -> ScriptedOutcome:
        found = self.connections.get(request.ext_fields["consumerGroup"])
        if found is None:
            return refuse(ResponseCode.CONSUMER_NOT_ONLINE)(request)
        return ok(request, body=found.encode())

    def _states(self, request: RemotingCommand) -> ScriptedOutcome:
        topic = request.ext_fields["topic"]
        if topic not in self.topics:
            return refuse(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")(request)
        queues = [
            QueueState(queue_id=queue_id, min_offset=first, max_offset=end)
            for queue_id in range(self.topics[topic])
            for first, end in [self.ends.get((topic, queue_id), (0, 0))]
        ]
        return ok(request, body=QueueStates(broker_name=self.name, queues=queues).encode())
