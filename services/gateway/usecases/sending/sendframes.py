"""The messages of one call on their way: what is sent of them in one request, and what became of each."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gantry.client.errors import BrokerError, ClientError, Outcome, SendError
from gantry.client.sendrequest import BatchSendResult, EncodedSend, SendStatus
from gantry.model.batch import ITEM_EXTRA_BYTES, encode_batch
from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from gantry.remoting.codes import RequestCode, ResponseCode
from services.gateway.errors import BROKER_UNAVAILABLE, NOT_STORED, STORED, UNKNOWN, ProblemError
from services.gateway.schemas.outgoing import Item
from services.gateway.turns import Turn
from services.gateway.usecases.sending.preparing import PreparedMessage, prepare

# Half of what a broker takes by default: there is room for its own default to be lowered, and a frame of this size is
# already so large that nothing is gained by a larger one. A larger message goes alone, in a request of its own.
FRAME_BYTES_MAX: Final = 2 * 1024 * 1024
FREE_MESSAGES_MAX: Final = 250
"""Messages without a queue in one request: a broker stores a request in one go, and this many take it 2 or 3 ms."""

Result = dict[str, Any]


class BatchCall:
    """The messages of one call on their way.

    Attributes:
        prepared: By their place in the call; those that were refused are missing.
        size_bytes: What all that are prepared take in a request.
        turn: Of the loop, for each piece of work.
    """

    __slots__ = ("binary", "items", "prepared", "request_id", "results", "size_bytes", "topic", "turn")

    def __init__(self, topic: str, items: Sequence[Item], request_id: str, *, turn: Turn, binary: bool) -> None:
        self.topic = topic
        self.items = items
        self.request_id = request_id
        self.binary = binary
        self.prepared: dict[int, PreparedMessage] = {}
        self.results: list[Result] = [{}] * len(items)
        self.size_bytes = 0
        self.turn = turn

    def add(self, index: int, prepared: PreparedMessage) -> None:
        """Take note of a message that can be sent."""
        self.prepared[index] = prepared
        self.size_bytes += ITEM_EXTRA_BYTES + len(prepared.body) + len(prepared.properties)

    def refuse(self, index: int, problem: ProblemError) -> None:
        """Note that a message was not stored, or may not have been."""
        outcome = problem.outcome or NOT_STORED
        result: Result = {"outcome": outcome, "problem": problem.to_dict(self.request_id)}
        if outcome == UNKNOWN and problem.message_id is not None:
            result["message_id"] = problem.message_id
        self.results[index] = result

    def frames(self, indexes: list[int], messages_max: int) -> list[list[int]]:
        """Return the messages in groups that fit into one request, in their order."""
        if self.size_bytes <= FRAME_BYTES_MAX:
            return [indexes[at : at + messages_max] for at in range(0, len(indexes), messages_max)]
        frames: list[list[int]] = []
        size = FRAME_BYTES_MAX
        for index in indexes:
            prepared = self.prepared[index]
            item_size = ITEM_EXTRA_BYTES + len(prepared.body) + len(prepared.properties)
            if size + item_size > FRAME_BYTES_MAX or len(frames[-1]) >= messages_max:
                frames.append([])
                size = 0
            frames[-1].append(index)
            size += item_size
        return frames


def body_length(item: Item) -> int:
    """Return how long the body of a message is as it came; 0 for what has no length, and for an error."""
    body = None if isinstance(item, InvalidValueError) else item.body
    return len(body) if isinstance(body, (str, bytes, msgspec.Raw)) else 0


def count_outcomes(results: Sequence[Result]) -> dict[str, int]:
    """Return how many messages had which outcome."""
    outcomes = [result["outcome"] for result in results]
    return {outcome: outcomes.count(outcome) for outcome in (STORED, NOT_STORED, UNKNOWN)}


def result_views(placement: BatchSendResult, *, binary: bool = False) -> list[Result]:
    """Return where the messages of a request are, as answers show it."""
    outcome, status = _OUTCOMES[placement.outcome], _STATUSES[placement.status]
    queue, first = placement.queue, placement.first_offset
    broker, queue_id = queue.broker_name, queue.queue_id
    return [
        {
            "outcome": outcome,
            "status": status,
            "message_id": message_id,
            "stored_id": stored_id,
            "broker": broker,
            "queue_id": queue_id,
            "queue_offset": first + at if binary else str(first + at),
        }
        for at, (message_id, stored_id) in enumerate(zip(placement.message_ids, placement.stored_ids, strict=True))
    ]


# Plain texts, since an encoder writes those faster than members of an enum.
_OUTCOMES: Final = {outcome: str(outcome) for outcome in Outcome}
_STATUSES: Final = {status: str(status) for status in SendStatus}


def single_frame(topic: str, prepared: PreparedMessage) -> EncodedSend:
    """Return the request of one message."""
    return EncodedSend(
        RequestCode.SEND_MESSAGE_V2, topic, prepared.body, prepared.properties.decode(), 0, 0, (prepared.message_id,)
    )


def batch_frame(topic: str, prepared: Sequence[PreparedMessage]) -> EncodedSend:
    """Return the request of several messages."""
    body = encode_batch([(0, item.body, item.properties) for item in prepared])
    ids = tuple([item.message_id for item in prepared])
    return EncodedSend(RequestCode.SEND_BATCH_MESSAGE, topic, body, "", 0, 0, ids)


def placed_error(error: Exception, item: Item, index: int) -> Exception:
    """Return what is wrong with a message with its place in the batch; told apart, as nearly all have nothing wrong."""
    if isinstance(error, InvalidValueError) and error is not item:
        try:
            prepare(item, str, f"/messages/{index}")  # type: ignore[arg-type] # It is a message, as it was prepared.
        except InvalidValueError as placed:
            return placed
    return error


def is_one_message_at_fault(error: ClientError) -> bool:
    """Say whether a broker refused a whole request for something that one message of it is or has."""
    cause = error.cause if isinstance(error, SendError) else error
    return isinstance(cause, BrokerError) and cause.code == ResponseCode.MESSAGE_ILLEGAL


def held_back(queue: MessageQueue) -> ProblemError:
    """Return the problem of a message that was not sent because one before it may have to be sent again."""
    return ProblemError(
        BROKER_UNAVAILABLE,
        f"an earlier message for queue {queue.queue_id} of {queue.broker_name} was not stored for certain; to keep the"
        " order this one was not sent",
        outcome=NOT_STORED,
        retryable=True,
    )
