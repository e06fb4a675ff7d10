"""Which topics were deleted, and up to where in the CommitLog their records are dead: `config/gantry-deletions.json`.

The records of a deleted topic stay in the log until their files go, and recovery builds queues from the log, after an orderly
stop those of the last file. Without a note of the deletion they would be back, and a topic of that name that is made later
would begin with them.

A record is dead if it lies before the log's end at the deletion and was stored by then. Either would do while only we write
the log; both have to hold, so that no mixture of files from different times can hide a message that was sent later.

    {"topics": {"T": {"log_end": 621, "deleted_at_ms": 1700000000000}}}
"""

import json
from typing import Any, Final, NamedTuple

from gantry.runtime.files import FileSystem, write_atomically
from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import DELETIONS_FILE

# A megabyte or so. The oldest ones go first: their records are the next to go with the log's files.
DELETIONS_MAX: Final = 10_000

log = logger("broker.store")


class Deletion(NamedTuple):
    """When a topic was deleted, in the log and by the wall clock."""

    log_end: int
    deleted_at_ms: int


class DeletedTopics:
    """The deletions that the CommitLog still has records from before of.

    Concurrency: the store's thread.
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._path = f"{root}/{DELETIONS_FILE}"
        self._table: dict[bytes, Deletion] = {}
        self._written: dict[bytes, Deletion] = {}

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

    def covers(self, topic: bytes, physical_offset: int, stored_at_ms: int) -> bool:
        """Say whether a record is of a topic that was deleted after it was stored."""
        deletion = self._table.get(topic)
        return deletion is not None and physical_offset < deletion.log_end and stored_at_ms <= deletion.deleted_at_ms

    def settle(self, log_min: int, log_end: int) -> None:
        """Take note of what recovery found, before the first record is appended. Raises OSError.

        Where the log ends earlier than at a deletion, what is appended now must not count as dead.
        """
        self._table = {
            topic: Deletion(min(deletion.log_end, log_end), deletion.deleted_at_ms)
            for topic, deletion in self._table.items()
            if deletion.log_end > log_min
        }
        if self._table != self._written:
            self._write()

    def add(self, topic: str, log_end: int, now_ms: int, *, log_min: int) -> None:
        """Note a deletion; durable, unless the disk refuses: then the next start may bring messages back."""
        name = topic.encode()
        self._table.pop(name, None)  # The newest stands last.
        self._table[name] = Deletion(log_end, now_ms)
        for old in [old for old, each in self._table.items() if each.log_end <= log_min and old != name]:
            del self._table[old]
        while len(self._table) > DELETIONS_MAX:
            del self._table[next(iter(self._table))]
        try:
            self._write()
        except OSError as error:
            # No reason not to delete: it is done to get room on a full disk, too.
            log.warning("a deletion can't be noted", topic=topic, path=self._path, reason=str(error))

    def _write(self) -> None:
        topics = {topic.decode(): deletion._asdict() for topic, deletion in self._table.items()}
        write_atomically(self._files, self._path, json.dumps({"topics": topics}).encode() + b"\n")
        self._written = dict(self._table)


def _decode(data: bytes) -> dict[bytes, Deletion]:
    topics: dict[str, Any] = json.loads(data)["topics"]
    return {
        topic.encode(): Deletion(int(each["log_end"]), int(each["deleted_at_ms"])) for topic, each in topics.items()
    }
