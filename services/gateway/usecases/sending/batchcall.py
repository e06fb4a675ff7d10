"""The messages of one batch: which messages one request carries, and the result of each message."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gantry.client.errors import BrokerError, ClientError, SendError
from gantry.client.sendrequest import EncodedSend
from gantry.model.batch import ITEM_EXTRA_BYTES, encode_batch
from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from gantry.model.propertyname import PropertyName
from gantry.remoting.codes import RequestCode, ResponseCode
from services.gateway.errors import BROKER_UNAVAILABLE, NOT_STORED, STORED, ProblemError, describe_too_late
from services.gateway.schemas.outgoing import Item
from services.gateway.turns import Turn
from services.gateway.usecases.sending.preparing import PreparedMessage, prepare
from services.gateway.usecases.sending.results import BatchReport, MessageResult, batch_report, failed_message

# Half of a broker's default limit, so that an operator may lower that limit. A larger frame would save almost nothing.
# A message that is larger than this goes alone, in a request of its own.
FRAME_BYTES_MAX: Final = 2 * 1024 * 1024
FREE_MESSAGES_MAX: Final = 250
"""Largest number of messages without a queue in one request.

A broker stores a request in one step; this many messages take it 2 or 3 ms.
"""

_FAULTS_OF_ONE: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.GANTRY_KEY_IN_USE})


class BatchCall:
    """The state of one batch.

    Attributes:
        items: The messages, and errors in the place of those that could not be read.
        prepared: The messages that can be sent, by index. Messages that were refused are missing.
        turn: Waits for a turn of the event loop before each piece of work.
    """

    __slots__ = ("_parts", "_results", "_size_bytes", "items", "prepared", "topic", "turn")

    def __init__(self, topic: str, items: Sequence[Item], *, turn: Turn) -> None:
        self.topic = topic
        self.items = items
        self.turn = turn
        self.prepared: dict[int, PreparedMessage] = {}
        # Flag, body and properties, as a batch request has them.
        self._parts: dict[int, tuple[int, bytes, bytes]] = {}
        self._results: list[MessageResult | None] = [None] * len(items)
        self._size_bytes = 0

    def add(self, index: int, prepared: PreparedMessage) -> None:
        """Add a message that can be sent."""
        body, properties = prepared.body, prepared.properties.encode()
        self.prepared[index] = prepared
        self._parts[index] = (0, body, properties)
        self._size_bytes += ITEM_EXTRA_BYTES + len(body) + len(properties)

    def fail(self, index: int, problem: ProblemError) -> None:
        """Set the result of a message that was not stored, or whose outcome is unknown."""
        self._results[index] = failed_message(problem)

    def finish(self, indexes: Iterable[int], results: Iterable[MessageResult]) -> None:
        """Set the results of messages that were sent."""
        for index, result in zip(indexes, results, strict=True):
            self._results[index] = result

    def are_stored(self, indexes: Iterable[int]) -> bool:
        """Return whether all of these messages are known to be stored."""
        results = [self._results[index] for index in indexes]
        return all(result is not None and result.outcome == STORED for result in results)

    def report(self) -> BatchReport:
        """Return the results of all messages."""
        results = [result for result in self._results if result is not None]
        assert len(results) == len(self.items), f"{len(results)} results for {len(self.items)} messages"
        return batch_report(results)

    def split(self, indexes: list[int], messages_max: int) -> list[list[int]]:
        """Return the messages in groups that fit into one request each, in their order."""
        if self._size_bytes <= FRAME_BYTES_MAX:
            return [indexes[at : at + messages_max] for at in range(0, len(indexes), messages_max)]
        groups: list[list[int]] = []
        size_bytes = FRAME_BYTES_MAX
        for index in indexes:
            _, body, properties = self._parts[index]
            item_bytes = ITEM_EXTRA_BYTES + len(body) + len(properties)
            if size_bytes + item_bytes > FRAME_BYTES_MAX or len(groups[-1]) >= messages_max:
                groups.append([])
                size_bytes = 0
            groups[-1].append(index)
            size_bytes += item_bytes
        return groups

    def request(self, indexes: Sequence[int]) -> EncodedSend:
        """Return the request that sends these messages."""
        if len(indexes) == 1:
            return single_request(self.topic, self.prepared[indexes[0]])
        body = encode_batch([self._parts[index] for index in indexes])
        ids = tuple([self.prepared[index].message_id for index in indexes])
        return EncodedSend(RequestCode.SEND_BATCH_MESSAGE, self.topic, body, "", 0, 0, ids)


def single_request(topic: str, prepared: PreparedMessage) -> EncodedSend:
    """Return the request that sends one message."""
    return EncodedSend(
        RequestCode.SEND_MESSAGE_V2, topic, prepared.body, prepared.properties, 0, 0, (prepared.message_id,)
    )


def body_length(item: Item) -> int:
    """Return the length of a message's body as it was received; 0 for an error and for a body without a length."""
    body = None if isinstance(item, InvalidValueError) else item.body
    return len(body) if isinstance(body, (str, bytes, msgspec.Raw)) else 0


def placed_error(error: Exception, item: Item, index: int) -> Exception:
    """Return the error of a message with the message's place in the batch.

    The message is checked a second time for this. Building the place of each message, with an error or without, would
    cost more, because nearly all messages are valid.
    """
    if isinstance(error, InvalidValueError) and error is not item:
        try:
            prepare(item, str, f"/messages/{index}")  # type: ignore[arg-type] # It is a message, as it was prepared.
        except InvalidValueError as placed:
            return placed
    return error


def is_one_message_at_fault(error: ClientError) -> bool:
    """Return whether a broker refused a whole request because of one of its messages."""
    cause = error.cause if isinstance(error, SendError) else error
    return isinstance(cause, BrokerError) and cause.code in _FAULTS_OF_ONE


def held_back(queue: MessageQueue) -> ProblemError:
    """Return the problem of a message that was not sent because an earlier one may have to be sent again."""
    return ProblemError(
        BROKER_UNAVAILABLE,
        f"an earlier message for queue {queue.queue_id} of {queue.broker_name} was not stored for certain; to keep the"
        " order, this message was not sent",
        outcome=NOT_STORED,
        retryable=True,
    )


def name_time(problem: ProblemError, prepared: PreparedMessage, at: str) -> None:
    """Name the field of a time that a broker has refused.

    Args:
        problem: The problem of the send.
        prepared: Its message.
        at: JSON pointer to the message.
    """
    too_late = describe_too_late(problem.detail) if prepared.is_delayed else None
    if too_late is not None:
        is_time = prepared.properties.startswith(PropertyName.TIMER_DELIVER_MS) or (
            f"\x02{PropertyName.TIMER_DELIVER_MS}\x01" in prepared.properties
        )
        problem.field = f"{at}/{'deliver_at' if is_time else 'delay'}"
        problem.detail = f"{problem.field}: {too_late}"
