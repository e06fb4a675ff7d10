"""Requests about messages for a set time: 60 check point, 61 metrics, 900010 list; recalling.py has 370 and 900011."""

from collections.abc import Mapping

from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.timer import WAITING_MAX, WaitingMessagesHeader
from gantry.runtime.errors import describe_os_error
from gantry.storeformat.timerfiles import encode_timer_check
from services.broker.coldreader import ColdReadsBusyError
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.topics import TopicTable
from services.broker.store.errors import StoreReadError
from services.broker.timer.counts import TopicCounts
from services.broker.timer.listing import Listing
from services.broker.timer.recalling import Recalling
from services.broker.timer.waiting import Waiting


class TimerProcessor:
    """Answers requests about messages for a set time."""

    def __init__(
        self, *, waiting: Waiting, counts: TopicCounts, listing: Listing, recalling: Recalling, topics: TopicTable
    ) -> None:
        self._waiting = waiting
        self._counts = counts
        self._listing = listing
        self._recalling = recalling
        self._topics = topics

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.GET_TIMER_CHECK_POINT: self.check_point,
                code.GET_TIMER_METRICS: self.metrics,
                code.GANTRY_WAITING_MESSAGES: self.list,
                **self._recalling.handlers(),
            }
        )

    def check_point(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """60: return the last check point."""
        check = self._waiting.check if self._waiting.check.read_ms else self._waiting.next_check()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=encode_timer_check(check))

    def metrics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """61: return the number of waiting messages by topic."""
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=self._counts.encode())

    async def list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900010: return a page of the messages that wait."""
        header = WaitingMessagesHeader.from_ext(request.ext_fields)
        count = WAITING_MAX if header.max_messages is None else header.max_messages
        if not 1 <= count <= WAITING_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"maxMessages={count}: is not within 1 and {WAITING_MAX}"
            )
        if header.topic is not None and self._topics.find(header.topic) is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        try:
            page = await self._listing.page(header.second, header.position, topic=header.topic, messages_max=count)
        except ColdReadsBusyError as error:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, str(error)) from None
        except StoreReadError as error:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except OSError as error:
            reason = f"a file of the timer can't be read: {describe_os_error(error)}"
            raise RefusalError(ResponseCode.SYSTEM_ERROR, reason) from None
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=page.encode())
