"""The calls of a push consumer's listener, and what becomes of their messages.

Theory of operation. One task gives out batches while fewer than `concurrency` run. Each batch runs in a task of its own:

    concurrent    a message that failed is sent back to its broker, which delivers it again later in the group's retry
                  topic. If no broker takes it back, the message comes again here after `retry_here_ms`.
    orderly       the messages from the first that failed on go back to the front of their queue, which is suspended. A
                  message that failed too often is sent back as a dead letter, and the queue goes on.

The result of a batch counts only if its queue is still held and was not reset meanwhile. A call that takes longer than
`consume_timeout_ms` is cancelled. A concurrent listener that ignores this keeps its place among the `concurrency` calls,
but its messages are sent back. An orderly one keeps its queue: two calls for one queue would break the order.

Source: RocketMQ 5.3 ConsumeMessageConcurrentlyService and ConsumeMessageOrderlyService.

Concurrency: the event loop's thread.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from gantry.client.consumer.failures import Failures
from gantry.client.consumer.heldmessages import Batch, HeldMessages, HeldQueue
from gantry.client.consumer.listening import (
    BatchListener,
    ListenerSettings,
    ListenerTimeoutError,
    Verdict,
    as_delivered,
    clamp_suspend_ms,
    is_given_up,
    judge,
)
from gantry.client.engine import ClientEngine
from gantry.model.message import MessageQueue, StoredMessage
from gantry.runtime.tasks import wait_for_event
from gantry.runtime.telemetry import logger

log = logger("client.listener")

CANCEL_GRACE_MS: Final = 1_000
"""Time in which a cancelled listener has to end."""
LOCK_RETRY_MS: Final = 1_000
"""Time until an orderly queue whose lock is not valid is tried again. Usually the queue is lost before."""
_IDLE_S: Final = 60.0


@dataclass(slots=True, eq=False)
class _Run:
    """A running batch.

    Attributes:
        batch: The batch.
        deadline_ms: Monotonic time at which the listener is cancelled, and after that, at which it is given up.
        task: The task; None before it has begun.
        is_listening: Whether the listener runs. Only then the task may be cancelled.
        is_stopped: Whether the listener was cancelled, or must not begin.
        is_timed_out: Whether the reason was the time-out.
        is_given_up: Whether the messages have failed although the listener still runs.
        is_ended: Whether the whole task was cancelled.
    """

    batch: Batch
    deadline_ms: int | None = None
    task: asyncio.Task[None] | None = None
    is_listening: bool = False
    is_stopped: bool = False
    is_timed_out: bool = False
    is_given_up: bool = False
    is_ended: bool = False

    def stop(self) -> None:
        """Cancel the listener, or keep it from beginning."""
        if self.is_listening and self.task is not None and not self.is_stopped:
            self.task.cancel()
        self.is_stopped = True

    def does_count(self, error: Exception | None) -> bool:
        """Return whether the result of the call counts.

        It does not if the messages have failed before, or if the queue is about to leave: that is no failure of theirs.
        """
        return not self.is_given_up and (error is None or self.is_timed_out or not self.is_stopped)


class Workers:
    """Runs the listener of one consumer."""

    def __init__(
        self,
        engine: ClientEngine,
        held: HeldMessages,
        listener: BatchListener,
        failures: Failures,
        settings: ListenerSettings,
        *,
        is_orderly: bool,
        wake: asyncio.Event,
        may_work: Callable[[MessageQueue], bool],
        on_room: Callable[[HeldQueue], None],
    ) -> None:
        """Make the workers.

        Args:
            engine: The client engine.
            held: The messages.
            listener: Processes a batch.
            failures: Handles the messages that failed.
            settings: The settings of the consumer.
            is_orderly: Whether the consumer consumes in order.
            wake: Set when messages were added, or when there may be other work.
            may_work: Returns whether a queue may be worked on now: an orderly consumer needs a valid lock.
            on_room: Called when a batch has ended.
        """
        self.counts = failures.counts
        self._failures = failures
        self._engine = engine
        self._group = failures.group
        self._held = held
        self._listener = listener
        self._settings = settings
        self._is_orderly = is_orderly
        self._may_work = may_work
        self._on_room = on_room
        self._running: dict[_Run, asyncio.Task[None]] = {}
        self._wake = wake
        self._has_ended = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to give out batches."""
        self._loop = self._engine.tasks.spawn(self._give_out())

    async def wait_idle(self, queues: Collection[HeldQueue], timeout_ms: int) -> bool:
        """Wait until no batch of these queues runs; return whether this happened in time.

        Messages that are set aside, and suspended queues, do not run.
        """
        clock = self._engine.clock
        end_ms = clock.monotonic_ms() + timeout_ms
        while any(held.running_count for held in queues):
            left_ms = end_ms - clock.monotonic_ms()
            if left_ms <= 0:
                return False
            self._has_ended.clear()
            await wait_for_event(self._has_ended, left_ms / 1000)
        return True

    def stop(self, queues: Collection[HeldQueue]) -> None:
        """Cancel the calls of the listener for these queues."""
        for run in list(self._running):
            if run.batch.held in queues:
                run.stop()

    def end(self) -> None:
        """Cancel everything, whatever it does, without a wait."""
        if self._loop is not None:
            self._loop.cancel()
            self._loop = None
        for run, task in list(self._running.items()):
            run.is_stopped = run.is_ended = True
            task.cancel()

    async def _give_out(self) -> None:
        while True:
            self._wake.clear()
            now_ms = self._engine.clock.monotonic_ms()
            self._held.resume(now_ms=now_ms)
            self._stop_overdue(now_ms)
            while len(self._running) < self._settings.concurrency and (batch := self._held.take()) is not None:
                run = _Run(batch)
                self._running[run] = self._engine.tasks.spawn(self._work(run))
            await wait_for_event(self._wake, self._next_s(now_ms))

    def _next_s(self, now_ms: int) -> float:
        deadlines = [run.deadline_ms for run in self._running if run.deadline_ms is not None]
        due_ms = self._held.next_due_ms()
        if due_ms is not None:
            deadlines.append(due_ms)
        return min(max(0, min(deadlines) - now_ms) / 1000, _IDLE_S) if deadlines else _IDLE_S

    def _stop_overdue(self, now_ms: int) -> None:
        for run in list(self._running):
            if run.deadline_ms is None or now_ms < run.deadline_ms:
                continue
            queue = run.batch.held.queue
            if not run.is_stopped:
                self.counts.timed_out += 1
                log.warning("the listener takes too long", group=self._group, queue=str(queue))
                run.is_timed_out = True
                run.deadline_ms = now_ms + CANCEL_GRACE_MS
                run.stop()
                continue
            run.deadline_ms = None
            log.error("the listener ignores its cancellation", group=self._group, queue=str(queue))
            if not self._is_orderly and run.is_timed_out:
                run.is_given_up = True
                self._engine.tasks.spawn(self._give_up(run.batch))

    async def _give_up(self, batch: Batch) -> None:
        """Let the messages of a batch fail although the listener still has them."""
        await self._settle(batch, batch.messages, ListenerTimeoutError("it ignores its cancellation"))
        self._wake.set()
        self._on_room(batch.held)

    async def _work(self, run: _Run) -> None:
        batch = run.batch
        run.task = asyncio.current_task()
        try:
            if run.is_stopped or not batch.is_current:
                return
            if self._is_orderly and not self._may_work(batch.held.queue):
                until_ms = self._engine.clock.monotonic_ms() + LOCK_RETRY_MS
                self._held.suspend(batch, batch.messages, until_ms=until_ms)
                return
            messages: Sequence[StoredMessage] = batch.messages
            if batch.held.dying:
                messages = await self._bury(batch)
            if not messages or run.is_stopped:
                return
            error = await self._listen(run, messages)
            if run.does_count(error):
                await self._settle(batch, messages, error)
            else:
                self.counts.dropped += len(messages)
        finally:
            del self._running[run]
            self._held.ended(batch)
            self._has_ended.set()
            self._wake.set()
            self._on_room(batch.held)

    async def _listen(self, run: _Run, messages: Sequence[StoredMessage]) -> Exception | None:
        """Call the listener; return its error."""
        failures = run.batch.held.failures
        shown = [as_delivered(message, failures.get(message.queue_offset, 0)) for message in messages]
        run.deadline_ms = self._engine.clock.monotonic_ms() + self._settings.consume_timeout_ms
        if self._settings.consume_timeout_ms < _IDLE_S * 1000:
            self._wake.set()  # The loop has to know the deadline. It looks by itself at least once in _IDLE_S.
        error: Exception | None = None
        run.is_listening = True
        try:
            await self._listener(shown)
        except asyncio.CancelledError:
            if not run.is_stopped or run.is_ended:
                raise
            error = ListenerTimeoutError("cancelled after the time-out" if run.is_timed_out else "cancelled")
        except Exception as caught:  # noqa: BLE001 # boundary: of a listener; its error is the result of the call.
            error = caught
        finally:
            run.is_listening = False
            run.deadline_ms = None
        if run.is_stopped:
            _uncancel(run.task)  # The rest of this task is not cancelled.
        return error

    async def _settle(self, batch: Batch, messages: Sequence[StoredMessage], error: Exception | None) -> None:
        """Act on the result of a call of the listener that got these messages of a batch."""
        if not batch.is_current:
            self.counts.dropped += len(messages)
            return
        verdict = judge(messages, error)
        if not verdict.failed:
            self.counts.consumed += len(messages)
            self._held.consumed(batch, messages)
            return
        self.counts.failed += len(verdict.failed)
        self._failures.report(batch, verdict, error)
        if self._is_orderly:
            await self._settle_orderly(batch, messages, verdict)
            return
        failed = {message.queue_offset for message in verdict.failed}
        consumed = [message for message in messages if message.queue_offset not in failed]
        self.counts.consumed += len(consumed)
        self._held.consumed(batch, consumed)
        await asyncio.gather(*(self._send_back(batch, message, verdict) for message in verdict.failed))

    async def _send_back(self, batch: Batch, message: StoredMessage, verdict: Verdict) -> None:
        if await self._failures.give_back(batch, message, delay_ms=verdict.delay_ms, is_dead=verdict.is_dead):
            self._held.consumed(batch, [message])
            return
        self.counts.retried_here += 1
        self._held.failed(batch, message)
        until_ms = self._engine.clock.monotonic_ms() + self._settings.retry_here_ms
        self._held.set_aside(batch, message, until_ms=until_ms)

    async def _settle_orderly(self, batch: Batch, messages: Sequence[StoredMessage], verdict: Verdict) -> None:
        first = verdict.failed[0].queue_offset
        consumed = [message for message in messages if message.queue_offset < first]
        self.counts.consumed += len(consumed)
        self._held.consumed(batch, consumed)
        for message in verdict.failed:
            failures = self._held.failed(batch, message)
            limit = self._settings.max_reconsume_times
            if verdict.is_dead or is_given_up(message.reconsume_times, failures, limit):
                batch.held.dying.add(message.queue_offset)
        left = [message for message in messages if message.queue_offset >= first]
        living = {message.queue_offset for message in left} - batch.held.dying
        if living:
            wait_ms = clamp_suspend_ms(verdict.delay_ms, self._settings.suspend_ms)
            self._held.suspend(batch, left, until_ms=self._engine.clock.monotonic_ms() + wait_ms)
            return
        await self._bury_some(batch, left)

    async def _bury(self, batch: Batch) -> Sequence[StoredMessage]:
        """Make dead letters of the batch's messages that were given up; return the others.

        If no broker takes one of them, the whole batch waits, and nothing is returned.
        """
        dying = [message for message in batch.messages if message.queue_offset in batch.held.dying]
        if not dying:
            return batch.messages
        left = [message for message in batch.messages if message.queue_offset not in batch.held.dying]
        if await self._bury_some(batch, dying, left):
            return left
        return ()

    async def _bury_some(
        self, batch: Batch, dying: Sequence[StoredMessage], others: Sequence[StoredMessage] = ()
    ) -> bool:
        """Make dead letters of messages; return whether a broker took all of them. If not, the rest waits in order."""
        for index, message in enumerate(dying):
            if not await self._failures.give_back(batch, message, is_dead=True):
                rest = sorted((*dying[index:], *others), key=lambda one: one.queue_offset)
                until_ms = self._engine.clock.monotonic_ms() + self._settings.retry_here_ms
                self._held.suspend(batch, rest, until_ms=until_ms)
                return False
            self._held.consumed(batch, [message])
        return batch.is_current


def _uncancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.uncancel()
