"""Requests of tools about topics: create and change (17, 18), delete (215), read (21, 351).

Tools also ask for the groups that consume a topic (300) and for the system's topics (305). The broker replies to a
change once it is on disk and the reachable name servers know it, or their time is up. So the next request of a tool
finds the route there.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from gantry.model import names
from gantry.model.errors import InvalidNameError
from gantry.model.topic import MULTI_TAG, SINGLE_TAG, TopicConfig
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies import (
    GroupList,
    TopicConfigSerializeWrapper,
    TopicList,
    decode_topic_configs,
    encode_topic_config,
)
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import (
    CreateTopicHeader,
    DeleteTopicHeader,
    GetTopicConfigHeader,
    QueryTopicConsumeByWhoHeader,
)
from gantry.runtime.clock import Clock
from services.broker.assembly import Broker
from services.broker.identity import BrokerIdentity
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import QUEUE_NUMS_MAX, TOPICS_MAX, TopicTable, changed_attributes
from services.broker.topicdeletion import TopicDeletion

_PERM_MAX = 7


class TopicAdminProcessor:
    """Answers requests of tools about topics."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        offsets: OffsetTable,
        consumers: ConsumerTable,
        deletion: TopicDeletion,
        identity: BrokerIdentity,
        clock: Clock,
        wait_until_announced: Callable[[], Awaitable[None]],
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._deletion = deletion
        self._identity = identity
        self._clock = clock
        self._wait_until_announced = wait_until_announced

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.UPDATE_AND_CREATE_TOPIC: self.create,
                code.UPDATE_AND_CREATE_TOPIC_LIST: self.create_list,
                code.DELETE_TOPIC_IN_BROKER: self.delete,
                code.GET_TOPIC_CONFIG: self.config,
                code.GET_ALL_TOPIC_CONFIG: self.all_configs,
                code.QUERY_TOPIC_CONSUME_BY_WHO: self.consumed_by,
                code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            }
        )

    async def create(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """17: create or change one topic."""
        header = CreateTopicHeader.from_ext(request.ext_fields)
        known = self._topics.find(header.topic)
        try:
            attributes = changed_attributes(
                {} if known is None else known.attributes, header.attributes or "", creating=known is None
            )
        except ValueError as error:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            order=bool(header.order),
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            attributes=attributes,
        )
        self._check(config)
        self._check_room([config.topic_name])
        self._topics.put(config, self._clock.now_ms())
        await self._wait_until_announced()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    async def create_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """18: create or change several topics, all or none."""
        configs = decode_topic_configs(request.body_bytes)
        for config in configs:
            self._check(config)
        if len({config.topic_name for config in configs}) != len(configs):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "topicConfigList: a topic stands twice in it")
        self._check_room(config.topic_name for config in configs)
        now_ms = self._clock.now_ms()
        for config in configs:
            self._topics.put(config, now_ms)
        await self._wait_until_announced()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    async def delete(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """215: delete a topic, its queues and its committed offsets. The records stay until their files are removed."""
        topic = DeleteTopicHeader.from_ext(request.ext_fields).topic
        self._check_name(topic)
        if await self._deletion.delete(topic):
            await self._wait_until_announced()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """351: return the configuration of one topic."""
        topic = GetTopicConfigHeader.from_ext(request.ext_fields).topic
        config = self._topics.find(topic)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=encode_topic_config(config))

    def all_configs(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """21: return the configurations of all topics."""
        version, table = self._topics.snapshot()
        body = TopicConfigSerializeWrapper(topic_config_table=table, data_version=version).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def consumed_by(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """300: return the groups that have a subscription to a topic or a committed offset on it."""
        topic = QueryTopicConsumeByWhoHeader.from_ext(request.ext_fields).topic
        groups = dict.fromkeys([*self._consumers.groups_of(topic), *self._offsets.groups_of(topic)])
        return RemotingCommand.response_to(
            request, ResponseCode.SUCCESS, body=GroupList(group_list=list(groups)).encode()
        )

    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """305: return the topics that belong to the system."""
        identity = self._identity
        topics = [
            topic
            for topic in dict.fromkeys([*names.SYSTEM_TOPICS, *self._topics.all()])
            if names.is_system_topic(topic, identity.cluster, identity.name)
        ]
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=TopicList(topic_list=topics).encode())

    def _check_room(self, topics: Iterable[str]) -> None:
        new = sum(self._topics.find(topic) is None for topic in topics)
        if new and len(self._topics) + new > TOPICS_MAX:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"there are {len(self._topics)} topics, no more than {TOPICS_MAX} are allowed",
            )

    def _check(self, config: TopicConfig) -> None:
        self._check_name(config.topic_name)
        if self._topics.is_closed(config.topic_name):
            raise RefusalError(ResponseCode.SYSTEM_BUSY, f"topic {config.topic_name} is being deleted; try again")
        for field, value in (("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums)):
            if not 0 <= value <= QUEUE_NUMS_MAX:
                raise _invalid(field, value, f"is not within 0 and {QUEUE_NUMS_MAX}")
        if config.read_queue_nums == config.write_queue_nums == 0:
            raise _invalid("readQueueNums", 0, "and writeQueueNums are both 0: the topic would have no queue")
        if not 0 <= config.perm <= _PERM_MAX:
            raise _invalid("perm", config.perm, f"is not within 0 and {_PERM_MAX}")
        if config.topic_filter_type not in {SINGLE_TAG, MULTI_TAG}:
            raise _invalid("topicFilterType", config.topic_filter_type, f"is neither {SINGLE_TAG} nor {MULTI_TAG}")

    def _check_name(self, topic: str) -> None:
        is_retry = names.is_retry_topic(topic)
        try:
            names.check_topic(topic, length_max=names.RETRY_TOPIC_LENGTH_MAX if is_retry else names.TOPIC_LENGTH_MAX)
        except InvalidNameError as error:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if names.is_system_topic(topic, self._identity.cluster, self._identity.name):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")


def _invalid(field: str, value: object, reason: str) -> RefusalError:
    return RefusalError(ResponseCode.INVALID_PARAMETER, f"{field}={value}: {reason}")


def build(broker: Broker) -> TopicAdminProcessor:
    """Build the processor from the broker's parts."""
    tables = broker.tables
    return TopicAdminProcessor(
        topics=tables.topics,
        offsets=tables.offsets,
        consumers=tables.consumers,
        deletion=broker.deletion,
        identity=broker.identity,
        clock=broker.clock,
        wait_until_announced=broker.wait_until_topics_announced,
    )
