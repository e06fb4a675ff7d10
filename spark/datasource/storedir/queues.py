"""The queues of a store that no broker runs on: their ends and their units.

After an orderly stop, the ConsumeQueue files are complete. After a crash (or without those files), the CommitLog may
have records without units, and the ends of the files may be blank. Then this module builds in memory the units that a
broker's recovery would build. It reads the valid records after the point up to which both are known to be on disk.
"""

import bisect
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gantry.model.delaylevel import DELAY_LEVELS_MS, LEVEL_MAX
from gantry.model.javahash import tags_code
from gantry.model.message import find_property
from gantry.model.names import LMQ_PREFIX, SCHEDULE_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordHead
from gantry.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from gantry.runtime.digits import parse_digits
from gantry.runtime.telemetry import logger
from gantry.storeformat.configjson import read_config
from gantry.storeformat.configtables import parse_table
from gantry.storeformat.layout import (
    CONFIG_DIR,
    CONSUME_QUEUE_DIR,
    DELETIONS_FILE,
    FILLER_SIZE,
    UNIT_SIZE_BYTES,
    parse_file_name,
)
from gantry.storeformat.scan import StoreReader

log = logger("spark.store")

UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert UNIT.itemsize == UNIT_SIZE_BYTES
Units = npt.NDArray[Any]
"""An array of UNIT."""

FILLER_UNIT: Final = np.array((0, FILLER_SIZE, 0), UNIT)
"""A unit that stands for no message."""
_AT_ONCE: Final = 4_096
_TAGS, _DELAY = PropertyName.TAGS.encode(), PropertyName.DELAY.encode()
_BROKER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Apache RocketMQ 5 makes a topic with the name of its broker. The store has that name nowhere else."""


@dataclass(frozen=True, slots=True)
class StoreQueue:
    """A queue: offsets `[min_offset, max_offset)`, and its units from offset `first` on."""

    topic: str
    queue_id: int
    first: int
    units: Units
    log_start: int

    @property
    def min_offset(self) -> int:
        """Return the first offset whose record may still exist; the max offset if there is none."""
        there = self.is_message(self.units) & (self.units["physical_offset"] >= self.log_start)
        return self.first + int(np.argmax(there)) if there.any() else self.max_offset

    @property
    def max_offset(self) -> int:
        """Return the offset that the next message would get."""
        return self.first + len(self.units)

    def slice(self, start: int, end: int) -> Units:
        """Return the units of offsets `[start, end)`. All of them must exist."""
        assert self.first <= start <= end <= self.max_offset, (self.first, start, end, self.max_offset)
        # Concatenated units have the byte order of the machine. Units that travel in a task need that of the files.
        return self.units[start - self.first : end - self.first].astype(UNIT)

    @staticmethod
    def is_message(units: Units) -> npt.NDArray[np.bool_]:
        """Return for each unit whether it stands for a message."""
        found: npt.NDArray[np.bool_] = (units["size"] > 0) & (units["size"] < FILLER_SIZE)
        return found & (units["physical_offset"] >= 0)


class StoreQueues:
    """All queues of a store, for planning."""

    def __init__(self, reader: StoreReader) -> None:
        """Find the queues' files and, after a crash, the records without units. Raises StoreFileError."""
        self._reader = reader
        self.is_from_log = reader.has_abort or not reader.files.is_dir(reader.path(CONSUME_QUEUE_DIR))
        """Whether units must travel inside a task, because the files lack some of them."""
        self._found: dict[tuple[str, int], list[tuple[int, int, int, int]]] = {}
        self._end = 0
        if self.is_from_log:
            self._scan()
        self.places = sorted({*_places(reader), *self._found})
        self._kept: dict[tuple[str, int], StoreQueue] = {}

    def queue(self, topic: str, queue_id: int) -> StoreQueue:
        """Return a queue. It is empty if the store has no units of it."""
        kept = self._kept.get((topic, queue_id))
        if kept is None:
            first, units = read_units(self._reader, topic, queue_id)
            if self.is_from_log:
                first, units = self._completed(first, units, self._found.get((topic, queue_id), []))
            kept = self._kept[topic, queue_id] = StoreQueue(topic, queue_id, first, units, self._reader.log_start)
        return kept

    def _completed(self, first: int, units: Units, found: list[tuple[int, int, int, int]]) -> tuple[int, Units]:
        """Return a queue's units, with the units found in the log, and without those past the end of the log."""
        # The log was truncated at its present end. Units that point past it are out of date.
        beyond = np.flatnonzero(units["physical_offset"] >= self._end)
        units = units[: beyond[0]] if len(beyond) else units
        if not found:
            return first, units
        if not len(units):
            first = min(row[0] for row in found)
        end = max(first + len(units), max(row[0] for row in found) + 1)
        whole = np.full(end - first, FILLER_UNIT, UNIT)
        whole[: len(units)] = units
        for queue_offset, *unit in found:
            if queue_offset >= first:
                whole[queue_offset - first] = tuple(unit)
        return first, whole

    def _scan(self) -> None:
        """Read the records whose units the queues' files may lack."""
        reader = self._reader
        start = _known_start(reader)
        deletions = _load_deletions(reader)
        scan = reader.scan(start)
        for record in scan:
            head = record.head
            if not record.crc.is_good or head.sys_flag & TRANSACTION_MASK in (
                TRANSACTION_PREPARED,
                TRANSACTION_ROLLBACK,
            ):
                continue
            topic = head.topic.decode()
            log_end, deleted_at_ms = deletions.get(topic, (0, 0))
            if record.offset < log_end and head.stored_at_ms <= deleted_at_ms:
                continue
            row = (head.queue_offset, record.offset, head.size_bytes, _tags_code(topic, head))
            self._found.setdefault((topic, head.queue_id), []).append(row)
        self._end = scan.end
        for damage in scan.damages:
            log.warning(
                "damaged bytes in the log", path=damage.path, start=damage.start, size_bytes=damage.size_bytes,
                reason=damage.reason,
            )  # fmt: skip
        log.info(
            "the store was not shut down cleanly: reading its log from the last position known to be on disk",
            start=start,
        )


def read_units(
    reader: StoreReader, topic: str, queue_id: int, *, start: int = 0, end: int | None = None
) -> tuple[int, Units]:
    """Return the units of a queue's files up to the first blank one, and the queue offset of the first unit.

    Args:
        reader: The reader of the store.
        topic: The topic of the queue.
        queue_id: The queue id.
        start: The first queue offset to return.
        end: The queue offset after the last one to return; None for no limit.
    """
    folder = reader.path(CONSUME_QUEUE_DIR, topic, str(queue_id))
    pieces: list[Units] = []
    position: int | None = None
    first = start
    for name in reader.files.list_dir(folder):
        at, path = parse_file_name(name), f"{folder}/{name}"
        size = 0 if at is None else reader.files.size_bytes(path)
        if at is None or not size:
            continue
        if position is not None and at != position:
            break  # A file is missing, so the units after the gap can't be trusted.
        position = at + size
        begin, count = at // UNIT_SIZE_BYTES, size // UNIT_SIZE_BYTES
        low, high = max(start, begin), begin + count if end is None else min(end, begin + count)
        if low >= high:
            continue
        if not pieces:
            first = low
        units, is_whole = _valid_units(reader.memory(path), low - begin, high - begin)
        pieces.append(units)
        if not is_whole:
            break
    return first, np.concatenate(pieces) if pieces else np.zeros(0, UNIT)


def find_time(reader: StoreReader, queue: StoreQueue, at_ms: int) -> int:
    """Return the first offset whose message was stored at a time or later; the queue's max offset if there is none."""

    def stored_at_ms(offset: int) -> int | None:
        unit = queue.units[offset - queue.first]
        record = reader.record(int(unit["physical_offset"])) if queue.is_message(unit) else None
        return None if record is None else record.head.stored_at_ms

    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = probe = (low + high) // 2
        while probe < high and (found := stored_at_ms(probe)) is None:
            probe += 1
        if probe == high or (found is not None and found >= at_ms):
            high = middle
        else:
            low = probe + 1
    return low


def topic_queues(reader: StoreReader) -> dict[str, int] | None:
    """Return topic → number of read queues by the store's configuration; None without one. Raises StoreFileError."""
    content = _read_table(reader, "topics.json")
    if content is None:
        return None
    return {topic: int(config["readQueueNums"]) for topic, config in content["topicConfigTable"].items()}


def committed_offsets(reader: StoreReader) -> dict[str, dict[str, dict[int, int]]]:
    """Return group → topic → queue id → committed offset. Raises StoreFileError."""
    content = _read_table(reader, "consumerOffset.json")
    groups: dict[str, dict[str, dict[int, int]]] = {}
    if content is None:
        return groups
    for key, queues in content["offsetTable"].items():
        topic, _, group = key.partition("@")
        if group:
            # A negative offset means that nothing is committed.
            groups.setdefault(group, {})[topic] = {
                int(number): int(offset) for number, offset in queues.items() if int(offset) >= 0
            }
    return groups


def broker_name(topics: Iterable[str], otherwise: str) -> str:
    """Return the name of the store's broker if a topic shows it, else `otherwise`."""
    named = [topic.removeprefix(_BROKER_TOPIC_PREFIX) for topic in topics if topic.startswith(_BROKER_TOPIC_PREFIX)]
    return named[0] if len(named) == 1 else otherwise


def _places(reader: StoreReader) -> list[tuple[str, int]]:
    root = reader.path(CONSUME_QUEUE_DIR)
    return [
        (topic, int(name))
        for topic in reader.files.list_dir(root)
        # Units of light queues point to records of other topics. These records are read with their own topics.
        if not topic.startswith(LMQ_PREFIX)
        for name in reader.files.list_dir(f"{root}/{topic}")
        if name.isascii() and name.isdigit()
    ]


def _valid_units(memory: Any, low: int, high: int) -> tuple[Units, bool]:
    """Return copies of the units `[low, high)` of a file up to the first blank one, and whether that was all."""
    pieces: list[Units] = []
    for at in range(low, high, _AT_ONCE):
        count = min(_AT_ONCE, high - at)
        units = np.frombuffer(bytes(memory[at * UNIT_SIZE_BYTES : (at + count) * UNIT_SIZE_BYTES]), UNIT)
        blank = np.flatnonzero((units["physical_offset"] < 0) | (units["size"] <= 0))
        if len(blank):
            return np.concatenate([*pieces, units[: blank[0]]]), False
        pieces.append(units)
    return np.concatenate(pieces), True


def _known_start(reader: StoreReader) -> int:
    """Return the first log offset whose unit the queues' files may lack."""
    checkpoint = reader.checkpoint()
    if checkpoint is None or not reader.files.is_dir(reader.path(CONSUME_QUEUE_DIR)):
        return reader.log_start
    firsts = [reader.record(file.start) for file in reader.log_files]
    times = [None if record is None else record.head.stored_at_ms for record in firsts]
    known = [(at_ms, file.start) for at_ms, file in zip(times, reader.log_files, strict=True) if at_ms is not None]
    at = bisect.bisect_right([at_ms for at_ms, _ in known], checkpoint.min_timestamp)
    return known[at - 1][1] if at else reader.log_start


def _load_deletions(reader: StoreReader) -> dict[str, tuple[int, int]]:
    """Return topic → (log end, time in ms) of deletions; empty without a manifest, as the log may be another one."""
    path = reader.path(DELETIONS_FILE)
    if reader.manifest is None or not reader.files.exists(path):
        return {}
    try:
        topics = json.loads(reader.files.read(path))["topics"]
        return {topic: (int(each["log_end"]), int(each["deleted_at_ms"])) for topic, each in topics.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.warning("deletions can't be read; deleted messages may be back", path=path, error=repr(error))
        return {}


def _tags_code(topic: str, head: RecordHead) -> int:
    """Return a unit's tags code. Delayed messages use the default levels: a store does not contain configured ones."""
    if topic == SCHEDULE_TOPIC:
        level = find_property(head.properties, _DELAY)
        if level is not None and (given := parse_digits(level, LEVEL_MAX)):
            return head.stored_at_ms + DELAY_LEVELS_MS[min(given, len(DELAY_LEVELS_MS)) - 1]
    return tags_code(find_property(head.properties, _TAGS))


def _read_table(reader: StoreReader, name: str) -> dict[str, Any] | None:
    file = read_config(reader.files, reader.path(CONFIG_DIR, name), partial(parse_table, name))
    return None if file is None else file.content
