"""Replies of request-reply: 324 and 325 from the client that answers, 326 to the client that asked.

The client that asked has sent a message with its client id (REPLY_TO_CLIENT) and an id of the question
(CORRELATION_ID). The client that answers sends a reply with the same two properties. The broker stores the reply in the
topic of replies of its cluster, and pushes it to the connection on which a producer with that client id sent its latest
heart-beat.

The reply to 324 and 325 follows the answer of the client that asked. A reply is pushed only after it is durable, so a
client never gets a reply that was not stored, unless `storeReplyMessageEnable` is off. A broker that can't store the
reply pushes nothing and refuses it as a send.

Source: RocketMQ 5.x ReplyMessageProcessor.
"""

from collections.abc import Mapping
from typing import Final

from gantry.model import names
from gantry.model.errors import InvalidMessageError
from gantry.model.message import encode_properties
from gantry.model.messageid import encode_stored_id
from gantry.model.propertyname import PropertyName
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import LocalProtocolError, RequestFailedError
from gantry.remoting.headers import PushReplyHeader, SendMessageHeader, SendMessageResponseHeader, read_send_header
from gantry.runtime.telemetry import logger
from services.broker.assembly import Broker
from services.broker.durabilitywaiters import Outcome
from services.broker.metrics import Figure
from services.broker.newmessage import NewMessage
from services.broker.processors.sendgate import SendChecks, Target
from services.broker.processors.sendparts import (
    OUTCOME_CODES,
    PUT_STATUS_CODES,
    born_host,
    send_checks,
    send_properties,
)
from services.broker.processors.sendproperties import SendProperties
from services.broker.processors.unsupported import TRANSACTION_OR_INNER_BATCH, refuse_sys_flag
from services.broker.refusal import FAQ, RefusalError
from services.broker.store.results import PutStatus

log = logger("broker.reply")

PUSH_TIMEOUT_MS: Final = 10_000
"""Time-out of a push: the client that asked must answer within it, as in RocketMQ."""
PUSHES_MAX: Final = 10_000
PUSHED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest number and size of the replies that wait for the disk or for a client's answer. RocketMQ has no limits."""
_NOT_STORED_ID = "0"


class ReplyProcessor:
    """Answers 324 and 325.

    Attributes:
        pushed: Number of replies that their clients have taken.
        failed: Number of replies that could not be pushed.

    Concurrency: the loop's thread only.
    """

    def __init__(self, broker: Broker, gate: SendChecks, properties: SendProperties) -> None:
        self.pushed = 0
        self.failed = 0
        self._broker = broker
        self._gate = gate
        self._properties = properties
        self._waiters = broker.core.waiters
        self._live_settings = broker.core.live_settings
        self._pushes = 0
        self._pushed_bytes = 0
        identity = broker.identity
        self._ext = {"MSG_REGION": identity.region_id, "TRACE_ON": "true" if identity.trace_on else "false"}

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code.

        The handler makes the replies for refusals itself, because these replies have more fields.
        """
        return {RequestCode.SEND_REPLY_MESSAGE: self.reply, RequestCode.SEND_REPLY_MESSAGE_V2: self.reply}

    async def reply(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """324 and 325: store a reply, and push it to the client that asked."""
        header = read_send_header(request.code, request.ext_fields)
        size = len(request.body or b"")
        try:
            self._admit(size)
            target = self._find(header)
            message = self._message(channel, request, header, target)
            self._pushes += 1
            self._pushed_bytes += size
            try:
                answer = await self._store_and_push(channel, header, target, message)
            finally:
                self._pushes -= 1
                self._pushed_bytes -= size
                assert min(self._pushes, self._pushed_bytes) >= 0, "no push ends twice"
        except RefusalError as error:
            return RemotingCommand.response_to(request, error.code, remark=error.remark, ext=dict(self._ext))
        code, remark, stored = answer
        if request.is_one_way:
            return None
        return RemotingCommand.response_to(request, code, stored, remark=remark)

    def _admit(self, size: int) -> None:
        refusal = self._waiters.admit()
        if refusal is None and (self._pushes >= PUSHES_MAX or self._pushed_bytes + size > PUSHED_BYTES_MAX):
            refusal = (
                f"[OVERLOAD]system busy, start flow control for a while: {self._pushes} replies of "
                f"{self._pushed_bytes} bytes are on their way, the limits are {PUSHES_MAX} and {PUSHED_BYTES_MAX}"
            )
        if refusal is not None:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, refusal)

    def _find(self, header: SendMessageHeader) -> Target:
        """Return the target. A reply creates no topic: the topic of replies exists from the broker's start."""
        if names.is_retry_topic(header.topic):
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL, f"topic {header.topic}: a reply may not go to a retry topic"
            )
        target = self._gate.find(header)
        if target is None:
            raise RefusalError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!{FAQ}"
            )
        return target

    def _message(
        self, channel: Channel, request: RemotingCommand, header: SendMessageHeader, target: Target
    ) -> NewMessage:
        if header.sys_flag & TRANSACTION_OR_INNER_BATCH:
            refuse_sys_flag(header.sys_flag)
        body = request.body_bytes if request.body is not None else None
        if body is None or len(body) > self._live_settings.current.max_message_size:
            found = "is missing" if body is None else f"has {len(body)} bytes"
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message body {found}, maxMessageSize is {self._live_settings.current.max_message_size}",
            )
        return NewMessage(
            header.topic,
            self._gate.queue_id(channel, header, target),
            body,
            self._properties.decode_reply(header.properties),
            born_at_ms=header.born_timestamp,
            born_host=born_host(channel),
            flag=header.flag,
            sys_flag=header.sys_flag | target.sys_flag,
            reconsume_times=header.reconsume_times or 0,
        )

    async def _store_and_push(
        self, channel: Channel, header: SendMessageHeader, target: Target, message: NewMessage
    ) -> tuple[int, str | None, SendMessageResponseHeader]:
        """Return code, remark and header of the answer."""
        stored = SendMessageResponseHeader(
            msg_id=_NOT_STORED_ID,
            queue_id=message.queue_id,
            queue_offset=0,
            msg_region=self._ext["MSG_REGION"],
            trace_on=self._ext["TRACE_ON"],
        )
        code = int(ResponseCode.SUCCESS)
        if self._live_settings.current.store_reply_message_enable:
            code = await self._store(target, message, stored)
        failure = await self._push(channel, header, message)
        if failure is None:
            self.pushed += 1
            return code, None, stored
        self.failed += 1
        log.info("a reply was not pushed", reason=failure)
        return ResponseCode.SYSTEM_ERROR, failure, stored

    async def _store(self, target: Target, message: NewMessage, stored: SendMessageResponseHeader) -> int:
        """Store the reply, set its place in `stored`, and wait until it is durable. Return the code for its outcome.

        Raises:
            RefusalError: The message was not stored, or it is unknown whether it is stored.
        """
        result = message.put_into(self._broker.store)
        if result.status is not PutStatus.OK:
            self._broker.stats.put_failed += 1
            reason = result.reason or result.status.value
            raise RefusalError(PUT_STATUS_CODES[result.status], f"topic {message.topic}: not stored: {reason}")
        target.flow.messages += 1
        target.flow.calls += 1
        target.flow.size_bytes += result.next_offset - result.physical_offset
        stored.msg_id = encode_stored_id(self._broker.identity.store_host, result.physical_offset)
        stored.queue_offset = result.queue_offset
        waits_for_flush = message.properties.get(PropertyName.WAIT) != "false"
        outcome = await self._waiters.outcome(result.next_offset, waits_for_flush=waits_for_flush)
        if outcome is Outcome.NOT_WRITTEN:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, "the message could not be written; whether it is stored is unknown"
            )
        return OUTCOME_CODES.get(outcome, ResponseCode.SUCCESS)

    async def _push(self, channel: Channel, header: SendMessageHeader, message: NewMessage) -> str | None:
        """Push the reply to the client that asked. Return None, or why the client has not taken it."""
        client_id = message.properties.get(PropertyName.REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{PropertyName.REPLY_TO_CLIENT}] is null"
        connection = self._broker.tables.producers.find_connection(client_id)
        if connection is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self._broker.clock.now_ms()
        try:
            properties = encode_properties({**message.properties, PropertyName.PUSH_REPLY_TIME: str(now_ms)})
        except InvalidMessageError as error:
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        push = PushReplyHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=str(channel.peer),
            store_host=str(self._broker.identity.store_host),
            store_timestamp=now_ms,
            properties=properties.decode(),
            reconsume_times=message.reconsume_times,
            unit_mode=bool(header.unit_mode),
        )
        command = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, body=message.body)
        try:
            answer = await connection.request(command, PUSH_TIMEOUT_MS)
        except (RequestFailedError, LocalProtocolError) as error:
            log.info("a client did not take a reply", client_id=client_id, reason=str(error))
            return f"push reply message to {client_id}fail."
        if answer.code != ResponseCode.SUCCESS:
            log.info("a client refused a reply", client_id=client_id, code=answer.code, reason=answer.remark)
            return f"push reply message to {client_id}fail."
        return None


def build(broker: Broker) -> ReplyProcessor:
    """Build the processor from the broker's parts."""
    processor = ReplyProcessor(broker, send_checks(broker), send_properties(broker))
    broker.figures += (
        Figure("gantry_broker_pushed_replies", "Replies taken by clients.", lambda: processor.pushed, is_counter=True),
        Figure("gantry_broker_failed_replies", "Replies not pushed.", lambda: processor.failed, is_counter=True),
    )
    return processor
