"""The waiting messages: timer log, wheel and check point together, and the rules that keep them consistent.

Theory of operation. Each waiting message has a unit in the timer log, and the slot of its second in the wheel names the
last unit of the slot's list. The log is derived from the queue of the timer topic, and the wheel from the log:

    timer topic's queue ──enqueue──▶ timer log ──▶ wheel (in memory until the check point)

A check point first syncs the log, then writes and syncs the changed slots, and then writes how far the queue has been
read, how far the log is on the disk, and which seconds have fired. So a crash between two of these steps leaves units
and slots that the check point does not cover, but never a slot whose units are missing. Recovery keeps the valid units
after the check point, and reads the queue on after the last of them (recovery.py).

`read_second` is the first second that has not fired. No unit is put into a second before it. The place of a slot that
has not fired is never taken for another second: if a broker was down for more than seven days, new messages wait in
the queue until the old slots have fired.

Concurrency: the loop's thread, except `write_check`.
"""

from dataclasses import dataclass

from gantry.runtime.clock import Clock
from gantry.runtime.files import File, FileSystem
from gantry.storeformat.timerfiles import (
    FLAG_DEFAULT,
    FLAG_DELETE,
    FLAG_ROLL,
    NO_UNIT,
    SECOND_MS,
    TIMER_CHECK_FILE,
    TIMER_LOG_DIR,
    TIMER_WHEEL_FILE,
    WHEEL_SLOTS,
    Slot,
    SlotProgress,
    TimerCheck,
    TimerUnit,
)
from services.broker.timer.checkfile import CheckFile
from services.broker.timer.readwaits import ReadWaits
from services.broker.timer.unitlog import UnitLog
from services.broker.timer.wheel import Wheel

_DELAY_MAX_MS = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class PendingCheck:
    """A check point that is being written."""

    check: TimerCheck
    progress: SlotProgress | None
    unsynced: tuple[list[File], bool]
    slots: dict[int, Slot]


class Waiting:
    """The waiting messages of one broker.

    Args:
        files: The file system.
        root_dir: The store's root.
        clock: The clock; its wall time says which second it is.
        log_file_bytes: The size of a file of the timer log.
        slots: The number of slots of the wheel; tests pass fewer.

    Attributes:
        read_second: The first second that has not fired.
        progress: The progress within that second; None if it has not begun.
        queue_offset: The offset of the next message in the queue of the timer topic.
        count: The number of waiting messages, less the deletions that wait.
        is_changed: Whether something has changed since the last check point.
        reads: Waits until a message of the queue is read.
    """

    def __init__(
        self, files: FileSystem, root_dir: str, clock: Clock, *, log_file_bytes: int, slots: int = WHEEL_SLOTS
    ) -> None:
        self._files = files
        self._root_dir = root_dir
        self._clock = clock
        self.wheel = Wheel(files, f"{root_dir}/{TIMER_WHEEL_FILE}", slots=slots)
        self.log = UnitLog(files, f"{root_dir}/{TIMER_LOG_DIR}", log_file_bytes)
        self.check_file = CheckFile(files, f"{root_dir}/{TIMER_CHECK_FILE}")
        self.check = TimerCheck(0, 0, 0, 0, 0, 0, 0)
        self.read_second = clock.now_ms() // SECOND_MS
        self.progress: SlotProgress | None = None
        self.queue_offset = 0
        self.count = 0
        self.is_changed = False
        self.reads = ReadWaits(lambda: self.queue_offset)
        self._has_files = False

    def prepare(self) -> None:
        """Create the files before the first unit, with a check point that covers what was there. Raises OSError."""
        if self._has_files:
            return
        self.wheel.create()
        self._files.sync_dir(self._root_dir)
        self.check_file.write(self.next_check(), self.progress)
        self._has_files = True

    @property
    def has_files(self) -> bool:
        """Whether a message has ever waited in this store."""
        return self._has_files

    def mark_prepared(self) -> None:
        """Note that the files exist: recovery has opened them."""
        self._has_files = True

    def add(
        self,
        stop_ms: int,
        *,
        written_at_ms: int,
        physical_offset: int,
        size_bytes: int,
        topic_hash: int,
        is_rolled: bool,
        is_deletion: bool,
    ) -> bool:
        """Let a message wait for a second.

        Args:
            stop_ms: The second (ms) in whose slot it waits; it waits for the next one to be read if that one is later.
            written_at_ms: The present second (ms).
            physical_offset: The position of its record in the CommitLog.
            size_bytes: The size of the record.
            topic_hash: The hash of its real topic.
            is_rolled: Whether it is put back into the queue then.
            is_deletion: Whether it deletes another message of the slot.

        Returns:
            False if the place of the slot still belongs to a second that has not fired. Nothing was changed.

        Raises:
            OSError: The timer log can't be written. Nothing was changed.
        """
        self.prepare()
        second = max(stop_ms // SECOND_MS, self.read_second)
        old = self.wheel.occupant(second)
        if old.second != second and old.second >= self.read_second and old.last != NO_UNIT:
            return False
        slot = old if old.second == second and old.last != NO_UNIT else None
        # The delay is a 32-bit number. It is too small only if the clock was set back by weeks.
        written_at_ms = max(written_at_ms, second * SECOND_MS - _DELAY_MAX_MS)
        unit = TimerUnit(
            NO_UNIT if slot is None else slot.last,
            FLAG_DEFAULT | (FLAG_ROLL if is_rolled else 0) | (FLAG_DELETE if is_deletion else 0),
            written_at_ms,
            second * SECOND_MS - written_at_ms,
            physical_offset,
            size_bytes,
            topic_hash,
        )
        self.link(unit, self.log.append(unit))
        return True

    def link(self, unit: TimerUnit, position: int) -> None:
        """Make a unit the last one of its slot."""
        second = unit.slot_ms // SECOND_MS
        slot = self.wheel.find(second)
        change = -1 if unit.is_deletion else 1
        first, waiting = (position, 0) if slot is None else (slot.first, slot.waiting)
        assert slot is None or slot.last < position, f"unit {position} follows {slot}"
        self.wheel.put(Slot(second, first, position, waiting + change, 0 if slot is None else slot.magic))
        self.count += change
        self.is_changed = True

    def congestion(self, stop_ms: int) -> int:
        """Return the number of messages that wait for a second."""
        slot = self.wheel.find(stop_ms // SECOND_MS)
        return 0 if slot is None else slot.waiting

    def note_fired(self, progress: SlotProgress) -> None:
        """Note how far the second that fires has come: these messages are durable in their topics."""
        assert progress.second == self.read_second, f"{progress} while second {self.read_second} fires"
        self.progress = progress
        self.is_changed = True

    def note_read(self, queue_offset: int) -> None:
        """Note that the messages of the queue before an offset wait, have fired, or can't wait."""
        if queue_offset != self.queue_offset:
            self.queue_offset = queue_offset
            self.is_changed = True
            self.reads.wake()

    def end_second(self) -> None:
        """Go on to the next second: all messages of this one are durable in their topics."""
        slot = self.wheel.find(self.read_second)
        if slot is not None:
            self.count -= slot.waiting
            self.is_changed = True
        self.skip_to(self.read_second + 1)

    def skip_to(self, second: int) -> None:
        """Go on to a later second; nothing waits for those before it."""
        assert second >= self.read_second, f"from {self.read_second} back to {second}"
        self.read_second = second
        self.progress = None

    def next_check(self) -> TimerCheck:
        """Return the check point of the present state."""
        before = self.check
        return TimerCheck(
            self.read_second * SECOND_MS,
            self.log.end,
            self.queue_offset,
            self.queue_offset,
            before.state_version,
            self._clock.now_ms(),
            before.counter + 1,
        )

    def begin_check(self) -> PendingCheck:
        """Begin a check point. `write_check` writes it, and `end_check` ends it. Raises OSError."""
        self.prepare()
        self.log.write_out()
        pending = PendingCheck(self.next_check(), self.progress, self.log.take_unsynced(), self.wheel.take_changed())
        self.is_changed = False
        return pending

    def write_check(self, pending: PendingCheck) -> None:
        """Make a check point durable; in any thread. Raises OSError: some of it may be on the disk."""
        self.log.sync(pending.unsynced)
        self.wheel.write(pending.slots)
        self.check_file.write(pending.check, pending.progress)

    def end_check(self, pending: PendingCheck) -> None:
        """Note that a check point is durable."""
        self.wheel.written()
        self.check = pending.check

    def close(self) -> None:
        """Close the files."""
        self.wheel.close()
        self.log.close()
