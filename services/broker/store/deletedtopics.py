"""Which topics were deleted, and up to where in the CommitLog their records are dead: `config/gantry-deletions.json`.

The records of a deleted topic stay in the log until their files go, and recovery builds queues from the log. Without a
note of the deletion they would be back, and a topic of that name that is made later would begin with them.

A record is dead if it lies before the log's end at the deletion and was stored by then. Either condition would do while
only we write the log; both have to hold, so that no mixture of files from different times can hide a message that was
sent later. Store times never go back in the log, and the deletion's time is never before the last of them, so that a
clock that is set back makes no dead record alive.

A deletion is unsaved until the broker has saved its own tables without the topic. After a crash before that, the next
start still finds the topic in those tables, and removes it there too.

A deletion is recent until the next start has settled it: only a deletion of the life that crashed explains that queues
have fewer units than before, and only one that came after they were counted.

Recent deletions are numbered, and the checkpoint's count of the queues says which of them it has (`number`). The log's end
would not do: it stays where it is as long as nobody sends.

    {"topics": {"T": {"log_end": 621, "deleted_at_ms": 1700000000000, "is_saved": false, "is_recent": true, "number": 1}}}
"""

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gantry.runtime.files import FileSystem, write_atomically
from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import DELETIONS_FILE

# A megabyte or so. The oldest saved ones go first: their records are the next to go with the log's files.
DELETIONS_MAX: Final = 10_000

log = logger("broker.store")


class Deletion(NamedTuple):
    """When a topic was deleted, in the log and by the wall clock."""

    log_end: int
    deleted_at_ms: int
    is_saved: bool = True
    is_recent: bool = False
    number: int = 0
    """Greater than those of the deletions before; 0 where it is not recent, or an earlier release noted it."""


class DeletedTopics:
    """The deletions of topics that the CommitLog still has records of.

    Concurrency: the store's thread. `add` and `mark_saved` return jobs for one worker, which runs them in order.

    Attributes:
        number: Of the last deletion; goes on from the recent ones that a crash left.
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._path = f"{root}/{DELETIONS_FILE}"
        self._table: dict[bytes, Deletion] = {}
        self._written: dict[bytes, Deletion] = {}
        self.number = 0

    def load(self, *, is_ours: bool) -> None:
        """Read the file; where it is broken, or somebody else ran on the store last, all messages count as alive.

        Args:
            is_ours: The last one to run on the store was us. Others may cut the log and write it anew.
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
        """Say whether a record is of a topic that was deleted after it was stored."""
        deletion = self._table.get(topic)
        return deletion is not None and physical_offset < deletion.log_end and stored_at_ms <= deletion.deleted_at_ms

    def settle(self, log_min: int, log_end: int) -> None:
        """Take note of what recovery found, before the first record is appended. Raises OSError.

        Where the log ends earlier than at a deletion, what is appended now must not count as dead.
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
        """Say whether a topic was deleted since the last start that settled the deletions."""
        return any(each.is_recent for each in self._table.values())

    def has_uncounted(self, offset: int, number: int) -> bool:
        """Say whether a topic was deleted since the queues were counted.

        Args:
            offset: Where the log ended then.
            number: Of the last deletion then; negative if an earlier release counted, and noted no numbers.
        """
        return any(
            each.is_recent and (each.number > number >= 0 or (number < 0 and each.log_end >= offset))
            for each in self._table.values()
        )

    def unsaved(self) -> list[str]:
        """Return the topics whose deletion is unsaved."""
        return [topic.decode() for topic, each in self._table.items() if not each.is_saved]

    def add(self, topic: str, log_end: int, now_ms: int, *, log_min: int) -> Callable[[], None]:
        """Take note of a deletion, unsaved.

        Returns:
            The job that makes the note durable. It raises OSError if the disk refuses: then the next start may bring
            messages back.
        """
        name = topic.encode()
        self._table.pop(name, None)  # The newest stands last.
        self.number += 1
        self._table[name] = Deletion(log_end, now_ms, is_saved=False, is_recent=True, number=self.number)
        for old in [old for old, each in self._table.items() if each.log_end <= log_min and each.is_saved]:
            del self._table[old]
        while len(self._table) > DELETIONS_MAX:
            saved = (old for old, each in self._table.items() if each.is_saved)
            del self._table[next(saved, next(iter(self._table)))]
        return self._writing()

    def mark_saved(self, topic: str) -> Callable[[], None]:
        """Take note that the broker's tables are saved without a topic; return the job that makes it durable."""
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
    """Return an offset or a time; ValueError where it is none. JSON's infinite numbers are floats."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is neither an offset nor a time")
    return value
