"""The results of sends, one for each message. The edges of the gateway write them as JSON or MessagePack."""

from collections.abc import Sequence
from typing import Final

import msgspec

from gantry.client.errors import Outcome
from gantry.client.sendrequest import BatchSendResult, SendStatus
from gantry.model.errors import InvalidIdError
from gantry.model.recallhandle import decode_recall_handle
from services.gateway.errors import NOT_STORED, STORED, UNKNOWN, ProblemError

SECOND_MS: Final = 1_000


class PlacedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that has a position in a queue.

    The positions of all messages of a request are one object, because making one for each message costs more than the
    rest of its result.

    Attributes:
        outcome: `stored`; or `unknown` if the message is less durable than the broker's flush mode promises.
        request: Positions of all messages of the request that carried this one.
        index: Index of the message in that request.
    """

    outcome: str
    request: BatchSendResult
    index: int

    @property
    def status(self) -> SendStatus:
        """The durability with which the broker stored the message."""
        return self.request.status

    @property
    def message_id(self) -> str:
        """The unique key of the message."""
        return self.request.message_ids[self.index]

    @property
    def stored_id(self) -> str:
        """The id that the broker made from the position of the record."""
        return self.request.stored_ids[self.index]

    @property
    def is_replayed(self) -> bool:
        """Whether an earlier send stored the message, so that this one is not stored again."""
        positions = self.request.positions
        return positions is not None and positions[self.index].is_replayed

    @property
    def broker(self) -> str:
        """The name of the broker set."""
        return self.request.queue.broker_name

    @property
    def queue_id(self) -> int:
        """The number of the queue on that broker set."""
        positions = self.request.positions
        return self.request.queue.queue_id if positions is None else positions[self.index].queue_id

    @property
    def queue_offset(self) -> int:
        """The offset of the message in its queue."""
        positions = self.request.positions
        return self.request.first_offset + self.index if positions is None else positions[self.index].queue_offset


class MixedMessage(PlacedMessage, frozen=True, gc=False):
    """A message of a request of which the broker had a part already: its position does not follow from the others'."""


class ScheduledMessage(PlacedMessage, frozen=True, gc=False):
    """A message that its broker delivers later. Its position is the place where it waits."""

    @property
    def handle(self) -> str | None:
        """The handle by which it can be recalled; None for a message with a delay level, or one that is due already."""
        return self.request.recall_handle

    @property
    def deliver_at_ms(self) -> int | None:
        """The time at which the broker delivers it; None without a handle."""
        try:
            # Brokers deliver a second's messages when the second is over.
            return None if self.handle is None else decode_recall_handle(self.handle).at_ms - 1 + SECOND_MS
        except InvalidIdError:
            return None


class OneWayMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that was sent without waiting for an answer.

    Attributes:
        message_id: Unique key of the message.
        outcome: Always `unknown`.
        is_replayed: Always False: nobody knows.
    """

    message_id: str
    outcome: str = UNKNOWN
    is_replayed: bool = False


class FailedMessage(msgspec.Struct, frozen=True):
    """A message that was not stored, or whose outcome is unknown.

    Attributes:
        outcome: `not_stored` or `unknown`.
        problem: Reason; it has no traceback, because a batch may have a thousand of them.
    """

    outcome: str
    problem: ProblemError


SentMessage = PlacedMessage | OneWayMessage
MessageResult = SentMessage | FailedMessage


class BatchReport(msgspec.Struct, frozen=True):
    """The results of a batch.

    Attributes:
        results: One for each message, in their order.
        stored, not_stored, unknown: Number of messages with this outcome.
    """

    results: Sequence[MessageResult]
    stored: int
    not_stored: int
    unknown: int


def placed_messages(request: BatchSendResult, *, is_delayed: bool = False) -> list[PlacedMessage]:
    """Return the results of the messages of one request, in their order; a delayed message is alone in its request."""
    outcome = _OUTCOMES[request.outcome]
    if is_delayed:
        return [ScheduledMessage(outcome, request, 0)]
    if request.positions is not None:
        return [MixedMessage(outcome, request, index) for index in range(len(request.message_ids))]
    return [PlacedMessage(outcome, request, index) for index in range(len(request.message_ids))]


def failed_message(problem: ProblemError) -> FailedMessage:
    """Return the result of a message that failed."""
    # The traceback would keep the frames of the whole call in memory.
    return FailedMessage(problem.outcome or NOT_STORED, problem.with_traceback(None))


def batch_report(results: Sequence[MessageResult]) -> BatchReport:
    """Return the results with the number of messages of each outcome."""
    outcomes = [result.outcome for result in results]
    return BatchReport(results, outcomes.count(STORED), outcomes.count(NOT_STORED), outcomes.count(UNKNOWN))


# Plain strings, because encoders write them faster than members of an enum.
_OUTCOMES = {outcome: str(outcome) for outcome in Outcome}
