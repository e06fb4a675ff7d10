"""Typed bodies in the JSON dialect of fastjson, with one module for each family of requests."""

from gantry.remoting.bodies.config import (
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
    decode_data_version,
    decode_subscription_group,
    decode_subscription_groups,
    decode_topic_config,
    decode_topic_configs,
    encode_data_version,
    encode_subscription_group,
    encode_subscription_groups,
    encode_topic_config,
    encode_topic_configs,
)
from gantry.remoting.bodies.connections import (
    ClientConnection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
    ProducerConnection,
)
from gantry.remoting.bodies.heartbeat import CheckClientConfig, ConsumerData, HeartbeatData
from gantry.remoting.bodies.locks import LockedQueues, LockRequest
from gantry.remoting.bodies.offsets import ConsumerOffsetWrapper, DelayOffsetWrapper, OffsetsBody
from gantry.remoting.bodies.pop import (
    BatchAck,
    BatchAckRequest,
    BatchAckResponse,
    MessageRequestMode,
    MessageRequestModes,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueueAssignment,
    RefusedAck,
)
from gantry.remoting.bodies.properties import decode_properties_text, encode_properties_text
from gantry.remoting.bodies.registration import RegisterBrokerBody
from gantry.remoting.bodies.route import BrokerMemberGroup, ClusterInfo, TopicRouteData
from gantry.remoting.bodies.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeStats,
    OffsetWrapper,
    TopicOffset,
    TopicStatsTable,
)
from gantry.remoting.bodies.tables import ConsumerIdList, GroupList, KVTable, TopicList

__all__ = [
    "BatchAck",
    "BatchAckRequest",
    "BatchAckResponse",
    "BrokerMemberGroup",
    "BrokerStatsData",
    "BrokerStatsItem",
    "CheckClientConfig",
    "ClientConnection",
    "ClusterInfo",
    "ConsumeStats",
    "ConsumeStatus",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerIdList",
    "ConsumerOffsetWrapper",
    "ConsumerRunningInfo",
    "DelayOffsetWrapper",
    "GroupList",
    "HeartbeatData",
    "KVTable",
    "LockRequest",
    "LockedQueues",
    "MessageRequestMode",
    "MessageRequestModes",
    "OffsetWrapper",
    "OffsetsBody",
    "ProcessQueueInfo",
    "ProducerConnection",
    "QueryAssignmentRequest",
    "QueryAssignmentResponse",
    "QueueAssignment",
    "RefusedAck",
    "RegisterBrokerBody",
    "SubscriptionGroupWrapper",
    "TopicConfigSerializeWrapper",
    "TopicList",
    "TopicOffset",
    "TopicRouteData",
    "TopicStatsTable",
    "decode_data_version",
    "decode_properties_text",
    "decode_subscription_group",
    "decode_subscription_groups",
    "decode_topic_config",
    "decode_topic_configs",
    "encode_data_version",
    "encode_properties_text",
    "encode_subscription_group",
    "encode_subscription_groups",
    "encode_topic_config",
    "encode_topic_configs",
]
