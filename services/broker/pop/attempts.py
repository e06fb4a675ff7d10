"""Attempts: a pop that is repeated under the same attempt id gets the messages of the first one again.

A client whose answer was lost would otherwise wait until the invisible time of its messages is over. The check points of
a pop have its attempt id, in memory and in the revive topic, so a repetition finds them also after a crash. It gets the
messages that are still out, with their old receipts and times. RocketMQ's broker does this for pops in order only; there,
the state of the queue has the attempt id (order.py).

Concurrency: the loop's thread.
"""

from collections.abc import Awaitable, Sequence
from typing import Final

from gantry.model.popreceipt import (
    NOT_RETRY,
    RETRY_V1,
    RETRY_V2,
    encode_message_offsets,
    encode_start_offsets,
    real_topic,
)
from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.pop import PopMessageHeader, PopMessageResponseHeader
from gantry.runtime.clock import Clock
from services.broker.coldreader import ColdReader
from services.broker.pop.checkpoints import CheckPoint, CheckPointTable
from services.broker.pop.sending import as_sent
from services.broker.processors.reading import read_cold
from services.broker.processors.table import PlainHandler
from services.broker.refusal import RefusalError
from services.broker.store.files.pages import NotInMemoryError
from services.broker.store.messagestore import MessageStore

ATTEMPT_ID_LENGTH_MAX: Final = 255
"""Limit of an attempt id, which each check point of the pop has."""


class Attempts:
    """Answers pops that have an attempt id, and passes on all others and all that are the first of their id."""

    def __init__(
        self,
        pop: PlainHandler,
        *,
        points: CheckPointTable,
        store: MessageStore,
        cold: ColdReader,
        broker_name: str,
        clock: Clock,
    ) -> None:
        self._pop = pop
        self._points = points
        self._store = store
        self._cold = cold
        self._broker_name = broker_name
        self._clock = clock

    def pop(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """200050: give the messages of the attempt again, or else pop."""
        if "attemptId" not in request.ext_fields:
            return self._pop(channel, request)
        header = PopMessageHeader.from_ext(request.ext_fields)
        if len(header.attempt_id or "") > ATTEMPT_ID_LENGTH_MAX:
            reason = f"attemptId={header.attempt_id}: is longer than {ATTEMPT_ID_LENGTH_MAX} characters"
            raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
        if header.order:
            return self._pop(channel, request)
        points = self._find(header)
        if not points:
            return _nothing(request, header, self._clock) if header.gantry_replay else self._pop(channel, request)
        if not all(point.is_stored for point in points):
            raise RefusalError(ResponseCode.SYSTEM_BUSY, f"attemptId={header.attempt_id}: the first pop is under way")
        try:
            return self._cold.attempt(lambda: self._again(request, header, points))
        except NotInMemoryError:
            return self._again_cold(channel, request, header, points)

    async def _again_cold(
        self, channel: Channel, request: RemotingCommand, header: PopMessageHeader, points: Sequence[CheckPoint]
    ) -> RemotingCommand:
        return await read_cold(self._cold, channel, lambda: self._again(request, header, points))

    def _find(self, header: PopMessageHeader) -> Sequence[CheckPoint]:
        """Return the check points of the attempt whose invisible time is not over."""
        assert header.attempt_id is not None, "the caller has checked it"
        topics = {real_topic(header.topic, header.consumer_group, retry) for retry in (NOT_RETRY, RETRY_V1, RETRY_V2)}
        now_ms = self._clock.now_ms()
        return [
            point
            for point in self._points.of_attempt(header.consumer_group, header.attempt_id)
            if point.key.topic in topics and now_ms < point.due_at_ms
        ]

    def _again(
        self, request: RemotingCommand, header: PopMessageHeader, points: Sequence[CheckPoint]
    ) -> RemotingCommand:
        """Return the response with the messages that are still out. Raises NotInMemoryError in a guarded attempt."""
        retries = {
            real_topic(header.topic, header.consumer_group, retry): retry for retry in (RETRY_V2, RETRY_V1, NOT_RETRY)
        }
        starts, offsets, body = [], [], []
        for point in points:
            retry, queue_id = retries[point.key.topic], point.key.queue_id
            left = point.left_offsets()
            starts.append((retry, queue_id, point.key.start_offset))
            offsets.append((retry, queue_id, left))
            for offset in left:
                records = self._store.get(point.key.topic, queue_id, offset, 1).records
                body += [as_sent(record, header.topic, point, retry, self._broker_name) for record in records]
        response = PopMessageResponseHeader(
            pop_time=points[0].key.popped_at_ms,
            invisible_time=points[0].invisible_ms,
            revive_qid=points[0].revive_queue_id,
            rest_num=0,
            start_offset_info=encode_start_offsets(starts),
            msg_offset_info=encode_message_offsets(offsets),
        )
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, response, remark="FOUND", body=b"".join(body))


def _nothing(request: RemotingCommand, header: PopMessageHeader, clock: Clock) -> RemotingCommand:
    response = PopMessageResponseHeader(
        pop_time=clock.now_ms(),
        invisible_time=header.invisible_time,
        revive_qid=0,
        rest_num=0,
        start_offset_info="",
        msg_offset_info="",
    )
    return RemotingCommand.response_to(
        request, ResponseCode.POLLING_TIMEOUT, response, remark="NO_MESSAGE_OF_THIS_ATTEMPT"
    )
