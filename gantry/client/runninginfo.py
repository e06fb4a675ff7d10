"""The answer to request 307 (GET_CONSUMER_RUNNING_INFO), which a broker or `mqadmin consumerStatus` sends.

One engine has many consumers. A client id may have several members in one group, each with different topics. The request
names a client id and a group, so the answer combines all these members.

Source: RocketMQ 5.3 ClientRemotingProcessor.getConsumerRunningInfo.

Concurrency: the event loop's thread.
"""

from collections.abc import Callable, Mapping, Sequence

from gantry.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from gantry.model.message import MessageQueue
from gantry.remoting.aio import Channel
from gantry.remoting.bodies import ConsumerRunningInfo, ProcessQueueInfo
from gantry.remoting.bodies.beans import UNSET
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.client import GetConsumerRunningInfoHeader

Describe = Callable[[], ConsumerRunningInfo]


def member_info(
    name_servers: Sequence[str],
    group: str,
    where: ConsumeFromWhere,
    subscriptions: Sequence[SubscriptionData],
    queues: Mapping[MessageQueue, int | None],
    *,
    started_at_ms: int,
    model: MessageModel,
    is_orderly: bool,
) -> ConsumerRunningInfo:
    """Return what a member knows of itself; windows and rates are its owner's, and left out.

    Args:
        name_servers: Addresses of the name servers.
        group: The group.
        where: Position at which the member begins without a committed offset.
        subscriptions: The subscriptions.
        queues: The committed offset of each held queue.
        started_at_ms: Wall time of the start.
        model: The message model of the member.
        is_orderly: Whether the member consumes in order.
    """
    # mqadmin consumerStatus fails without the type and the start.
    properties = {
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in name_servers),
        "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY,
        "PROP_CONSUMEORDERLY": "true" if is_orderly else "false",
        "PROP_CONSUMER_START_TIMESTAMP": str(started_at_ms),
        "consumerGroup": group,
        "consumeFromWhere": where,
        "messageModel": model,
    }
    states = {
        queue: ProcessQueueInfo(commit_offset=UNSET if offset is None else offset) for queue, offset in queues.items()
    }
    return ConsumerRunningInfo(properties, tuple(subscriptions), states)


class RunningInfos:
    """The consumers of this process, and the answer about them."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], list[Describe]] = {}

    def add(self, client_id: str, group: str, describe: Describe) -> Callable[[], None]:
        """Add a member of a group; `describe` returns its running info. Return a function that removes the member."""
        members = self._members.setdefault((client_id, group), [])
        members.append(describe)

        def stop() -> None:
            members.remove(describe)
            if not members and self._members.get((client_id, group)) is members:
                del self._members[client_id, group]

        return stop

    def answer(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the answer to a request. Raises HeaderError."""
        header = GetConsumerRunningInfoHeader.from_ext(request.ext_fields)
        members = self._members.get((header.client_id, header.consumer_group))
        if members is None:
            remark = f"The Consumer Group <{header.consumer_group}> not exist in this consumer"
            return RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark=remark)
        infos = [describe() for describe in members]
        together = ConsumerRunningInfo(
            properties=infos[0].properties,
            subscriptions=tuple(one for info in infos for one in info.subscriptions),
            queues={queue: state for info in infos for queue, state in info.queues.items()},
        )
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=together.encode())
