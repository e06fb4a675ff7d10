"""A fast path for the replies to frequent requests: it formats the frame directly as bytes.

The general path (typed header → ext fields → command → JSON) takes 2.5 µs, this path takes 0.6 µs. A whole send takes
about 12 µs. Both paths give frames with the same content, and a test compares them.
"""

import struct

import msgspec

from gantry.remoting.codes import ANNOUNCED_VERSION, ResponseCode
from gantry.remoting.command import RemotingCommand, SerializeType, encode_frame
from gantry.remoting.headers.send import SendMessageResponseHeader
from gantry.remoting.wireheader import OUR_LANGUAGE

_WORDS = struct.Struct(">II")
_JSON = int(SerializeType.JSON)
_quote = msgspec.json.Encoder().encode


def success_frame(request: RemotingCommand) -> bytes:
    """Return the whole frame of a reply that says nothing but SUCCESS."""
    if request.serialize_type != _JSON:
        return encode_frame(RemotingCommand.response_to(request, ResponseCode.SUCCESS))
    header = (
        f'{{"code":0,"flag":1,"language":"{OUR_LANGUAGE}","opaque":{request.opaque},"version":{ANNOUNCED_VERSION}}}'
    ).encode()
    return _WORDS.pack(4 + len(header), len(header)) + header


class SendReplies:
    """A builder of one broker's replies to sends.

    Args:
        region_id: The regionId of the broker. Every reply contains it.
        trace_on: Whether clients should trace messages.
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
        """Return the whole frame of the reply, which says where the message is stored.

        Args:
            request: The request to answer. The reply takes its opaque and its coding.
            message_id: The id of the stored message, or several ids joined by commas. Hex digits need no escapes.
            queue_id: The queue that the message was appended to.
            queue_offset: The queue offset of the first message.
            transaction_id: The UNIQ_KEY. It comes from a client and may contain any characters.
            code: SUCCESS, or one of the three codes that mean "stored, but less safely" (10, 11, 12).
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
        recall_handle: str | None = None,
        is_replayed: bool = False,
        positions: str | None = None,
    ) -> RemotingCommand:
        """Return the same reply as a command; the arguments are those of `frame`, and some rare ones.

        `recall_handle` is the handle of a message for a set time. `is_replayed` says that an earlier request stored the
        message. If that is so for some messages of a batch, `positions` has the positions of all.
        """
        header = SendMessageResponseHeader(
            msg_id=message_id,
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=transaction_id,
            recall_handle=recall_handle,
            gantry_replayed=True if is_replayed else None,
            gantry_positions=positions,
            msg_region=self._region_id,
            trace_on=self._trace_on,
        )
        return RemotingCommand.response_to(request, code, header)
