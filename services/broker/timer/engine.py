"""The work of the timer: it reads the timer's queue into the wheel, and fires the seconds that are over.

Theory of operation. One task does everything in turn, about ten times a second and at the beginning of each second:

    enqueue   read the queue of the timer topic in order. A message whose second has fired fires at once, every other one
              becomes a unit of the timer log and waits in the wheel.
    fire      for each second that is over: read its list of units, collect the deletions, append the other messages to
              their real topics in the order of the log, and put the rolled ones back into the queue. The wheel's time
              moves on when all of them are durable.
    save      once a second while something changes, and about every ten minutes: write a check point in a thread.

So progress never runs ahead of what is durable. A crash repeats at most the messages that fired since the last check
point, and loses none. Work runs in slices that take turns with all other long work (turns.py): a second with 100,000
messages takes longer than a second, and sends between them wait for one slice. After a start, a message may be read when
its second is over. It waits in the wheel if its second has not fired. Later seconds wait, because its deletion may follow.

Memory: a waiting message has no object. Only the positions of the second that fires are in memory, 8 bytes each.

Concurrency: the loop's thread. A bug ends the process, as in every other job.
"""

import asyncio
from array import array
from collections.abc import Callable
from functools import partial

from gantry.model.javahash import java_hash
from gantry.model.message import StoredMessage
from gantry.model.names import TIMER_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.timerdeletion import deletes, is_deletion, key_of
from gantry.runtime.clock import Clock
from gantry.runtime.errors import describe_os_error
from gantry.runtime.telemetry import logger
from gantry.storeformat.timerfiles import NO_UNIT, SECOND_MS, SlotProgress, TimerUnit
from services.broker.coldreader import ColdReader, ColdReadsBusyError
from services.broker.registry.persistence import RunInThread
from services.broker.store.errors import StoreReadError
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import GetResult
from services.broker.timer.appending import NEVER_ENQUEUED, RETRY_S, Appender
from services.broker.timer.counts import TopicCounts
from services.broker.timer.recalls import Deletions, Recalls
from services.broker.timer.recovery import due_ms, timer_message
from services.broker.timer.request import next_stop_ms
from services.broker.timer.waiting import Waiting
from services.broker.turns import Turns

log = logger("broker.timer")

ROUND_MS = 100
SAVE_MS = 1000
IDLE_SAVE_MS = CLEAN_MS = 600_000
COUNTS_SAVE_MS = 10_000
CHANGED_SLOTS_MAX = 50_000
"""Largest number of changed slots in memory; then the queue waits for a check point."""

# About 1 ms each.
_READ_MESSAGES, _READ_BYTES = 32, 1 << 18
_SLICE_MESSAGES = 8
_SLICE_UNITS = 512
# So many messages are appended before their durability is awaited.
_CHUNK_MESSAGES = 256


class Engine:
    """The timer of one broker. `on_deletion` is called with each deletion that waits in the wheel: it is certain to hit.

    Attributes:
        enqueued: Number of messages read from the timer's queue.
        deleted: Number of messages that a deletion has suppressed.
        unreadable: Number of messages whose record or unit can't be read any more.
    """

    def __init__(
        self,
        *,
        waiting: Waiting,
        recalls: Recalls,
        appender: Appender,
        counts: TopicCounts,
        store: MessageStore,
        cold: ColdReader,
        turns: Turns,
        clock: Clock,
        run_in_thread: RunInThread,
        window_ms: int,
        save_ms: int = SAVE_MS,
        on_deletion: Callable[[StoredMessage], None],
    ) -> None:
        self._waiting = waiting
        self._recalls = recalls
        self._appender = appender
        self._counts = counts
        self._store = store
        self._cold = cold
        self._turns = turns
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._window_ms = window_ms
        self._save_ms = save_ms
        self._saved_at_ms = clock.monotonic_ms()
        self._cleaned_at_ms = self._counts_saved_at_ms = self._saved_at_ms
        self._is_broken, self._on_deletion = False, on_deletion
        self._read_first = store.max_offset(TIMER_TOPIC, 0)  # To be read before the next second fires.
        self.enqueued = self.deleted = self.unreadable = 0

    async def tick(self) -> None:
        """Do a round, and another one at the next second if it begins before the next tick."""
        await self._round()
        left_ms = SECOND_MS - self._clock.now_ms() % SECOND_MS
        if left_ms <= ROUND_MS:
            # A message fires as soon as its second is over.
            await asyncio.sleep(left_ms / 1000)
            await self._round()

    async def _round(self) -> None:
        """Enqueue what is in the queue, fire what is due, and save. An error of one step does not stop the others."""
        has_failed = False
        for step in (self._enqueue, self._fire, self._save_if_due, self._drop_expired):
            try:
                await step()
            except (ColdReadsBusyError, StoreReadError, OSError) as error:
                reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
                log.warning("messages for a set time wait, a file can't be used now", reason=reason)
                has_failed = True
        if has_failed:
            await asyncio.sleep(RETRY_S)

    def behind_messages(self) -> int:
        """Return the number of messages in the timer's queue that are not read yet."""
        return max(0, self._store.max_offset(TIMER_TOPIC, 0) - self._waiting.queue_offset)

    def behind_ms(self) -> int:
        """Return how long the oldest second that has not fired is over (ms)."""
        return max(0, self._clock.now_ms() - self._waiting.read_second * SECOND_MS)

    def close(self) -> None:
        """Write the last check point and close the files. The task has ended."""
        try:
            if self._waiting.is_changed and not self._is_broken:
                pending = self._waiting.begin_check()
                self._waiting.write_check(pending)
                self._waiting.end_check(pending)
            if self._counts.is_changed:
                self._counts.take()()
        except OSError as error:
            log.warning("the timer's check point can't be written", reason=describe_os_error(error))
        self._waiting.close()

    async def _enqueue(self) -> None:
        """Read the queue to its end, or until a second is over or something must come first."""
        waiting, store = self._waiting, self._store
        waiting.log.write_out()  # If the disk is still full, no more units are made.
        while waiting.queue_offset != store.max_offset(TIMER_TOPIC, 0):
            offset = waiting.queue_offset
            found = await self._cold.run(self, partial(self._read, offset), turns=self._turns)
            if not await self._enqueue_batch(found):
                return
            await self._save_if_due()
            if waiting.queue_offset == offset or waiting.wheel.changed_count >= CHANGED_SLOTS_MAX:
                return
            if waiting.queue_offset >= self._read_first and waiting.read_second < self._clock.now_ms() // SECOND_MS:
                return

    async def _enqueue_batch(self, found: GetResult) -> bool:
        """Let the messages of one read wait. Return False if the place of a slot is taken until it fires."""
        waiting, offset, is_stopping = self._waiting, self._waiting.queue_offset, False
        try:
            for record in found.records:
                message = timer_message(record)
                if message is None:
                    self.unreadable += 1
                    log.error(
                        "a record of the timer's queue is no message for a set time, it is skipped", offset=offset
                    )
                elif await self._enqueue_message(message):
                    offset = message.queue_offset + 1
                else:
                    return False
            offset = found.next_offset
        except asyncio.CancelledError:
            is_stopping = True
            raise
        finally:
            # Also after an error: a message whose unit exists, or that has fired, must not be read again.
            if await self._appender.settle(is_stopping=is_stopping):
                waiting.note_read(offset)
        waiting.log.write_out()
        return True

    def _read(self, offset: int) -> GetResult:
        self._turns.spend(1.0)
        return self._store.get(
            TIMER_TOPIC, 0, offset, _READ_MESSAGES, max_bytes=_READ_BYTES, wide_messages=_READ_MESSAGES
        )

    async def _enqueue_message(self, message: StoredMessage) -> bool:
        """Let one message wait, or fire it. Return False if its slot's place is taken."""
        if self._appender.drops(message):
            self.enqueued += 1
            return True
        topic, deletes_other = message.properties[PropertyName.REAL_TOPIC], is_deletion(message)
        now_ms, due = self._clock.now_ms() // SECOND_MS * SECOND_MS, due_ms(message)
        assert due is not None, "checked by timer_message"
        if due < now_ms and due // SECOND_MS < self._waiting.read_second:
            order = self._recalls.order(due // SECOND_MS, key_of(message))
            if order is not None and deletes_other:
                self._on_deletion(message)  # It was taken before its second fired.
            elif order is not None and deletes(order, message):
                self.deleted += 1
            elif not deletes_other:
                self._counts.add(topic, 1)
                await self._appender.fire(message, enqueued_ms=NEVER_ENQUEUED)
        else:
            stop_ms, is_rolled = next_stop_ms(due, now_ms, self._window_ms)
            is_added = self._waiting.add(
                stop_ms,
                written_at_ms=min(now_ms, stop_ms),
                physical_offset=message.physical_offset,
                size_bytes=message.size_bytes,
                topic_hash=java_hash(topic),
                is_rolled=is_rolled,
                is_deletion=deletes_other,
            )
            if not is_added:
                return False
            self._counts.add(topic, -1 if deletes_other else 1)
            if deletes_other:
                self._on_deletion(message)
        self.enqueued += 1
        return True

    async def _fire(self) -> None:
        """Fire every second that is over."""
        waiting = self._waiting
        while (second := waiting.read_second) < (now := self._clock.now_ms() // SECOND_MS):
            async with self._turns:
                used = waiting.wheel.next_used(second, now)
                self._turns.spend(0.1 + (used - second) / 4096)
            if used > second:
                waiting.skip_to(used)
            slot = waiting.wheel.find(used) if used < now else None
            if slot is not None:
                rolled = self._appender.rolled
                await self._fire_second(used, slot.last)
                waiting.end_second()
                self._recalls.forget(waiting.read_second, waiting.queue_offset)
                await self._save_if_due()
                if self._appender.rolled > rolled and used < now - 1:
                    self._read_first = self._store.max_offset(TIMER_TOPIC, 0)
                    await self._enqueue()

    async def _fire_second(self, second: int, last: int) -> None:
        """Append all messages of a second, and wait until they are durable."""
        waiting, appender, is_stopping = self._waiting, self._appender, False
        done = noted = NO_UNIT if waiting.progress is None else waiting.progress.position
        positions, deletion_positions = await self._positions(last)
        deletions = await self._deletions(deletion_positions)
        deletions.take(
            self._recalls.close(second)
        )  # Recalls come until this moment, and the queue may hold more of them.
        try:
            for count, position in enumerate((each for each in reversed(positions) if each > noted), 1):
                await self._fire_unit(position, deletions)
                done = position
                if count % _SLICE_MESSAGES == 0:
                    await _rest(self._turns)
                if count % _CHUNK_MESSAGES == 0:
                    await appender.durable()
                    waiting.note_fired(SlotProgress(second, done))
                    noted = done
                    await self._save_if_due()
        except asyncio.CancelledError:
            is_stopping = True
            raise
        finally:
            # Also after an error: what has fired must not fire again.
            if done > noted and await appender.settle(is_stopping=is_stopping):
                waiting.note_fired(SlotProgress(second, done))
        for topic, count in deletions.unused():
            self._counts.add(topic, count)  # They met no message, but were counted as one each.

    async def _fire_unit(self, position: int, deletions: Deletions) -> None:
        unit = self._waiting.log.find(position)
        if unit is None:
            self._note_broken_list(position)
            return
        message = await self._message(unit)
        if message is None or self._appender.drops(message):
            return
        if unit.is_rolled:
            await self._appender.roll(message, enqueued_ms=unit.written_at_ms)
        elif (change := deletions.hit(message)) is not None:
            self._counts.add(message.properties[PropertyName.REAL_TOPIC], change)
            self.deleted += 1
        else:
            await self._appender.fire(message, enqueued_ms=unit.written_at_ms)

    async def _positions(self, last: int) -> "tuple[array[int], list[int]]":
        """Return the positions of a second's units, newest first: messages and rolled ones, and deletions."""
        positions, deletions, position, count = array("q"), list[int](), last, 0
        while position != NO_UNIT:
            unit = self._waiting.log.find(position)
            if unit is None or unit.previous >= position:
                self._note_broken_list(position)
                break
            if unit.is_deletion and not unit.is_rolled:
                deletions.append(position)
            else:
                positions.append(position)
            position = unit.previous
            count += 1
            if count % _SLICE_UNITS == 0:
                await _rest(self._turns)
        return positions, deletions

    def _note_broken_list(self, position: int) -> None:
        self.unreadable += 1
        second = self._waiting.read_second
        log.error("the list of a second is broken in the timer log", second=second, position=position)

    async def _deletions(self, positions: list[int]) -> Deletions:
        deletions = Deletions()
        for count, unit in enumerate(filter(None, map(self._waiting.log.find, positions)), 1):
            message = await self._message(unit)
            if message is not None and not self._appender.drops(message):
                deletions.read(message)
            if count % _SLICE_MESSAGES == 0:
                await _rest(self._turns, 0.5)
        return deletions

    async def _message(self, unit: TimerUnit) -> StoredMessage | None:
        """Return the message of a unit; None if its record was removed or damaged, which is logged."""
        record = await self._cold.run(self, partial(self._store.record_at, unit.physical_offset))
        message = timer_message(record)
        if message is None or message.size_bytes != unit.size_bytes:
            self.unreadable += 1
            log.error(
                "the record of a message for a set time is removed or damaged, it can't be delivered",
                physical_offset=unit.physical_offset,
                size_bytes=unit.size_bytes,
                second=unit.slot_ms // SECOND_MS,
            )
            return None
        return message

    async def _save_if_due(self) -> None:
        now_ms, waiting = self._clock.monotonic_ms(), self._waiting
        elapsed_ms = now_ms - self._saved_at_ms
        # A wheel without messages moves on, too: Apache's broker would read all seconds since the last check point.
        is_due = waiting.is_changed or (waiting.has_files and elapsed_ms >= IDLE_SAVE_MS)
        is_full = waiting.wheel.changed_count >= CHANGED_SLOTS_MAX
        if self._is_broken or not is_due or (elapsed_ms < self._save_ms and not is_full):
            return
        self._saved_at_ms = now_ms
        pending = waiting.begin_check()
        writing = asyncio.ensure_future(self._run_in_thread(partial(waiting.write_check, pending)))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The thread can't be stopped. Wait for it, so that its write does not end after a later one.
            await asyncio.wait({writing})
            self._is_broken = writing.exception() is not None
            if not self._is_broken:
                waiting.end_check(pending)
            raise
        except OSError as error:
            # Written bytes may be lost although a later sync succeeds. The last check point stays valid.
            self._is_broken = True
            reason = (
                "the timer's files can't be written: no check point until the next start, which repeats what fires now"
            )
            log.error(reason, reason=describe_os_error(error))  # noqa: TRY400 - the reason is enough.
            return
        waiting.end_check(pending)
        if self._counts.is_changed and now_ms - self._counts_saved_at_ms >= COUNTS_SAVE_MS:
            self._counts_saved_at_ms = now_ms
            await self._run_in_thread(self._counts.take())

    async def _drop_expired(self) -> None:
        """Remove the files of the timer log before the first unit that waits."""
        now_ms, waiting = self._clock.monotonic_ms(), self._waiting
        if waiting.log.files_count < 2 or now_ms - self._cleaned_at_ms < CLEAN_MS:
            return
        self._cleaned_at_ms = now_ms
        # The units behind the check point must stay: recovery begins there.
        first = waiting.check.log_flushed
        for slots in waiting.wheel.scan(waiting.read_second):
            first = min([first, *(slot.first for slot in slots)])
            await _rest(self._turns)
        dropped = waiting.log.drop_before(first)
        if dropped:
            log.info("files of the timer log are removed, nothing in them waits", count=dropped)


async def _rest(turns: Turns, share: float = 1.0) -> None:
    """End a slice of work."""
    async with turns:
        turns.spend(share)
