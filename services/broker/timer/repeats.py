"""Finds out after a start which messages had fired before, so that a crash repeats none of them.

The check point is up to a second older than the crash. The messages that fired in between fire again, unless somebody
finds them in their topics. If the broker is killed once more before its next check point, they would fire a third time.
So as long as the timer works on seconds that were over before the crash, it asks the index of the store for each
message whether its delivered (or rolled) record is there.

The delivered record keeps the unique key, the time and host of birth, the body and the second of its original. Two
messages that agree in all of them are one message that a client sent twice. One of them may be left out.

If the index does not know the record, the message fires again: it is repeated, never lost.

Concurrency: the loop's thread.
"""

from functools import partial
from typing import Final

from gantry.model.errors import RecordError
from gantry.model.propertyname import PropertyName
from gantry.model.record import decode_record
from gantry.storeformat.timerfiles import SECOND_MS
from services.broker.coldreader import ColdReader
from services.broker.newmessage import NewMessage
from services.broker.store.index.keysearch import KeySearch
from services.broker.store.messagestore import MessageStore
from services.broker.timer.waiting import Waiting
from services.broker.turns import Turns

FOUND_MAX: Final = 64
"""Largest number of records with a message's unique key that are compared with it."""
# About half a millisecond each.
_SLICE_ENTRIES = 500
_SLICE_BYTES = 512 * 1024
_SLICES = 16  # A look at the index takes less than 0.1 ms if the chain of its slot is short.


class Repeats:
    """Knows what may have fired before the last start.

    Args:
        store: The store, after its recovery.
        waiting: The waiting messages, after their recovery.
        cold: Reader of index entries and records that are not in memory.
        turns: Turns of long work.

    Attributes:
        found: Number of messages that did not fire again.
    """

    def __init__(self, *, store: MessageStore, waiting: Waiting, cold: ColdReader, turns: Turns) -> None:
        self.found = 0
        self._store = store
        self._waiting = waiting
        self._cold = cold
        self._turns = turns
        self._begin_ms = waiting.read_second * SECOND_MS
        # No message that fired before the start was stored later than this.
        self._end_ms, _ = store.index_last_update()

    async def has(self, message: NewMessage) -> bool:
        """Return whether a message that is about to be appended was stored before the last start.

        Raises:
            ColdReadsBusyError: Too many reads wait. Try again later.
            StoreReadError: The disk can't read the index.
        """
        if self._waiting.read_second * SECOND_MS > self._end_ms:
            return False
        key = message.properties.get(PropertyName.UNIQ_KEY, "")
        search = self._store.search(message.topic, key, FOUND_MAX, self._begin_ms, self._end_ms) if key else None
        if search is None:
            return False
        while not search.is_done:
            await self._cold.run(self, partial(self._step, search), turns=self._turns)
        offsets = list(search.found)
        while offsets:
            records = await self._cold.run(self, partial(self._read, offsets), turns=self._turns)
            if any(record is not None and _is_same(record, message) for record in records):
                self.found += 1
                return True
            offsets = offsets[len(records) :]
        return False

    def _step(self, search: KeySearch) -> None:
        walked = search.walked
        try:
            search.step(_SLICE_ENTRIES)
        finally:
            self._turns.spend(1 / _SLICES + (search.walked - walked) / _SLICE_ENTRIES)

    def _read(self, offsets: list[int]) -> list[bytes | None]:
        records = self._store.records(offsets, _SLICE_BYTES)
        self._turns.spend(1 / _SLICES + sum(len(record) for record in records if record is not None) / _SLICE_BYTES)
        return records


def _is_same(record: bytes, message: NewMessage) -> bool:
    """Return whether a record is that of a message, stored before."""
    try:
        stored = decode_record(record, check_crc=False)
    except RecordError:
        return False
    kept = (PropertyName.UNIQ_KEY, PropertyName.TIMER_OUT_MS, PropertyName.TIMER_ROLL_TIMES)
    return (
        stored.topic == message.topic
        and (stored.born_at_ms, stored.body) == (message.born_at_ms, message.body)
        and all(stored.properties.get(name) == message.properties.get(name) for name in kept)
    )
