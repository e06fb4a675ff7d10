"""Lists the messages that wait, page by page, in the order of the seconds at which they fire or are rolled.

A page examines a limited number of slots and units. It may therefore be empty although more pages follow.

Concurrency: the loop's thread. Between two slices of a page, messages may fire or come: a page shows each second as it
is when the page reaches it.
"""

from functools import partial

from gantry.model.javahash import java_hash
from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.model.recallhandle import RecallHandle, encode_recall_handle
from gantry.model.timerdeletion import key_of
from gantry.remoting.bodies.timer import WaitingMessage, WaitingMessages
from gantry.runtime.clock import Clock
from gantry.storeformat.timerfiles import NO_UNIT, SECOND_MS, TimerUnit
from services.broker.coldreader import ColdReader
from services.broker.store.messagestore import MessageStore
from services.broker.timer.recovery import due_ms, timer_message
from services.broker.timer.waiting import Waiting
from services.broker.turns import Turns

EXAMINED_UNITS_MAX = 8192
SCANS_MAX = 64
"""Number of parts of the wheel that a page scans; 64 are three days without a message."""
# About 1 ms each.
_SLICE_UNITS = 256
_SLICE_RECORDS = 16


class Listing:
    """Makes pages of waiting messages."""

    def __init__(
        self,
        *,
        waiting: Waiting,
        store: MessageStore,
        cold: ColdReader,
        turns: Turns,
        clock: Clock,
        broker_name: str,
    ) -> None:
        self._waiting = waiting
        self._store = store
        self._cold = cold
        self._turns = turns
        self._clock = clock
        self._broker_name = broker_name

    async def page(self, second: int, position: int | None, *, topic: str | None, messages_max: int) -> WaitingMessages:
        """Return one page.

        Args:
            second: The second (ms / 1000) to start at.
            position: The position of the unit to start at, or None for the beginning of the second.
            topic: The topic, or None for all topics.
            messages_max: The maximum number of messages.

        Raises:
            ColdReadsBusyError: Too many requests wait for the disk.
            StoreReadError: The disk can't read a record.
            OSError: The disk can't read a unit.
        """
        waiting = self._waiting
        page = WaitingMessages(messages=[], now_ms=self._clock.now_ms(), waiting=waiting.count)
        if second < waiting.read_second:
            second, position = waiting.read_second, None
        topic_hash = None if topic is None else java_hash(topic)
        examined = scans = 0
        # No unit waits further ahead than the wheel reaches.
        stop = waiting.read_second + waiting.wheel.slots
        while second < stop:
            if len(page.messages) >= messages_max or examined >= EXAMINED_UNITS_MAX or scans >= SCANS_MAX:
                page.next_second = second
                return page
            async with self._turns:
                used = waiting.wheel.next_used(second, stop)
                self._turns.spend(0.5)
            scans += 1
            slot = waiting.wheel.find(used) if used < stop else None
            if slot is None:
                second, position = used, None
                continue
            found, at, count = await self._units(slot.last, position if used == second else None, topic_hash)
            examined += count
            left_at = await self._add(page, found, topic, messages_max)
            if left_at is not None or at != NO_UNIT:
                page.next_second, page.next_position = used, at if left_at is None else left_at
                return page
            second, position = used + 1, None
        return page

    async def _units(
        self, last: int, start: int | None, topic_hash: int | None
    ) -> tuple[list[tuple[int, TimerUnit]], int, int]:
        """Walk through the list of a second.

        Returns:
            Deletions, and the units from `start` on, of topics with this hash; the position at which the walk ended
            because it was long, or NO_UNIT; and the number of examined units.
        """
        found: list[tuple[int, TimerUnit]] = []
        position, count = last, 0
        while position != NO_UNIT:
            unit = self._waiting.log.find(position)
            if unit is None or unit.previous >= position:
                return found, NO_UNIT, count
            is_wanted = topic_hash is None or unit.topic_hash == topic_hash
            if is_wanted and (unit.is_deletion or start is None or position <= start):
                if len(found) >= EXAMINED_UNITS_MAX:
                    return found, position, count
                found.append((position, unit))
            position = unit.previous
            count += 1
            if count % _SLICE_UNITS == 0:
                async with self._turns:
                    self._turns.spend(1.0)
        return found, NO_UNIT, count

    async def _add(
        self, page: WaitingMessages, found: list[tuple[int, TimerUnit]], topic: str | None, messages_max: int
    ) -> int | None:
        """Add messages to the page. Return the position of the first one for which there is no room, or None."""
        deleted: set[str] = set()
        for number, (position, unit) in enumerate(found):
            if len(page.messages) >= messages_max and not unit.is_deletion:
                return position
            record = await self._cold.run(self, partial(self._store.record_at, unit.physical_offset))
            message = timer_message(record)
            if number % _SLICE_RECORDS == 0:
                async with self._turns:
                    self._turns.spend(1.0)
            if message is None or self._is_dead(message):
                continue
            # A deletion follows its message, and the list begins with the last one.
            if unit.is_deletion:
                deleted.add(message.properties.get(PropertyName.TIMER_DEL_UNIQKEY, ""))
            elif topic in (None, message.properties[PropertyName.REAL_TOPIC]) and key_of(message) not in deleted:
                page.messages.append(self._shown(unit, message))
        return None

    def _is_dead(self, message: StoredMessage) -> bool:
        topic = message.properties[PropertyName.REAL_TOPIC].encode()
        return self._store.is_dead(topic, message.physical_offset, message.stored_at_ms)

    def _shown(self, unit: TimerUnit, message: StoredMessage) -> WaitingMessage:
        properties, due = message.properties, due_ms(message)
        assert due is not None, "checked by timer_message"
        topic, key = properties[PropertyName.REAL_TOPIC], properties.get(PropertyName.UNIQ_KEY, "")
        return WaitingMessage(
            born_at=message.born_at_ms,
            delivery_at=due + SECOND_MS,
            is_rolled=unit.is_rolled,
            keys=properties.get(PropertyName.KEYS),
            message_id=key,
            physical_offset=message.physical_offset,
            queue_id=int(properties[PropertyName.REAL_QID]),
            recall_handle=encode_recall_handle(RecallHandle(topic, self._broker_name, due + 1, key)),
            size=message.size_bytes,
            stored_at=message.stored_at_ms,
            tag=properties.get(PropertyName.TAGS),
            topic=topic,
        )
