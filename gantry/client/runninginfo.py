"""The answer to request 307 (GET_CONSUMER_RUNNING_INFO), which a broker or `mqadmin consumerStatus` sends.

One engine has many consumers. A client id may have several members in one group, each with different topics. The request
names a client id and a group, so the answer combines all these members.

Source: RocketMQ 5.3 ClientRemotingProcessor.getConsumerRunningInfo.

Concurrency: the event loop's thread.
"""

from collections.abc import Callable

from gantry.remoting.aio import Channel
from gantry.remoting.bodies import ConsumerRunningInfo
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.client import GetConsumerRunningInfoHeader

Describe = Callable[[], ConsumerRunningInfo]


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
