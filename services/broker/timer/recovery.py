"""Opens the files of waiting messages, and repairs what a crash left of them.

1. Units behind the check point are kept as long as they are valid: each must name a record of the timer topic that has
   the unit's size, topic and second. Everything after the last valid unit is cut off.
2. The queue is read on after the record of the last unit, or where the check point says, whichever is later.
3. Kept units are linked into their slots, unless the slot has them.
4. A slot whose list ends behind the cut is made anew from the timer log. This happens only with a wheel of Apache's
   broker, which may write a slot before its units, and if files were taken away.

If the timer log is shorter than the check point says, units were lost by damage. Then the whole queue of the timer
topic is read again: its messages may fire a second time, but none is lost.
"""

from collections.abc import Callable

from gantry.model.errors import RecordError
from gantry.model.javahash import java_hash
from gantry.model.message import StoredMessage
from gantry.model.names import TIMER_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.record import decode_record
from gantry.runtime.digits import parse_digits
from gantry.runtime.errors import StartupError
from gantry.runtime.telemetry import logger
from gantry.storeformat.timerfiles import SECOND_MS, UNIT_BYTES, Slot, TimerCheck, TimerUnit
from services.broker.timer.waiting import Waiting

log = logger("broker.timer")

_INT64_MAX = 2**63 - 1

RecordAt = Callable[[int], bytes | None]


def recover(waiting: Waiting, record_at: RecordAt) -> None:
    """Open the files.

    Args:
        waiting: The waiting messages, not opened yet.
        record_at: Returns the valid record at a physical offset, or None.

    Raises:
        StartupError: A file has an impossible size.
        OSError: The disk failed.
    """
    found = waiting.check_file.read()
    check, progress = found if found is not None else (TimerCheck(0, 0, 0, 0, 0, 0, 0), None)
    waiting.log.load()
    has_wheel = waiting.wheel.open()
    if has_wheel:
        _check_wheel_size(waiting)
    if found is None and not has_wheel and not waiting.log.files_count:
        return
    waiting.check = check
    if check.read_ms > 0:
        waiting.read_second = check.read_ms // SECOND_MS
    if progress is not None and progress.second == waiting.read_second:
        waiting.progress = progress
    begin = min(max(check.log_flushed, waiting.log.start), waiting.log.end)
    units, end = _valid_units(waiting, begin, record_at)
    if check.read_ms == 0 and units:
        # The check point was taken away: everything that may not have fired fires.
        waiting.read_second = min(waiting.read_second, *(unit.slot_ms // SECOND_MS for unit in units.values()))
    waiting.log.cut(end)
    if check.log_flushed > end:
        log.error(
            "the timer log is shorter than its check point says: its queue is read again", end=end, **check._asdict()
        )
    else:
        last = units[max(units)] if units else _unit_before(waiting, begin)
        message = None if last is None else timer_message(record_at(last.physical_offset))
        waiting.queue_offset = max(check.queue_offset, 0 if message is None else message.queue_offset + 1)
    waiting.wheel.create()
    waiting.mark_prepared()
    _repair_slots(waiting, units, begin, end, is_new=not has_wheel)
    waiting.is_changed = bool(units) or not has_wheel
    log.info(
        "waiting messages are there",
        count=waiting.count,
        units_kept=len(units),
        queue_offset=waiting.queue_offset,
        read_second=waiting.read_second,
    )


def timer_message(record: bytes | None) -> StoredMessage | None:
    """Return the message of a record if it is one of the timer topic that can wait, else None."""
    if record is None:
        return None
    try:
        message = decode_record(record, check_crc=False)
    except RecordError:
        return None
    if message.topic != TIMER_TOPIC or due_ms(message) is None or real_queue_id(message) is None:
        return None
    return message if message.properties.get(PropertyName.REAL_TOPIC) else None


def due_ms(message: StoredMessage) -> int | None:
    """Return the second (ms) at which a message of the timer topic is due, or None if it has none."""
    return parse_digits(message.properties.get(PropertyName.TIMER_OUT_MS, ""), _INT64_MAX)


def real_queue_id(message: StoredMessage) -> int | None:
    """Return the queue of the real topic, or None if the message has none."""
    return parse_digits(message.properties.get(PropertyName.REAL_QID, ""), 0x7FFF_FFFF)


def _check_wheel_size(waiting: Waiting) -> None:
    wheel = waiting.wheel
    if wheel.file_bytes != wheel.size_bytes:
        raise StartupError(
            f"{wheel.path} has {wheel.file_bytes} bytes, a timer wheel has {wheel.size_bytes}. Restore the file from a "
            "copy, or move it away: then the broker makes it anew from the timer log"
        )


def _valid_units(waiting: Waiting, begin: int, record_at: RecordAt) -> tuple[dict[int, TimerUnit], int]:
    """Return the valid units from a position on, by position, and the position after the last one."""
    units: dict[int, TimerUnit] = {}
    position = begin
    while (place := waiting.log.next_position(position)) is not None:
        unit = waiting.log.find(place)
        if unit is None or not _is_unit_of(unit, place, timer_message(record_at(unit.physical_offset))):
            break
        units[place] = unit
        position = place + UNIT_BYTES
    return units, position


def _is_unit_of(unit: TimerUnit, position: int, message: StoredMessage | None) -> bool:
    if message is None or message.size_bytes != unit.size_bytes or unit.previous >= position:
        return False
    due = due_ms(message)
    is_in_time = due is not None and (due <= unit.slot_ms or unit.is_rolled)
    is_of_topic = java_hash(message.properties[PropertyName.REAL_TOPIC]) == unit.topic_hash
    is_deletion = PropertyName.TIMER_DEL_UNIQKEY in message.properties
    return is_in_time and is_of_topic and unit.is_deletion == is_deletion and unit.slot_ms % SECOND_MS == 0


def _unit_before(waiting: Waiting, position: int) -> TimerUnit | None:
    """Return the unit before a position. Apache's broker may have noted its message as the next one of the queue."""
    return waiting.log.find(position - UNIT_BYTES) if position >= waiting.log.start + UNIT_BYTES else None


def _repair_slots(waiting: Waiting, units: dict[int, TimerUnit], begin: int, end: int, *, is_new: bool) -> None:
    bad: dict[int, Slot] = {}
    for slots in waiting.wheel.scan(waiting.read_second):
        for slot in slots:
            if slot.last >= end:
                bad[slot.second] = slot
            else:
                waiting.count += slot.waiting
    for slot in bad.values():
        waiting.wheel.put(slot._replace(first=-1, last=-1, waiting=0))
    if bad or is_new:
        log.warning("slots of the timer wheel are made anew from the timer log", slots="all" if is_new else len(bad))
        first = waiting.log.start if is_new else max(min(slot.first for slot in bad.values()), waiting.log.start)
        _link_again(waiting, None if is_new else bad, first, begin)
    for position, unit in units.items():
        slot_now = waiting.wheel.find(unit.slot_ms // SECOND_MS)
        if slot_now is None or slot_now.last < position:
            waiting.link(unit, position)


def _link_again(waiting: Waiting, seconds: dict[int, Slot] | None, begin: int, end: int) -> None:
    """Link the units between two positions again: those of the given seconds, or all that have not fired."""
    position = begin
    while position < end and (place := waiting.log.next_position(position)) is not None and place < end:
        unit = waiting.log.find(place)
        if unit is None:
            return
        second = unit.slot_ms // SECOND_MS
        if second >= waiting.read_second and (seconds is None or second in seconds):
            waiting.link(unit, place)
        position = place + UNIT_BYTES
