"""Pops in order: a queue gives a group nothing more while messages that it gave out are not done.

The state of a queue is that of RocketMQ's ConsumerOrderInfo, kept in consumerOrderInfo.json. The messages that the
latest pop gave out block the queue until each one is acknowledged, or its invisible time is over. The same attempt id
gets the same messages again. A message that is given out again has a count, which the response to the pop has.

Source: RocketMQ 5.3 ConsumerOrderInfoManager.

Concurrency: the loop's thread only.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gantry.remoting.bodies.fastjson import encode_json, integer_keys
from gantry.remoting.codes import ResponseCode
from gantry.runtime.files import FileSystem
from services.broker.pop.positions import QueueKey
from services.broker.refusal import RefusalError
from services.broker.registry.configfile import ConfigFile
from services.broker.registry.configtext import ConfigText
from services.broker.registry.documents import config_path

ORDER_FILE: Final = "consumerOrderInfo.json"
ORDER_QUEUES_MAX: Final = 100_000
"""Limit of queues with a state."""
IDLE_MS: Final = 24 * 3_600_000
"""Time after which the state of a queue that nobody pops is removed, as in RocketMQ."""
_SEPARATOR: Final = "@"
_PASSED_KEPT: Final = 10_000


class OrderInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The state of one queue. The names on disk are those of RocketMQ.

    Attributes:
        attempt_id: Name of the pop, or None.
        done: Bit map of the messages that are done, by index in the list of offsets.
        invisible_ms: Invisible time of the pop.
        popped_to: Time (ms) of the last pop or change.
        relative: Offset of the first message, then the distance of each further message from it.
        counts: Number of deliveries before this one, by offset, if it is not zero.
        visible_at: Time at which a message is given out again, by offset, if its invisible time was changed.
        popped_at_ms: Time of the pop.
    """

    attempt_id: str | None = msgspec.field(name="a", default=None)
    done: int = msgspec.field(name="cm")
    invisible_ms: int | None = msgspec.field(name="i", default=None)
    popped_to: int = msgspec.field(name="l")
    relative: list[int] = msgspec.field(name="o")
    counts: dict[int, int] | None = msgspec.field(name="oc", default=None)
    visible_at: dict[int, int] | None = msgspec.field(name="ot", default=None)
    popped_at_ms: int = msgspec.field(name="popTime")

    def offsets(self) -> list[int]:
        """Return the queue offsets of the messages."""
        first = self.relative[0] if self.relative else 0
        return [first, *(first + distance for distance in self.relative[1:])] if self.relative else []

    def left(self) -> list[int]:
        """Return the offsets of the messages that are not done."""
        return [offset for index, offset in enumerate(self.offsets()) if not self.done >> index & 1]

    def free_at_ms(self) -> int:
        """Return the time from which on the messages may be given out again; 0 if all are done."""
        default = self.popped_at_ms + (self.invisible_ms or 0)
        changed = self.visible_at or {}
        return max((changed.get(offset, default) for offset in self.left()), default=0)

    def next_offset(self) -> int:
        """Return the first message that is not done; after the last one if all are done."""
        left = self.left()
        return left[0] if left else self.offsets()[-1] + 1

    def encode(self) -> msgspec.Raw:
        """Return the JSON, with integer keys as RocketMQ writes them."""
        values: dict[str, Any] = {
            "a": self.attempt_id,
            "cm": self.done,
            "i": self.invisible_ms,
            "l": self.popped_to,
            "o": self.relative,
            "oc": integer_keys(self.counts) if self.counts else None,
            "ot": integer_keys(self.visible_at) if self.visible_at else None,
            "popTime": self.popped_at_ms,
        }
        return msgspec.Raw(encode_json({name: value for name, value in values.items() if value is not None}))


class Taken(NamedTuple):
    """The messages of one queue that a pop in order gives out.

    Attributes:
        info: The new state of the queue.
        counts: Number of deliveries before this one, by offset.
        least: The smallest count.
    """

    info: OrderInfo
    counts: Mapping[int, int]
    least: int


def take(
    before: OrderInfo | None,
    offsets: Sequence[int],
    *,
    attempt_id: str | None,
    popped_at_ms: int,
    invisible_ms: int,
) -> Taken:
    """Return the state of a queue after a pop of these messages, of which none is done."""
    counts: dict[int, int] = {}
    if before is not None:
        earlier = before.counts or {}
        is_same = attempt_id is not None and attempt_id == before.attempt_id
        given = set(before.offsets())
        for offset in offsets:
            number = earlier.get(offset, 0) + (offset in given and not is_same)
            if number:
                counts[offset] = number
    info = OrderInfo(
        attempt_id=attempt_id,
        done=0,
        invisible_ms=invisible_ms,
        popped_to=popped_at_ms,
        relative=[offsets[0], *(offset - offsets[0] for offset in offsets[1:])],
        counts=counts or None,
        popped_at_ms=popped_at_ms,
    )
    return Taken(info, counts, min((counts.get(offset, 0) for offset in offsets), default=0))


def acknowledge(info: OrderInfo, offset: int) -> OrderInfo:
    """Return the state after one of the messages that are not done was acknowledged."""
    return msgspec.structs.replace(info, done=info.done | 1 << info.offsets().index(offset))


def show_at(info: OrderInfo, offset: int, visible_at_ms: int, now_ms: int) -> OrderInfo:
    """Return the state after the invisible time of one of the messages was changed."""
    return msgspec.structs.replace(
        info, visible_at={**(info.visible_at or {}), offset: visible_at_ms}, popped_to=now_ms
    )


def is_blocked(info: OrderInfo | None, attempt_id: str | None, now_ms: int) -> bool:
    """Return whether a queue gives nothing to a pop with this attempt id now."""
    if info is None or (attempt_id is not None and attempt_id == info.attempt_id):
        return False
    return now_ms < info.free_at_ms()


def has_attempt(info: OrderInfo | None, attempt_id: str) -> bool:
    """Return whether messages that a pop of this name gave out of a queue are not done."""
    return info is not None and info.attempt_id == attempt_id and bool(info.left())


class OrderTable:
    """The states of all queues that are popped in order.

    Attributes:
        saved_at_ms: Wall time up to which all changes are in the file.
    """

    def __init__(self, files: FileSystem, root_dir: str) -> None:
        """Read the file. Raises StartupError."""
        self._file = ConfigFile(files, config_path(root_dir, ORDER_FILE))
        self._table: dict[QueueKey, OrderInfo] = {}
        self._free: list[tuple[int, QueueKey]] = []
        self.saved_at_ms = 0
        self.is_dirty = False
        read = self._file.read(_Document)
        for name, queues in (read.table if read is not None else {}).items():
            topic, _, group = name.partition(_SEPARATOR)
            for queue_id, info in queues.items():
                self.put((topic, group, queue_id), info)
        self.is_dirty = False

    @property
    def file(self) -> ConfigFile:
        """The file."""
        return self._file

    def find(self, queue: QueueKey) -> OrderInfo | None:
        """Return the state of a queue, or None."""
        return self._table.get(queue)

    def check_room(self, queue: QueueKey) -> None:
        """Raise RefusalError if a state of the queue does not fit into the table."""
        if queue not in self._table and len(self._table) >= ORDER_QUEUES_MAX:
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY, f"{ORDER_QUEUES_MAX} queues are popped in order, which is the limit"
            )

    def put(self, queue: QueueKey, info: OrderInfo | None) -> None:
        """Set the state of a queue; None removes it."""
        self.is_dirty = True
        if info is None:
            self._table.pop(queue, None)
        else:
            self._table[queue] = info
            if info.left():
                heapq.heappush(self._free, (info.free_at_ms(), queue))
            if len(self._free) > 2 * len(self._table) + _PASSED_KEPT:
                self._free = [(kept.free_at_ms(), key) for key, kept in self._table.items() if kept.left()]
                heapq.heapify(self._free)

    def forget(self, topic: str | None, group: str | None) -> None:
        """Remove the states of a deleted topic or group."""
        for key in [key for key in self._table if topic in {None, key[0]} and group in {None, key[1]}]:
            self.put(key, None)

    def remove_idle(self, now_ms: int) -> None:
        """Remove the states of queues that nobody has popped for a day."""
        for key in [key for key, info in self._table.items() if now_ms - info.popped_to > IDLE_MS]:
            self.put(key, None)

    def take_free(self, now_ms: int) -> list[QueueKey]:
        """Return the queues that have become free because a time is over, each time once."""
        queues: list[QueueKey] = []
        while self._free and self._free[0][0] <= now_ms:
            at_ms, queue = heapq.heappop(self._free)
            info = self._table.get(queue)
            if info is not None and info.free_at_ms() == at_ms:
                queues.append(queue)
        return queues

    def text(self) -> ConfigText:
        """Return the text of the file."""
        return ConfigText({"table": self._document})

    def _document(self) -> msgspec.Raw:
        pairs: dict[str, dict[int, msgspec.Raw]] = {}
        for (topic, group, queue_id), info in self._table.items():
            pairs.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = info.encode()
        return msgspec.Raw(encode_json({name: integer_keys(queues) for name, queues in pairs.items()}))


class _Document(msgspec.Struct):
    table: dict[str, dict[int, OrderInfo]]


def read_info(value: Any) -> OrderInfo | None:
    """Return the state in a record of the revive topic. Raises ValueError for a wrong value."""
    return None if value is None else msgspec.convert(value, OrderInfo, strict=False, str_keys=True)
