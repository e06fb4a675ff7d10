"""Requests of tools about groups: create and change (200, 225), delete (207), read (43, 45, 201, 352).

They include the requests for committed offsets (43) and delay offsets (45).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from gantry.model import names
from gantry.model.errors import InvalidNameError
from gantry.model.group import SubscriptionGroup
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies import (
    DelayOffsetWrapper,
    OffsetsBody,
    SubscriptionGroupWrapper,
    decode_subscription_group,
    decode_subscription_groups,
    encode_subscription_group,
)
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import DeleteSubscriptionGroupHeader, GetSubscriptionGroupConfigHeader
from gantry.remoting.headers.reset import AllOffsetsResponseHeader
from gantry.runtime.clock import Clock
from services.broker.assembly import Broker
from services.broker.longpolling import LongPolling
from services.broker.notifications import GroupNotifications
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.delayoffsets import DelayOffsetTable
from services.broker.registry.groups import GROUPS_MAX, GroupTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import TopicTable
from services.broker.stats import BrokerStats
from services.broker.topicdeletion import TopicDeletion

SLICE_OFFSETS = 1024
"""Number of offsets that are encoded in one turn of the loop; takes about half a millisecond."""

_RETRY_QUEUES_MAX = 1024
# The shortest sleep that the event loop can make.
_PAUSE_S = 0.001


class GroupAdminProcessor:
    """Answers requests of tools about groups."""

    def __init__(
        self,
        *,
        groups: GroupTable,
        topics: TopicTable,
        consumers: ConsumerTable,
        long_polling: LongPolling,
        notifications: GroupNotifications,
        deletion: TopicDeletion,
        offsets: OffsetTable,
        delay_offsets: DelayOffsetTable,
        stats: BrokerStats,
        clock: Clock,
        wait_until_saved: Callable[[], Awaitable[None]],
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._consumers = consumers
        self._long_polling = long_polling
        self._notifications = notifications
        self._deletion = deletion
        self._offsets = offsets
        self._delay_offsets = delay_offsets
        self._stats = stats
        self._clock = clock
        self._wait_until_saved = wait_until_saved

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.create,
                code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.create_list,
                code.DELETE_SUBSCRIPTIONGROUP: self.delete,
                code.GET_SUBSCRIPTIONGROUP_CONFIG: self.config,
                code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_configs,
                code.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
                code.GET_ALL_DELAY_OFFSET: self.all_delay_offsets,
            }
        )

    async def create(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """200: create or change one group."""
        group = decode_subscription_group(request.body_bytes)
        return await self._put(request, [group])

    async def create_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """225: create or change several groups, all or none."""
        return await self._put(request, decode_subscription_groups(request.body_bytes))

    async def delete(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """207: delete a group and, if asked, its committed offsets, its retry topic and its dead letters.

        RocketMQ leaves the topics to the tool. A waiting retry is discarded when it is due, because its topic is gone.
        The remark of the reply names the topics that are kept. Connected members do not make the group again
        (dismissed.py), and their held pulls end.
        """
        header = DeleteSubscriptionGroupHeader.from_ext(request.ext_fields)
        group = header.group_name
        if self._groups.remove(group, self._clock.now_ms()):
            self._dismiss(group)
        remark = None
        topics = [topic for topic in (names.retry_topic(group), names.dlq_topic(group)) if self._topics.find(topic)]
        if header.clean_offset or header.remove_offset:
            self._offsets.remove_group(group)
            for topic in topics:
                await self._deletion.delete(topic)
        elif topics:
            remark = f"the offsets of the group and {', '.join(topics)} are kept; cleanOffset=true deletes them"
        self._stats.forget_group(group)
        await self._wait_until_saved()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, remark=remark)

    def _dismiss(self, group: str) -> None:
        info = self._consumers.find(group)
        members = [] if info is None else list(info.members)
        self._groups.dismissed.add(group, members)
        for topic in [] if info is None else list(info.subscriptions):
            config = self._topics.find(topic)
            for queue_id in range(0 if config is None else config.read_queue_nums):
                self._long_polling.resume_queue(topic, queue_id)
        for connection, client_id in members:
            self._consumers.unregister(group, connection, client_id)
        self._notifications.dismiss(group, members)

    def config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """352: return the configuration of one group."""
        name = GetSubscriptionGroupConfigHeader.from_ext(request.ext_fields).group
        group = self._groups.find(name)
        if group is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] not exist in this broker"
            )
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=encode_subscription_group(group))

    def all_configs(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """201: return the configurations of all groups."""
        version, table, forbidden = self._groups.snapshot()
        body = SubscriptionGroupWrapper(
            subscription_group_table=table, data_version=version, forbidden_table=forbidden
        ).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    async def all_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """43: return all committed offsets, each with its value at the time when it is encoded."""
        offsets, body, done = self._offsets, OffsetsBody(), 0
        epoch = offsets.resets.epoch
        for group in offsets.groups():
            topics = offsets.topics_of(group)
            if topics:
                body.add_group(group, topics)
            done = await _pause_if_full(done + 1 + len(topics))
        for key in list(offsets.all()):
            queues = offsets.all().get(key)
            if queues is not None:
                body.add_offsets(key, queues)
                done = await _pause_if_full(done + 1 + len(queues))
        header = AllOffsetsResponseHeader(gantry_reset_epoch=epoch, gantry_reset_epoch_end=offsets.resets.epoch)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, header, body=body.encode(offsets.version))

    def all_delay_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """45: return the delivery progress of the delay levels."""
        table = self._delay_offsets
        body = DelayOffsetWrapper(offset_table=table.offsets, data_version=table.version).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    async def _put(self, request: RemotingCommand, groups: list[SubscriptionGroup]) -> RemotingCommand:
        for group in groups:
            self._check(group)
        self._check_room(group.group_name for group in groups)
        now_ms = self._clock.now_ms()
        for group in groups:
            self._groups.put(group, now_ms)
        await self._wait_until_saved()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def _check(self, group: SubscriptionGroup) -> None:
        try:
            names.check_group(group.group_name, field="groupName")
        except InvalidNameError as error:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if not 0 <= group.retry_queue_nums <= _RETRY_QUEUES_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"retryQueueNums={group.retry_queue_nums}: is not within 0 and {_RETRY_QUEUES_MAX}",
            )

    def _check_room(self, groups: Iterable[str]) -> None:
        new = sum(self._groups.find(group) is None for group in set(groups))
        if new and len(self._groups) + new > GROUPS_MAX:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"there are {len(self._groups)} groups, no more than {GROUPS_MAX} are allowed",
            )


async def _pause_if_full(done: int) -> int:
    """Pause if a slice is full. Return the number of items that count towards the next pause."""
    if done < SLICE_OFFSETS:
        return done
    await asyncio.sleep(_PAUSE_S)
    return 0


def build(broker: Broker) -> GroupAdminProcessor:
    """Build the processor from the broker's parts."""
    tables = broker.tables
    return GroupAdminProcessor(
        groups=tables.groups,
        topics=tables.topics,
        consumers=tables.consumers,
        long_polling=broker.core.long_polling,
        notifications=broker.notifications,
        deletion=broker.deletion,
        offsets=tables.offsets,
        delay_offsets=tables.delay_offsets,
        stats=broker.stats,
        clock=broker.clock,
        wait_until_saved=broker.wait_until_groups_saved,
    )
