"""StoreCheckpoint: up to where the store's files are known to be on the disk.

A checkpoint ahead of its files would hide what a crash tore, so it is written by the one worker that has just synced
what it speaks of, and by nobody else while the store runs.

Of RocketMQ's five fields, `confirm_physical_offset` says in our stores: every record before it, and every unit and
index entry of those records, is on the disk. It is independent of the wall clock, which may be set back.

Beside it stands how much the queues held up to that offset, so that a start after a crash sees whether somebody removed
or emptied files of queues since (scanstart.py). The offset is repeated there under a checksum: one flipped bit of the
field must not let a start begin too late (`decode_confirm_offset`).
"""

from collections.abc import Callable

from gantry.runtime.files import FileSystem
from gantry.storeformat.layout import (
    CHECKPOINT_BYTES,
    QUEUE_COUNT_AT,
    QUEUE_COUNT_END,
    Checkpoint,
    QueueCount,
    decode_checkpoint,
    decode_queue_count,
    encode_checkpoint,
    encode_queue_count,
)


class StoreCheckpoint:
    """The checkpoint file.

    Args:
        files: Where it lies.
        path: Its path.
        require: Raises OSError if the store is lost.

    Attributes:
        value: What it says, as it stands there.
        count: How much the queues held up to the confirm offset in the count; None if that is not known.

    Concurrency: `write` is called by the worker that syncs derived files, and by start and stop when it is idle.
    """

    __slots__ = ("_file", "_require", "count", "value")

    def __init__(self, files: FileSystem, path: str, require: Callable[[], None]) -> None:
        if files.exists(path) and files.size_bytes(path) != CHECKPOINT_BYTES:
            files.remove(path)  # Cut short by a crash while it was made: it says nothing.
        if not files.exists(path):
            files.create(path, CHECKPOINT_BYTES).close()
        self._require = require
        self._file = files.open(path)
        data = self._file.read(0, QUEUE_COUNT_END)
        self.value = decode_checkpoint(data)
        self.count = decode_queue_count(data)

    def write(self, value: Checkpoint, count: QueueCount | None = None) -> None:
        """Write and sync. Durability: on the disk when this returns. Raises OSError."""
        self._require()
        # Not through the map: a checkpoint that came from elsewhere may be a hole, and the disk full.
        self._file.write(
            0, (encode_checkpoint(value)[:QUEUE_COUNT_AT], encode_queue_count(count, value.confirm_physical_offset))
        )
        self._file.sync()
        self.value, self.count = value, count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
