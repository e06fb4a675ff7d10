"""Messages of a listener that failed: sent back to their brokers, counted and logged.

In broadcasting mode, a message that is sent back would come to one member of the group, and not to the one that failed.
So it is not sent back, and the consumer goes on.

Concurrency: the event loop's thread.
"""

from dataclasses import dataclass
from typing import Final

from gantry.client.consumer.heldmessages import Batch
from gantry.client.consumer.listening import ListenerTimeoutError, ReconsumeLaterError, Verdict
from gantry.client.consumer.sendback import DEAD, SendBack
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.group import MessageModel
from gantry.model.message import StoredMessage
from gantry.runtime.telemetry import logger

log = logger("client.listener")

POISON_FAILURES: Final = 3
"""Number of failures from which a message that holds up its queue is reported."""
_TRACEBACK_INTERVAL_MS: Final = 60_000


@dataclass(slots=True)
class ListenerCounts:
    """The results of a consumer since its start.

    Attributes:
        consumed: Messages that the listener has processed.
        failed: Failed deliveries, time-outs among them.
        timed_out: Calls of the listener that took too long.
        sent_back: Messages that a broker has taken back for a later delivery.
        dead: Messages that a broker has taken as dead letters because this consumer said so.
        retried_here: Times that no broker could take a message back.
        skipped: Failed messages of a consumer in broadcasting mode, which are not delivered again.
        dropped: Messages whose result did not count: their queue had left or was reset, or they had failed before.
    """

    consumed: int = 0
    failed: int = 0
    timed_out: int = 0
    sent_back: int = 0
    dead: int = 0
    retried_here: int = 0
    skipped: int = 0
    dropped: int = 0


class Failures:
    """Handles the failed messages of one consumer.

    Attributes:
        group: The consumer group.
        counts: The results.
    """

    def __init__(
        self,
        engine: ClientEngine,
        group: str,
        *,
        model: MessageModel,
        max_reconsume_times: int | None,
        is_orderly: bool,
    ) -> None:
        self.counts = ListenerCounts()
        self.group = group
        self._clock = engine.clock
        self._is_broadcasting = model is MessageModel.BROADCASTING
        self._is_orderly = is_orderly
        self._back = SendBack(engine, group, failures_max=max_reconsume_times)
        self._traced_ms: int | None = None

    async def give_back(
        self,
        batch: Batch,
        message: StoredMessage,
        *,
        delay_ms: int | None = None,
        is_dead: bool = False,
    ) -> bool:
        """Send a message back; return whether a broker took it, or in broadcasting mode, whether it may be skipped."""
        queue = batch.held.queue
        if not batch.is_current:
            return False
        if self._is_broadcasting:
            self.counts.skipped += 1
            log.error(
                "a message is skipped: in broadcasting mode, it does not come again",
                group=self.group,
                queue=str(queue),
                offset=message.queue_offset,
                message_id=message.message_id,
            )
            return True
        failures = batch.held.failures.get(message.queue_offset, 0)
        if not self._is_orderly or not failures:
            failures += 1  # In order, this failure is counted already.
        try:
            if is_dead:
                await self._back.send_back(message, queue.broker_name, delay_level=DEAD, failures=failures)
            else:
                await self._back.send_back(message, queue.broker_name, delay_ms=delay_ms)
        except ClientError as error:
            log.warning(
                "message not sent back",
                group=self.group,
                queue=str(queue),
                offset=message.queue_offset,
                error=str(error),
            )
            return False
        if is_dead:
            self.counts.dead += 1
            log.warning(
                "a message becomes a dead letter", group=self.group, queue=str(queue), offset=message.queue_offset
            )
        else:
            self.counts.sent_back += 1
        return True

    def report(self, batch: Batch, verdict: Verdict, error: Exception | None) -> None:
        """Log a failure: with a traceback once a minute, and for an orderly queue more and more seldom."""
        message = verdict.failed[0]
        failures = batch.held.failures.get(message.queue_offset, 0) + 1
        if self._is_orderly and failures > POISON_FAILURES and failures & (failures - 1):
            return
        now_ms = self._clock.monotonic_ms()
        has_traceback = not isinstance(error, ReconsumeLaterError | ListenerTimeoutError) and (
            self._traced_ms is None or now_ms - self._traced_ms >= _TRACEBACK_INTERVAL_MS
        )
        if has_traceback:
            self._traced_ms = now_ms
        holds_up = self._is_orderly and failures >= POISON_FAILURES
        log.warning(
            "a message holds up its queue" if holds_up else "a message was not consumed",
            group=self.group,
            queue=str(batch.held.queue),
            offset=message.queue_offset,
            message_id=message.message_id,
            reconsume_times=message.reconsume_times + failures - 1,
            count=len(verdict.failed),
            error=repr(error),
            exc_info=error if has_traceback else None,
        )
