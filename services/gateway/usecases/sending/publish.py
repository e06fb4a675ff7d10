"""Publishing over a stream: the same sending as over REST, from the messages of a frame."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from services.gateway.schemas.outgoing import Item, check_count, read_items
from services.gateway.turns import MESSAGE_BYTES, Turn
from services.gateway.usecases.sending.send import SendMessages

# About 1 ms of work.
_READ_AT_ONCE_MAX: Final = 250


class StreamPublisher:
    """Sends what streams publish; the stream has checked the right to."""

    def __init__(self, sending: SendMessages) -> None:
        self._sending = sending

    async def publish(
        self, topic: str, messages: Sequence[msgspec.Raw], request_id: str, *, turn: Turn, binary: bool
    ) -> Sequence[dict[str, Any]]:
        """Return a result for each message, in their order.

        Args:
            topic: Where to.
            messages: As the frame has them, each by itself.
            request_id: Stands in the problems.
            turn: Of the loop; a frame takes several.
            binary: They are MessagePack, and so will the answer be.

        Raises:
            ProblemError, InvalidValueError: None was stored.
        """
        self._sending.check_topic(topic)
        check_count(messages)
        items: list[Item] = []
        for first in range(0, len(messages), _READ_AT_ONCE_MAX):
            part = messages[first : first + _READ_AT_ONCE_MAX]
            await turn(len(part) * MESSAGE_BYTES)
            items += read_items(part, packed=binary, first=first)
        return await self._sending.send_many(topic, items, request_id, turn=turn, binary=binary)
