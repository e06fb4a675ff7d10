"""The timer wheel: for each second, the list of units of the messages that wait for it.

A changed slot stays in memory until the next check point. The check point writes it after it has synced the timer log,
so a slot on the disk never names a unit that a crash can take away. The slots of a check point that is being written
are kept apart from those that change meanwhile.

Concurrency: the loop's thread; `write` runs in a thread, while the loop's thread changes other slots.
"""

from collections.abc import Iterator, Sequence

from gantry.runtime.files import File, FileSystem
from gantry.storeformat.timerfiles import (
    NO_UNIT,
    SLOT,
    SLOT_BYTES,
    WHEEL_SLOTS,
    Slot,
    decode_slot,
    encode_slot,
    slot_index,
)

SCAN_SLOTS = 4096
"""The number of slots that a scan examines at once, in about half a millisecond if all of them are in use."""
_EMPTY = bytes(SCAN_SLOTS * SLOT_BYTES)


class Wheel:
    """The wheel's file and the slots that are not written yet.

    Args:
        files: The file system.
        path: The path of the file; the file is created by the first write.
        slots: The number of slots; tests pass fewer.
    """

    def __init__(self, files: FileSystem, path: str, *, slots: int = WHEEL_SLOTS) -> None:
        self.slots = slots
        self.path = path
        self._files = files
        self._file: File | None = None
        self._changed: dict[int, Slot] = {}
        self._being_written: dict[int, Slot] = {}

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.slots * SLOT_BYTES

    @property
    def file_bytes(self) -> int:
        """The size of the file on the disk; 0 if there is none."""
        return 0 if self._file is None else self._file.size_bytes

    def open(self) -> bool:
        """Open the file if it exists. Return whether it does. An empty one is the rest of a crash, and is removed."""
        if self._files.exists(self.path) and self._files.size_bytes(self.path) == 0:
            self._files.remove(self.path)
        if not self._files.exists(self.path):
            return False
        self._file = self._files.open(self.path)
        return True

    def create(self) -> None:
        """Create the file with holes: a slot takes space when it is first used. Raises OSError."""
        if self._file is None:
            self._file = self._files.create(self.path, self.size_bytes, sparse=True)

    def find(self, second: int) -> Slot | None:
        """Return the slot of a second, or None if nothing waits or waited for this second."""
        slot = self.occupant(second)
        return slot if slot.second == second and slot.last != NO_UNIT else None

    def occupant(self, second: int) -> Slot:
        """Return what stands in the place of a second's slot: perhaps the slot of another second, perhaps zeros."""
        index = slot_index(second, slots=self.slots)
        slot = self._changed.get(index) or self._being_written.get(index)
        if slot is None:
            slot = (
                Slot(0, 0, 0, 0) if self._file is None else decode_slot(self._file.read(index * SLOT_BYTES, SLOT_BYTES))
            )
        return slot

    def put(self, slot: Slot) -> None:
        """Change a slot."""
        self._changed[slot_index(slot.second, slots=self.slots)] = slot

    @property
    def changed_count(self) -> int:
        """The number of slots that wait for a check point."""
        return len(self._changed)

    def next_used(self, second: int, stop: int) -> int:
        """Return the first second from `second` on, before `stop`, for which something waits, or a second without.

        One call examines at most `SCAN_SLOTS` slots. If it finds nothing there, it returns the second after them.
        """
        index = slot_index(second, slots=self.slots)
        count = min(SCAN_SLOTS, stop - second, self.slots - index)
        for each, slot in self._read(index, count):
            if slot.second == second + each - index and slot.last != NO_UNIT:
                return slot.second
        return second + count

    def scan(self, from_second: int) -> Iterator[Sequence[Slot]]:
        """Yield the used slots of seconds at or after `from_second`, in the order of the file, some at a time."""
        for index in range(0, self.slots, SCAN_SLOTS):
            found = [slot for _, slot in self._read(index, min(SCAN_SLOTS, self.slots - index))]
            yield [slot for slot in found if slot.second >= from_second and slot.last != NO_UNIT and slot.second > 0]

    def take_changed(self) -> dict[int, Slot]:
        """Return the changed slots for a check point; `written` ends it. They stay visible."""
        assert not self._being_written, "one check point is written at a time"
        self._being_written, self._changed = self._changed, {}
        return self._being_written

    def write(self, slots: dict[int, Slot]) -> None:
        """Write slots and make them durable. Raises OSError."""
        assert self._file is not None, "created before the first unit"
        start, pieces = -1, list[bytes]()
        for index in sorted(slots):
            if index != start + len(pieces):
                if pieces:
                    self._file.write(start * SLOT_BYTES, pieces)
                start, pieces = index, []
            pieces.append(encode_slot(slots[index]))
        if pieces:
            self._file.write(start * SLOT_BYTES, pieces)
            self._file.sync()

    def written(self) -> None:
        """Forget the slots of the check point: the file has them."""
        self._being_written = {}

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, index: int, count: int) -> Iterator[tuple[int, Slot]]:
        """Yield the slots that are not zeros, with their indexes."""
        data = _EMPTY[: count * SLOT_BYTES]
        if self._file is not None:
            data = self._file.read(index * SLOT_BYTES, count * SLOT_BYTES)
        unwritten = {
            each: slot
            for table in (self._being_written, self._changed)
            for each, slot in table.items()
            if index <= each < index + count
        }
        if not unwritten and data == _EMPTY[: len(data)]:
            return
        for each, fields in enumerate(SLOT.iter_unpack(data), index):
            slot = unwritten.get(each)
            if slot is not None:
                yield each, slot
            elif fields[0]:
                yield each, Slot(*fields)
