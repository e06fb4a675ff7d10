"""StoreCheckpoint: the offset up to which the store's files are known to be on the disk.

A checkpoint ahead of its files would hide torn data. Therefore only one worker writes it while the store runs: the
worker that has just synced the files that the checkpoint covers.

The file has RocketMQ's five fields. In Gantry's stores, `confirm_physical_offset` has this meaning: every record before
it, and every unit and index entry of those records, is on the disk. This offset does not depend on the wall clock,
which may be set back.

Next to it the file holds the size of the queues at that offset. A start after a crash thus notices if somebody removed
or emptied files of queues since (scanstart.py). There the offset is repeated under a checksum: one flipped bit of the
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
        files: The file system that holds the file.
        path: The file's path.
        require: Raises OSError if the store is lost.

    Attributes:
        value: The checkpoint in the file.
        count: The size of the queues at the count's own confirm offset; None if it is not known.

    Concurrency: `write` is called by the worker that syncs derived files, and by start and stop when it is idle.
    """

    __slots__ = ("_file", "_require", "count", "value")

    def __init__(self, files: FileSystem, path: str, require: Callable[[], None]) -> None:
        if files.exists(path) and files.size_bytes(path) != CHECKPOINT_BYTES:
            files.remove(path)  # A crash while the file was created cut it short: it has no content.
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
        # The map is not used: a checkpoint from another system may be a hole, and the disk may be full.
        self._file.write(
            0, (encode_checkpoint(value)[:QUEUE_COUNT_AT], encode_queue_count(count, value.confirm_physical_offset))
        )
        self._file.sync()
        self.value, self.count = value, count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
