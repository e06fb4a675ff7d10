"""The deleted topics, and the dead part of the CommitLog for each: `config/gantry-deletions.json`.

The records of a deleted topic stay in the log until retention removes the log's files, and recovery builds queues from
the log. Without a note of the deletion the records would come back, and a later topic of the same name would begin with
them.

A record is dead if it lies before the log's end at the deletion and was stored by the time of the deletion. Either
condition would be enough if only Gantry wrote the log. Both are required, so that no mixture of files from different
times can hide a message that was sent later. Store times never go back in the log, and the time of a deletion is never
before the last store time. A clock that is set back therefore revives no dead record.

A deletion is unsaved until the broker has saved its own tables without the topic. After a crash before that, the next
start still finds the topic in those tables, and removes it there, too.

A deletion is recent until the next start has settled it. Only a recent deletion, from the run that crashed, can explain
that queues have fewer units than before, and only if it came after the queues were counted.

Recent deletions are numbered. The checkpoint's count of the queues says which of them it includes (`number`). The log's
end would not be enough, because it does not change while nobody sends.

    {"topics": {"T": {"log_end": 621, "deleted_at_ms": 1700000000000, "is_saved": false, "is_recent": true,
     "number": 1}}}
"""

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gantry.runtime.files import FileSystem, write_atomically
from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import DELETIONS_FILE

# About a megabyte. The oldest saved ones are dropped first: their records are the next to be removed with the log's
# files.
DELETIONS_MAX: Final = 10_000

log = logger("broker.store")


class Deletion(NamedTuple):
    """A topic's deletion: its position in the log and its wall time."""

    log_end: int
    deleted_at_ms: int
    is_saved: bool = True
    is_recent: bool = False
    number: int = 0
    """Greater than the numbers of earlier deletions; 0 if it is not recent, or if an earlier release noted it."""


class DeletedTopics:
    """The deletions of topics whose records are still in the CommitLog.

    Concurrency: the store's thread. `add` and `mark_saved` return jobs for one worker, which runs them in order.

    Attributes:
        number: The number of the last deletion; continues after the recent ones that a crash left.
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._path = f"{root}/{DELETIONS_FILE}"
        self._table: dict[bytes, Deletion] = {}
        self._written: dict[bytes, Deletion] = {}
        self.number = 0

    def load(self, *, is_ours: bool) -> None:
        """Read the file; if it is broken, or another program ran on the store last, all messages count as alive.

        Args:
            is_ours: Whether the last broker on the store was Gantry. Others may truncate the log and append to it
                again.
        """
        if not self._files.exists(self._path):
            return
        try:
            self._written = _decode(self._files.read(self._path))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("deletions can't be read; deleted messages may be back", path=self._path, error=repr(error))
            return
        self._table = dict(self._written) if is_ours else {}
        self.number = max((each.number for each in self._table.values()), default=0)

    def covers(self, topic: bytes, physical_offset: int, stored_at_ms: int) -> bool:
        """Return whether a record's topic was deleted after the record was stored."""
        deletion = self._table.get(topic)
        return deletion is not None and physical_offset < deletion.log_end and stored_at_ms <= deletion.deleted_at_ms

    def settle(self, log_min: int, log_end: int) -> None:
        """Update the deletions after recovery, before the first record is appended. Raises OSError.

        If the log now ends earlier than at a deletion, new records there must not count as dead.
        """
        self._table = {
            topic: deletion._replace(log_end=min(deletion.log_end, log_end), is_recent=False, number=0)
            for topic, deletion in self._table.items()
            if deletion.log_end > log_min or not deletion.is_saved
        }
        if self._table != self._written:
            self._write(dict(self._table))

    def find(self, topic: bytes) -> Deletion | None:
        """Return the last deletion of a topic, or None."""
        return self._table.get(topic)

    def has_recent(self) -> bool:
        """Return whether a topic was deleted since the last start that settled the deletions."""
        return any(each.is_recent for each in self._table.values())

    def has_uncounted(self, offset: int, number: int) -> bool:
        """Return whether a topic was deleted since the queues were counted.

        Args:
            offset: The log's end at the count.
            number: The number of the last deletion at the count; negative if an earlier release counted, which had no
                numbers.
        """
        return any(
            each.is_recent and (each.number > number >= 0 or (number < 0 and each.log_end >= offset))
            for each in self._table.values()
        )

    def unsaved(self) -> list[str]:
        """Return the topics whose deletion is unsaved."""
        return [topic.decode() for topic, each in self._table.items() if not each.is_saved]

    def add(self, topic: str, log_end: int, now_ms: int, *, log_min: int) -> Callable[[], None]:
        """Add a deletion, unsaved.

        Returns:
            The job that makes the note durable. It raises OSError if the disk fails: then the next start may bring
            messages back.
        """
        name = topic.encode()
        self._table.pop(name, None)  # The newest deletion comes last.
        self.number += 1
        self._table[name] = Deletion(log_end, now_ms, is_saved=False, is_recent=True, number=self.number)
        for old in [old for old, each in self._table.items() if each.log_end <= log_min and each.is_saved]:
            del self._table[old]
        while len(self._table) > DELETIONS_MAX:
            saved = (old for old, each in self._table.items() if each.is_saved)
            del self._table[next(saved, next(iter(self._table)))]
        return self._writing()

    def mark_saved(self, topic: str) -> Callable[[], None]:
        """Note that the broker's tables are saved without a topic; return the job that makes the note durable."""
        deletion = self._table.get(topic.encode())
        if deletion is None or deletion.is_saved:
            return lambda: None
        self._table[topic.encode()] = deletion._replace(is_saved=True)
        return self._writing()

    def _writing(self) -> Callable[[], None]:
        table = dict(self._table)
        return lambda: self._write(table)

    def _write(self, table: dict[bytes, Deletion]) -> None:
        topics = {topic.decode(): _encode(deletion) for topic, deletion in table.items()}
        write_atomically(self._files, self._path, json.dumps({"topics": topics}).encode() + b"\n")
        self._written = table


def _encode(deletion: Deletion) -> dict[str, Any]:
    values: dict[str, Any] = deletion._asdict()
    if deletion.is_saved:
        del values["is_saved"]
    if not deletion.is_recent:
        del values["is_recent"]
    if not deletion.number:
        del values["number"]
    return values


def _decode(data: bytes) -> dict[bytes, Deletion]:
    topics: dict[str, Any] = json.loads(data)["topics"]
    return {
        topic.encode(): Deletion(
            _number(each["log_end"]),
            _number(each["deleted_at_ms"]),
            bool(each.get("is_saved", True)),
            bool(each.get("is_recent", False)),
            _number(each.get("number", 0)),
        )
        for topic, each in topics.items()
    }


def _number(value: Any) -> int:
    """Return an offset or a time; raise ValueError for anything else. JSON's infinite numbers are floats."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is neither an offset nor a time")
    return value
