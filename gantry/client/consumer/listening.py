"""The listener of a push consumer: its form, its settings, and the meaning of its results. Pure.

A listener that returns has consumed its messages. One that raises has not:

    ReconsumeLaterError   the messages come again, after a delay that the listener may choose
    DeadLetterError       the messages become dead letters at once
    any other exception   the messages come again, after the delay of the group's retry policy

In a batch, the first two may name the messages that failed. The others are consumed.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gantry.client.consumer.heldmessages import HoldLimits
from gantry.client.errors import InvalidArgumentError
from gantry.model.message import StoredMessage
from gantry.model.names import is_retry_topic
from gantry.model.propertyname import PropertyName
from gantry.model.retrypolicy import DELAY_MS_MAX

MessageListener = Callable[[StoredMessage], Awaitable[None]]
"""Processes one message."""
BatchListener = Callable[[Sequence[StoredMessage]], Awaitable[None]]
"""Processes messages of one queue, in the order of their offsets."""

# Limits of the time for which an orderly queue is suspended: RocketMQ's suspendCurrentQueueTimeMillis.
SUSPEND_MS_MIN: Final = 10
SUSPEND_MS_MAX: Final = 30_000


class ReconsumeLaterError(Exception):
    """Raised by a listener: messages could not be processed, and are to come again.

    Attributes:
        delay_ms: The delay; None for that of the group's retry policy, or of the settings for an orderly consumer. An
            orderly consumer waits for 10 ms at least and 30 s at most.
        messages: The messages of the batch that failed; None for all. An orderly consumer delivers the messages after the
            first of them again, too.
    """

    def __init__(
        self, reason: str = "", *, delay_ms: int | None = None, messages: Iterable[StoredMessage] | None = None
    ) -> None:
        """Make the error. Raises InvalidArgumentError if the delay is not one that brokers accept."""
        if delay_ms is not None and not 0 <= delay_ms <= DELAY_MS_MAX:
            raise InvalidArgumentError("delay_ms", delay_ms, f"is not in 0 to {DELAY_MS_MAX}")
        super().__init__(reason or "the listener wants the message again later")
        self.delay_ms = delay_ms
        self.messages = None if messages is None else list(messages)


class DeadLetterError(Exception):
    """Raised by a listener: messages can never be processed, and are to become dead letters of the group.

    Attributes:
        messages: The messages of the batch that failed; None for all.
    """

    def __init__(self, reason: str = "", *, messages: Iterable[StoredMessage] | None = None) -> None:
        super().__init__(reason or "the listener rejects the message for good")
        self.messages = None if messages is None else list(messages)


class ListenerTimeoutError(Exception):
    """The listener did not return in time, and was cancelled."""


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Settings of a push consumer: RocketMQ's defaults, under names with units.

    Attributes:
        concurrency: Number of calls of the listener that run at once.
        batch_messages_max: Messages of one call; a message listener gets one.
        consume_timeout_ms: Time-out of one call. The listener is cancelled, and its messages have failed.
        max_reconsume_times: Number of retries of a message before it becomes a dead letter. None: the number of the
            group, or no limit for an orderly consumer.
        suspend_ms: Time for which an orderly queue waits after a failure, before the same message comes again.
        retry_here_ms: Time after which a message comes again that no broker could take back.
        revoke_timeout_ms: Time for which a queue that moves to another member waits for the calls that run. After it,
            their results no longer count.
        close_timeout_ms: Time for which `close` waits for the calls that run. After it, they are cancelled.
        limits: Limits of the messages in memory.
    """

    concurrency: int = 20
    batch_messages_max: int = 1
    consume_timeout_ms: int = 15 * 60_000
    max_reconsume_times: int | None = None
    suspend_ms: int = 1_000
    retry_here_ms: int = 5_000
    revoke_timeout_ms: int = 5_000
    close_timeout_ms: int = 30_000
    limits: HoldLimits = field(default_factory=HoldLimits)

    def check(self) -> None:
        """Raise InvalidArgumentError for the first setting that is not valid."""
        for name in ("concurrency", "batch_messages_max", "consume_timeout_ms", "retry_here_ms"):
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(name, getattr(self, name), "is not above 0")
        for name in ("revoke_timeout_ms", "close_timeout_ms"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(name, getattr(self, name), "is below 0")
        if self.max_reconsume_times is not None and self.max_reconsume_times < 0:
            raise InvalidArgumentError("max_reconsume_times", self.max_reconsume_times, "is below 0")
        if not SUSPEND_MS_MIN <= self.suspend_ms <= SUSPEND_MS_MAX:
            raise InvalidArgumentError("suspend_ms", self.suspend_ms, f"is not in {SUSPEND_MS_MIN} to {SUSPEND_MS_MAX}")
        for name in HoldLimits.__dataclass_fields__:
            if getattr(self.limits, name) <= 0:
                raise InvalidArgumentError(name, getattr(self.limits, name), "is not above 0")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a call of the listener.

    Attributes:
        failed: The messages that are not consumed, in the order of the batch.
        delay_ms: Delay that the listener chose; None if it chose none.
        is_dead: Whether they become dead letters at once.
    """

    failed: Sequence[StoredMessage]
    delay_ms: int | None = None
    is_dead: bool = False


def judge(messages: Sequence[StoredMessage], error: Exception | None) -> Verdict:
    """Return the result of a call that got these messages and ended with this error, or with none."""
    if error is None:
        return Verdict(())
    if isinstance(error, ReconsumeLaterError):
        return Verdict(_named(messages, error.messages), error.delay_ms)
    if isinstance(error, DeadLetterError):
        return Verdict(_named(messages, error.messages), is_dead=True)
    return Verdict(messages)


def clamp_suspend_ms(wanted_ms: int | None, default_ms: int) -> int:
    """Return the time for which an orderly queue is suspended."""
    return min(max(default_ms if wanted_ms is None else wanted_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)


def is_given_up(reconsume_times: int, failures: int, max_reconsume_times: int | None) -> bool:
    """Return whether a message of an orderly consumer becomes a dead letter.

    Args:
        reconsume_times: Retries of the message before the consumer pulled it.
        failures: Number of times that the message failed here.
        max_reconsume_times: Limit of retries; None if there is none.
    """
    return max_reconsume_times is not None and reconsume_times + failures > max_reconsume_times


def as_delivered(message: StoredMessage, failures: int) -> StoredMessage:
    """Return a message as the listener gets it: under its first topic, and with the failures here counted."""
    if is_retry_topic(message.topic):
        message = message._replace(topic=message.properties.get(PropertyName.RETRY_TOPIC, message.topic))
    return message._replace(reconsume_times=message.reconsume_times + failures) if failures else message


def _named(messages: Sequence[StoredMessage], named: Sequence[StoredMessage] | None) -> Sequence[StoredMessage]:
    """Return the messages that the listener named, all of which are of one queue."""
    if named is None:
        return messages
    offsets = {message.queue_offset for message in named}
    # If none of them is in the batch, the listener is confused, and no message may be lost for it.
    return [message for message in messages if message.queue_offset in offsets] or (messages if named else ())
