"""When a key becomes free again: its message was recalled, or its transaction was rolled back.

Such a message is never delivered. If its key stayed in the window, the next send with this key would be answered as
stored, and nobody would get it.

While the broker runs, a key becomes free when the timer has put the recall next to its message (free_recalled), or when
the rollback is durable (transaction/decisions.py). After a start, FreedKeys reads the same from the log. A transaction
was rolled back if an op message names the newest copy of its half message and no commit came before. A recall in the
log counts if it came early enough. Whether a later one came in time is unknown, so its message keeps the key.

Concurrency: the loop's thread.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from gantry.model import sysflag
from gantry.model.message import StoredMessage, find_property
from gantry.model.names import TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordHead
from gantry.storeformat.timerfiles import SECOND_MS
from services.broker.duplicates.keyed import KeyedMessage, second_of
from services.broker.duplicates.keytable import HALF_SECOND
from services.broker.duplicates.window import DuplicateWindows

CERTAIN_MS: Final = 5_000
"""A recall that was stored this long before the end of its second has certainly come in time."""

_UNIQ_KEY, _REAL_TOPIC, _OUT_MS, _DELETED, _ROLLS = (
    name.encode()
    for name in (
        PropertyName.UNIQ_KEY,
        PropertyName.REAL_TOPIC,
        PropertyName.TIMER_OUT_MS,
        PropertyName.TIMER_DEL_UNIQKEY,
        PropertyName.TIMER_ROLL_TIMES,
    )
)
_TIMER, _HALF, _GIVEN_UP = (topic.encode() for topic in (TIMER_TOPIC, TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC))


def free_recalled(windows: DuplicateWindows, recall: StoredMessage) -> None:
    """Free the key of a message whose recall waits in the timer beside it."""
    properties = recall.properties
    if PropertyName.TIMER_ROLL_TIMES in properties:
        return  # The first record has freed the key. A message may have it that was stored between the two.
    topic = properties.get(PropertyName.REAL_TOPIC, "")
    window = windows.find(topic)
    key = _recalled_key(topic, properties.get(PropertyName.TIMER_DEL_UNIQKEY, ""))
    if window is not None and key is not None:
        window.free(key, recall.physical_offset, second_of(properties.get(PropertyName.TIMER_OUT_MS)))


def _recalled_key(topic: str, deletion_key: str) -> str | None:
    return deletion_key[len(topic) + 1 :] if deletion_key.startswith(f"{topic}+") else None


class _Half(NamedTuple):
    topic: str
    key: str
    physical_offset: int


class FreedKeys:
    """Follows recalls and transactions through the log, and frees the keys that became free."""

    def __init__(self, windows: DuplicateWindows) -> None:
        self._windows = windows
        # Undecided half messages: by topic and key the queue offset of the newest copy, and the message of each of these.
        self._newest: dict[tuple[str, str], int] = {}
        self._halves: dict[int, _Half] = {}

    def counted(self, head: RecordHead, keyed: KeyedMessage) -> None:
        """Note a record whose key was added."""
        if head.topic == _HALF:
            self._put(_Half(keyed.topic, keyed.key, head.physical_offset), head.queue_offset)

    def passed(self, head: RecordHead) -> None:
        """Note a record that does not count: a recall, a commit, a copy."""
        properties = head.properties
        if head.topic == _TIMER and (deleted := find_property(properties, _DELETED)) is not None:
            self._recalled(head, deleted)
            return
        key = find_property(properties, _UNIQ_KEY)
        if key is None:
            return
        topic = find_property(properties, _REAL_TOPIC) or head.topic.decode("utf-8", "replace")
        newest = self._newest.get((topic, key))
        if newest is None:
            return
        if head.topic == _HALF:
            self._put(self._halves[newest]._replace(physical_offset=head.physical_offset), head.queue_offset)
        elif head.topic == _GIVEN_UP or head.sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT:
            self._drop(newest)

    def ended(self, half_offsets: Iterable[int]) -> None:
        """Note the half messages of an op message."""
        for offset in half_offsets:
            half = self._halves.get(offset)
            if half is not None:
                self._drop(offset)
                self._free(half.topic, half.key, half.physical_offset, HALF_SECOND)

    def _recalled(self, head: RecordHead, deleted: str) -> None:
        second = second_of(find_property(head.properties, _OUT_MS))
        if (
            find_property(head.properties, _ROLLS) is None
            and head.stored_at_ms + CERTAIN_MS <= (second + 1) * SECOND_MS
        ):
            topic = find_property(head.properties, _REAL_TOPIC) or ""
            self._free(topic, _recalled_key(topic, deleted), head.physical_offset, second)

    def _free(self, topic: str, key: str | None, last_offset: int, second: int) -> None:
        window = self._windows.find(topic)
        if window is not None and key is not None and not window.ready.is_set():
            window.table.remove(window.digest(key), last_offset, second)

    def _put(self, half: _Half, queue_offset: int) -> None:
        older = self._newest.get((half.topic, half.key))
        if older is not None:
            del self._halves[older]
        self._newest[half.topic, half.key] = queue_offset
        self._halves[queue_offset] = half

    def _drop(self, queue_offset: int) -> None:
        half = self._halves.pop(queue_offset)
        del self._newest[half.topic, half.key]
