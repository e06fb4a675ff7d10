"""LocalOffsets: the committed offsets of one broadcasting consumer, in a file on its own machine.

Theory of operation. Each consumer of a broadcasting group consumes all messages, so the brokers can't keep one offset for
all of them. The consumer keeps its own offsets in a file. The file belongs to the consumer's client id and group, so an
instance that starts again must have the same client id. A lock keeps a second process from writing the same file.

    FOLDER/CLIENT_ID/GROUP/offsets.json        the latest offsets
                           offsets.json.bak    the offsets before them, read if the first file is missing or broken
                           lock

Format, as RocketMQ's LocalFileOffsetStore writes and reads it (fastjson: the keys are objects):
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12}}

Durability: a commit returns when the file is on the disk. Each file is written beside its name and renamed over it, so a
crash leaves the old or the new offsets. The backup is replaced first, and only with offsets that were read or written as a
whole. Commits that come together are written together.

If both files are broken, the consumer does not start: it would silently skip messages, or process all of them again.

Source: RocketMQ 5.3 LocalFileOffsetStore. Its file has no lock, and is not synced.

Concurrency: the event loop's thread; a worker reads and writes the files.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from gantry.client.consumer.memberoffsets import Commit
from gantry.client.consumer.offsets import BY_HAND
from gantry.client.errors import ClientError, InvalidArgumentError, OffsetsFileError
from gantry.model.message import MessageQueue
from gantry.remoting.bodies.fastjson import (
    RELAXED_BYTES_MAX,
    JsonBody,
    MessageQueueBean,
    decode_json,
    encode_json,
    queue_keys,
    queue_table,
)
from gantry.remoting.errors import BodyError
from gantry.runtime.errors import AlreadyLockedError
from gantry.runtime.files import FileLock, FileSystem, make_dirs_durably, write_atomically
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import ThreadWorker, Worker

log = logger("client.group")

FILE_BYTES_MAX: Final = RELAXED_BYTES_MAX
"""Largest size of a file: the offsets of 20,000 queues at least. Larger ones could not be read back."""
_NAME_BYTES_MAX: Final = 255

R = TypeVar("R")


class _Offsets(JsonBody):
    offset_table: list[tuple[MessageQueueBean, int]] | dict[str, int]


class LocalOffsets:
    """The offsets of one consumer. They are usable between `open` and `close`."""

    def __init__(self, folder: str, *, files: FileSystem | None = None, worker: Worker | None = None) -> None:
        """Make the offsets; nothing is read yet.

        Args:
            folder: The folder for the offsets of any number of consumers. It is made if it does not exist.
            files: The file system; None for that of the operating system.
            worker: Runs what waits for the disk; None for a thread of its own.
        """
        self.folder = folder
        self._files = files or OsFileSystem()
        self._worker = worker or ThreadWorker("offsets")
        self._file: _OffsetsFile | None = None
        self._table: dict[MessageQueue, int] = {}
        self._changes = 0
        self._written_changes = 0
        self._writing = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def open(self, client_id: str, group: str) -> None:
        """Lock and read the file of a consumer.

        Raises:
            InvalidArgumentError: The client id can't be the name of a folder, or another consumer has the file.
            OffsetsFileError: The file can't be read.
        """
        assert self._file is None, "opened twice"
        if client_id in (".", "..") or {"/", "\0"} & {*client_id} or len(client_id.encode()) > _NAME_BYTES_MAX:
            reason = f"can't be the name of a folder, which has at most {_NAME_BYTES_MAX} bytes and no slash"
            raise InvalidArgumentError("client_id", client_id, reason)
        self._file = file = _OffsetsFile(self._files, f"{self.folder}/{client_id}/{group}")
        is_open = False
        try:
            self._table = await self._run(file.open)
            is_open = True
        except AlreadyLockedError as error:
            reason = f"consumes in group {group} already: {error}. Each consumer needs a client id of its own"
            raise InvalidArgumentError("client_id", client_id, reason) from None
        finally:
            if not is_open:
                await self.close()

    async def close(self) -> None:
        """Release the file, even if this is cancelled. All offsets that were committed are in it."""
        file, self._file = self._file, None
        if file is not None:
            self._closing = asyncio.ensure_future(self._release(file))
            await asyncio.shield(self._closing)

    async def _release(self, file: "_OffsetsFile") -> None:
        await self._run(file.close)
        self._worker.close()

    async def committed(self, queue: MessageQueue) -> tuple[int | None, int]:
        """Return the committed offset, with an epoch that no reset of the group's offsets exceeds."""
        return self._table.get(queue), BY_HAND

    async def commit(self, commits: Mapping[MessageQueue, Commit]) -> Mapping[MessageQueue, ClientError]:
        """Write offsets to the file. After an error they stay in memory, and the next commit writes them, too."""
        self._table.update((queue, commit.offset) for queue, commit in commits.items())
        self._changes += 1
        wanted = self._changes
        try:
            async with self._writing:
                if self._written_changes < wanted:
                    await self._write()
        except OffsetsFileError as error:
            return dict.fromkeys(commits, error)
        return {}

    async def _write(self) -> None:
        file, changes, table = self._file, self._changes, dict(self._table)
        if file is None:
            raise OffsetsFileError(self.folder, "is not open: the consumer has ended")
        await self._run(lambda: file.write(table))
        self._written_changes = changes

    async def _run(self, job: Callable[[], R]) -> R:
        # A job that was submitted runs even if nobody waits for it any more: the lock must be released.
        return await asyncio.shield(asyncio.wrap_future(self._worker.submit(job)))


class _OffsetsFile:
    """The file and its backup.

    Concurrency: the worker's thread.
    """

    def __init__(self, files: FileSystem, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._path = f"{folder}/offsets.json"
        # The latest content that was read or written as a whole.
        self._good: bytes | None = None
        self._lock: FileLock | None = None

    def open(self) -> dict[MessageQueue, int]:
        """Lock the file and return the offsets. Raises AlreadyLockedError, OffsetsFileError."""
        try:
            make_dirs_durably(self._files, self._folder)
            self._lock = self._files.lock(f"{self._folder}/lock")
        except OSError as error:
            raise OffsetsFileError(self._path, f"can't be locked: {error.strerror or error}") from None
        return self._read()

    def close(self) -> None:
        """Release the lock, if this process has it."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def write(self, table: Mapping[MessageQueue, int]) -> None:
        """Replace the file, and keep its old content as the backup. Raises OffsetsFileError."""
        data = encode_json({"offsetTable": queue_keys(sorted(table.items()))})
        if len(data) > FILE_BYTES_MAX:
            reason = (
                f"would have {len(data)} bytes for {len(table)} queues, more than {FILE_BYTES_MAX}; delete the entries of "
                "topics that are no longer consumed while the consumer is stopped"
            )
            raise OffsetsFileError(self._path, reason)
        try:
            if self._good is not None:
                write_atomically(self._files, self._path + _BACKUP, self._good)
            write_atomically(self._files, self._path, data)
        except OSError as error:
            raise OffsetsFileError(self._path, f"can't be written: {error.strerror or error}") from None
        self._good = data

    def _read(self) -> dict[MessageQueue, int]:
        reasons: dict[str, str] = {}
        for path in (self._path, self._path + _BACKUP):
            try:
                data = self._files.read(path)
                table = _decode(data)
            except FileNotFoundError:
                continue
            except BodyError as error:
                reasons[path] = f"is broken: {error}"
            except OSError as error:
                # It may be good, and the backup is older.
                raise OffsetsFileError(path, f"can't be read: {error.strerror or error}") from None
            else:
                self._good = data
                if reasons:
                    log.warning(
                        "the file of offsets is broken, its backup is used: some messages come again",
                        used=path,
                        reason="; ".join(f"{bad} {reason}" for bad, reason in reasons.items()),
                    )
                return table
        if reasons:
            advice = "the consumer does not start. To begin anew, move the file and its .bak away"
            path, reason = next(iter(reasons.items()))
            raise OffsetsFileError(path, f"{reason}, and there is no good backup; {advice}")
        return {}


_BACKUP: Final = ".bak"


def _decode(data: bytes) -> dict[MessageQueue, int]:
    """Return the offsets of a file. Raises BodyError."""
    table = queue_table(decode_json(_Offsets, data).offset_table)
    bad = next((f"{queue}: {offset}" for queue, offset in table.items() if offset < 0), None)
    if bad is not None:
        raise BodyError("offsets", "offsetTable", f"{bad} is below 0")
    return table
