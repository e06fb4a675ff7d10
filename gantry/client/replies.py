"""Replies that brokers push to this client (326), and the requests that wait for them.

Source: RocketMQ 5.3 ClientRemotingProcessor.receiveReplyMessage.

Concurrency: the event loop's thread.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gantry.client.errors import BackpressureError
from gantry.model.compression import decompress
from gantry.model.message import decode_properties
from gantry.model.propertyname import PropertyName
from gantry.remoting.aio import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import PushReplyHeader

WAITING_MAX: Final = 65_535
"""Largest number of requests that wait for their replies."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a message.

    Attributes:
        body: The body as sent. It may be compressed.
        properties: The properties of the reply.
        flag: The flag of the application.
        sys_flag: The system flag.
        born_at_ms: Time of the sender's clock.
        stored_at_ms: Time of the broker's clock, when it pushed the reply.
        born_host: Address of the sender as the broker sees it, `host:port`.
    """

    body: bytes
    properties: Mapping[str, str]
    flag: int
    sys_flag: int
    born_at_ms: int
    stored_at_ms: int
    born_host: str

    def inflated_body(self) -> bytes:
        """Return the body without compression. Raises CorruptRecordError."""
        return decompress(self.body, self.sys_flag)


class Replies:
    """The requests that wait for replies, by correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Reply]] = {}

    def expect(self, correlation_id: str) -> "asyncio.Future[Reply]":
        """Return the future of a reply; `forget` must follow. Raises BackpressureError if too many requests wait."""
        assert correlation_id not in self._waiting, f"two requests have the correlation id {correlation_id}"
        if len(self._waiting) >= WAITING_MAX:
            raise BackpressureError(
                "request", f"{WAITING_MAX} requests wait for a reply, which is the limit", sent=False
            )
        waiting = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        return waiting

    def forget(self, correlation_id: str) -> None:
        """Wait for the reply no longer; a later one is refused."""
        self._waiting.pop(correlation_id).cancel()

    def answer(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Give a pushed reply to the request that waits for it. Raises HeaderError.

        A reply that no request waits for is refused. So the client that sent it learns that it came too late; RocketMQ's
        client says that it took the reply.
        """
        header = PushReplyHeader.from_ext(request.ext_fields)
        properties = decode_properties((header.properties or "").encode())
        correlation_id = properties.get(PropertyName.CORRELATION_ID, "")
        waiting = self._waiting.get(correlation_id)
        if waiting is None:
            remark = f"no request waits for a reply with correlation id {correlation_id[:64]!r}"
            return RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark=remark)
        # A reply that was sent again after a lost answer comes a second time.
        if not waiting.done():
            waiting.set_result(
                Reply(
                    body=request.body_bytes,
                    properties=properties,
                    flag=header.flag,
                    sys_flag=header.sys_flag,
                    born_at_ms=header.born_timestamp,
                    stored_at_ms=header.store_timestamp,
                    born_host=header.born_host,
                )
            )
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)
