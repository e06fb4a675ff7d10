"""Replies that are built too often for the general way: a send's, put together as bytes.

The general way (typed header → ext fields → command → JSON) costs 2.5 µs, this one 0.6, of about 12 for a whole send.
The frame says the same; the general way is what a test compares it with.
"""

import struct

import msgspec

from gantry.remoting.codes import ANNOUNCED_VERSION
from gantry.remoting.command import RemotingCommand, SerializeType, encode_frame
from gantry.remoting.headers.send import SendMessageResponseHeader
from gantry.remoting.wireheader import OUR_LANGUAGE

_WORDS = struct.Struct(">II")
_JSON = int(SerializeType.JSON)
_quote = msgspec.json.Encoder().encode


class SendReplies:
    """Builds the replies to sends of one broker.

    Args:
        region_id: The broker's regionId, told with every reply.
        trace_on: Whether clients should trace.
    """

    __slots__ = ("_region_id", "_tail", "_trace_on")

    def __init__(self, *, region_id: str = "DefaultRegion", trace_on: bool = True) -> None:
        self._region_id = region_id
        self._trace_on = "true" if trace_on else "false"
        self._tail = (
            f'","TRACE_ON":"{self._trace_on}","MSG_REGION":{_quote(region_id).decode()}}}'
            f',"flag":1,"language":"{OUR_LANGUAGE}","opaque":'
        )

    def frame(
        self,
        request: RemotingCommand,
        message_id: str,
        queue_id: int,
        queue_offset: int,
        transaction_id: str | None,
        *,
        code: int = 0,
    ) -> bytes:
        """Return the whole frame that says where a message lies.

        Args:
            request: What is answered: gives opaque and coding.
            message_id: The stored id, or several joined by commas; hex digits need no escapes.
            queue_id: Of the queue it went to.
            queue_offset: Of the first message.
            transaction_id: The UNIQ_KEY, which comes from a client and may hold anything.
            code: SUCCESS, or one of the three codes that mean stored but less safely.
        """
        if request.serialize_type != _JSON:
            return encode_frame(self.command(request, message_id, queue_id, queue_offset, transaction_id, code=code))
        unique = "" if transaction_id is None else f'"transactionId":{_quote(transaction_id).decode()},'
        header = (
            f'{{"code":{code},"extFields":{{"msgId":"{message_id}","queueId":"{queue_id}",{unique}'
            f'"queueOffset":"{queue_offset}{self._tail}{request.opaque},"version":{ANNOUNCED_VERSION}}}'
        ).encode()
        size = len(header)
        return _WORDS.pack(4 + size, size) + header

    def command(
        self,
        request: RemotingCommand,
        message_id: str,
        queue_id: int,
        queue_offset: int,
        transaction_id: str | None,
        *,
        code: int = 0,
    ) -> RemotingCommand:
        """Return the same as a command."""
        header = SendMessageResponseHeader(
            msg_id=message_id,
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=transaction_id,
            msg_region=self._region_id,
            trace_on=self._trace_on,
        )
        return RemotingCommand.response_to(request, code, header)
