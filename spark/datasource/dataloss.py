"""Reports messages that a query should have read and can't: with one error or, with `failOnDataLoss=false`, in the log.

If a broker does not answer, that is no loss. Only the statements of a broker about its own queues count.

Source: Spark's Kafka source, option `failOnDataLoss`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gantry.model.message import MessageQueue
from gantry.runtime.telemetry import logger

log = logger("spark.dataloss")

NO_SUCH_TOPIC: Final = "no such topic on this broker"
"""The text that replaces the found offset if the topic was deleted."""
SHOWN_MAX: Final = 8
"""The limit for the queues in one error."""
LOGGED_MAX: Final = 256
"""The limit for the queues that one call logs."""


class DataLossError(Exception):
    """Raised if messages are lost: the query must not continue as if they had never existed."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The messages of one queue that are lost.

    Attributes:
        queue: The queue.
        expected: The queue offset at which reading should have continued.
        found: The offset or message that was found instead, in words.
        end: The end of the lost messages `[expected, end)`; None if their number is unknown.
        reason: The reason for the loss.
        next: The queue offset at which reading can continue; None if nothing is left to read.
    """

    queue: MessageQueue
    expected: int
    found: str
    end: int | None
    reason: str
    next: int | None = None

    @property
    def range(self) -> str:
        """The lost messages, in words."""
        if self.end is None:
            return f"messages from offset {self.expected} on, their number is unknown"
        return f"messages [{self.expected}, {self.end}), {self.end - self.expected} of them"

    def __str__(self) -> str:
        queue = self.queue
        following = "nothing is left to read" if self.next is None else f"the next to read is at offset {self.next}"
        return (
            f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}: expected offset {self.expected},"
            f" found {self.found}; {self.reason}; lost: {self.range}; {following}"
        )


def report_losses(losses: Sequence[Loss], *, is_failure: bool) -> None:
    """Raise DataLossError if there are losses and `is_failure` is true, else log a warning for each queue."""
    if not losses:
        return
    if is_failure:
        listed = "; and ".join(str(loss) for loss in losses[:SHOWN_MAX])
        more = f"; and {len(losses) - SHOWN_MAX} more queues" if len(losses) > SHOWN_MAX else ""
        raise DataLossError(
            f"data is lost: {listed}{more}. To continue with the rest, set the option failOnDataLoss to false"
        )
    for loss in losses[:LOGGED_MAX]:
        log.warning(
            "data is lost, reading continues with the rest",
            topic=loss.queue.topic, broker=loss.queue.broker_name, queue_id=loss.queue.queue_id,
            expected=loss.expected, found=loss.found, lost=loss.range, reason=loss.reason, next=loss.next,
        )  # fmt: skip
    if len(losses) > LOGGED_MAX:
        log.warning("data of more queues is lost", queues=len(losses) - LOGGED_MAX)
