"""The store's folder as a whole: its owner, whether it was left in order, and its format.

- The folder itself and `lock` in it: both are locked while a broker runs on the store (ownership.py). RocketMQ's
  brokers lock the same byte of the file. The folder's lock still holds if somebody removes the file.
- `abort`: exists from the start to an orderly stop, so its presence at start means a crash; holds the process id.
- `config/gantry.json`: Gantry's manifest (gantry.storeformat.manifest).
- `config/gantry-flush`: why the last broker could not flush the store (gantry.storeformat.flushnote).
- `config/gantry-deletions.json`: which records in the log belong to deleted topics (deletedtopics.py).

Manifest and `abort` together tell who ran on the store last. Each line is the state after a durable write. A crash can
leave any of these states, and the last column says how the next start reads it. P is Gantry's process id, Q the process
id of an Apache RocketMQ broker, X the log's end at Gantry's stop.

    step                          `abort`   manifest                the last broker on the store
    stopped in order              -         stopped at X            Gantry, in order
    start: the manifest names P   -         stopped at X, abort P   Gantry, in order
    start: `abort` is written     P         stopped at X, abort P   Gantry, crashed
    start: the log is recovered   P         running                 Gantry, crashed
    stop: all is flushed          P         stopped at X, abort P   Gantry, crashed
    stop: `abort` is removed      -         stopped at X, abort P   Gantry, in order
    stop: the manifest drops P    -         stopped at X            Gantry, in order

    RocketMQ crashed              Q         stopped at X            RocketMQ
    RocketMQ ran after Gantry's
    crash, and stopped in order   -         running                 RocketMQ (`trusted_manifest`)

A start does not change an existing `abort` file until the manifest says "running". If the manifest says "running" without
an `abort` file, the start removes the manifest before it writes its own `abort` file. Until recovery is done, a crash
of this start therefore leaves the state that the start has found.

P alone would not be enough, because in a container every broker may have the same process id. The manifest names P only
from just before `abort` is written until just after it is removed. A RocketMQ broker with the same process id is
therefore taken for Gantry in only one case: Gantry was killed between these two writes, and RocketMQ then ran and
crashed. Even this case does no harm: the data that Gantry flushed before X stays flushed, and `checkpoint_offset`
returns at most X.
"""

from dataclasses import replace
from errno import EIO

from gantry.runtime.errors import describe_os_error
from gantry.runtime.files import File, FileSystem, write_atomically
from gantry.runtime.telemetry import logger
from gantry.storeformat.configjson import BROKEN_SUFFIX
from gantry.storeformat.errors import BrokenFileError, NewerFormatError
from gantry.storeformat.flushnote import FLUSH_NOTE_BYTES, FailedFlush, decode_flush_note, encode_flush_note
from gantry.storeformat.layout import (
    ABORT_FILE,
    CHECKPOINT_FILE,
    COMMIT_LOG_DIR,
    CONFIG_DIR,
    CONSUME_QUEUE_DIR,
    FLUSH_NOTE_FILE,
    INDEX_DIR,
    MANIFEST_FILE,
    Checkpoint,
    ConfirmOffset,
    decode_checkpoint,
    decode_confirm_offset,
    parse_file_name,
)
from gantry.storeformat.manifest import DerivedState, StoreManifest, opened_manifest, trusted_manifest
from services.broker.store.errors import StoreFormatError
from services.broker.store.folder.deletedtopics import DeletedTopics
from services.broker.store.folder.ownership import OwnedFiles, Ownership
from services.broker.store.results import RecoveryReport

log = logger("broker.store")


class StoreFolder:
    """The folder of one store.

    Args:
        files: The file system that holds the store.
        root: The folder's path.

    Concurrency: the store's thread; `note_failed_flush` runs in a worker.

    Attributes:
        ownership: The store's locks.
        files: The file system for the store; it changes nothing by path once the store is lost.
        is_clean: Whether the last stop was orderly, or there was none.
        failed_flush: The note of the last broker on the store if it could not flush the store, or None.
        found_manifest: The manifest when the folder was opened; None if there was none.
        manifest: The current manifest.
        deleted: The deleted topics.
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        self.ownership = Ownership(files, root)
        self.files: FileSystem = OwnedFiles(files, self.ownership)
        self._files = self.files
        self.root = root
        self.checkpoint_path = f"{root}/{CHECKPOINT_FILE}"
        self._abort = f"{root}/{ABORT_FILE}"
        self._manifest_path = f"{root}/{MANIFEST_FILE}"
        self._note_path = f"{root}/{FLUSH_NOTE_FILE}"
        self._note: File | None = None
        self._is_noted = False
        self._has_broken_manifest = False
        self._process_id = 0
        self._has_begun = False
        self._abort_found: bytes | None = None
        self.is_clean = True
        self.failed_flush: FailedFlush | None = None
        self.found_manifest: StoreManifest | None = None
        self.manifest = StoreManifest()
        self.deleted = DeletedTopics(self.files, root)

    def open(self, *, is_repair: bool = False) -> None:
        """Create missing folders, lock the store and read its manifest; this does not change the content of a store.

        Args:
            is_repair: Whether to ignore a broken manifest, because the whole store will be checked.

        Raises:
            StoreLockedError: Another process runs on the store.
            StoreFormatError: The store has a format that this release does not know, or a broken manifest.
            OSError: The disk failed.
        """
        files = self._files
        for folder in (COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, CONFIG_DIR):
            files.make_dirs(f"{self.root}/{folder}")
        self.ownership.take()
        self.is_clean = not files.exists(self._abort)
        self._abort_found = None if self.is_clean else files.read(self._abort)
        if not self.is_clean and files.exists(self._note_path):
            self.failed_flush = decode_flush_note(files.read(self._note_path))
        self.found_manifest = trusted_manifest(self._read_manifest(is_repair=is_repair), has_abort=not self.is_clean)
        self.manifest = self.found_manifest or StoreManifest()
        self.deleted.load(is_ours=self.is_ours)

    @property
    def is_ours(self) -> bool:
        """Return whether the last broker on the store was Gantry; then the checkpoint is Gantry's, too (see above)."""
        manifest = self.found_manifest
        if manifest is None:
            return False
        if self.is_clean or manifest.clean_stop_offset is None:
            return self.is_clean == (manifest.clean_stop_offset is not None)
        return manifest.abort_process_id is not None and self._abort_found == _abort_content(manifest.abort_process_id)

    def checkpoint_offset(self) -> ConfirmOffset:
        """Return the physical offset before which the disk has the log and everything derived from it.

        The checkpoint's confirm offset counts only if the checkpoint is Gantry's.
        """
        if self.found_manifest is None or not self.is_ours:
            return ConfirmOffset(0, is_checksummed=False)
        confirmed, stop = (
            decode_confirm_offset(self._checkpoint(), log_end=self._log_end()),
            self.found_manifest.clean_stop_offset,
        )
        return confirmed if stop is None else confirmed._replace(offset=min(confirmed.offset, stop))

    def _log_end(self) -> int:
        """Return the end of the last file of the CommitLog."""
        listed = self._files.list_files(f"{self.root}/{COMMIT_LOG_DIR}")
        return max((start + size for name, size in listed if (start := parse_file_name(name)) is not None), default=0)

    def _read_manifest(self, *, is_repair: bool) -> StoreManifest | None:
        try:
            return StoreManifest.load(self.files, self.root)
        except NewerFormatError as error:
            raise StoreFormatError(str(error)) from None
        except BrokenFileError as error:
            if not is_repair:
                raise StoreFormatError(
                    f"{error}. This file is the store's manifest: it says which records carry a checksum and where the "
                    f"log ended. Nothing was changed. Run `gantry store repair {self.root}`, which checks the whole store "
                    "and writes a new manifest (docs/formats/config.md), and start again"
                ) from None
            log.warning(
                "the manifest is broken; the whole store is checked without it", path=error.path, reason=error.reason
            )
            self._has_broken_manifest = True
            return None

    def read_checkpoint(self) -> Checkpoint:
        """Return the checkpoint; all fields are 0 if the file does not exist."""
        return decode_checkpoint(self._checkpoint())

    def _checkpoint(self) -> bytes:
        return self._files.read(self.checkpoint_path) if self._files.exists(self.checkpoint_path) else b""

    def begin(self, process_id: int) -> None:
        """Record that a broker runs on the store, before anything in it is changed; a second call does nothing."""
        if self._has_begun:
            return
        self._has_begun = True
        self._process_id = process_id
        if self.is_clean:
            if self.is_ours:
                self._dump(replace(self.manifest, abort_process_id=process_id))
            elif self.found_manifest is not None:
                # Beside Gantry's abort file, the manifest would say that Gantry crashed and that RocketMQ's records are
                # damaged.
                self._files.remove(self._manifest_path)
                self._files.sync_dir(f"{self.root}/{CONFIG_DIR}")
            self._write_abort()
        if not self._is_note_usable():
            self._files.write(self._note_path, encode_flush_note(None), durable=True)
        # Sync the names of the folder and of its parents: if a folder's name is lost, its content is lost, too.
        self._files.sync_dir(self.root)
        folder = self.root
        while "/" in folder.rstrip("/"):
            folder = folder.rstrip("/").rpartition("/")[0] or "/"
            try:
                self._files.sync_dir(folder)
            except PermissionError:
                return  # In a folder without read permission the store has created nothing.

    def _is_note_usable(self) -> bool:
        path = self._note_path
        try:
            return self._files.exists(path) and len(self._files.read(path)) == FLUSH_NOTE_BYTES
        except OSError as error:
            if error.errno != EIO:
                raise
            # After a crash, this would have ended the start. After an orderly stop, the note has no content.
            log.warning("the disk can't read the note of a failed flush; it is made again", path=path)
            return False

    def mark_opened(self, report: RecoveryReport, derived: DerivedState, record_checksum: bool) -> None:
        """Write the manifest, and update the deletions after recovery, before the first record is appended."""
        log_end = report.log_end_offset
        self.deleted.settle(report.log_min_offset, log_end)
        opened = opened_manifest(self.found_manifest, log_end=log_end, record_checksum=record_checksum)
        self.manifest = replace(opened, opened_offset=log_end, opened_derived=derived)
        if self._has_broken_manifest:
            # A copy: until the new manifest exists, a start must find the broken one and reject it.
            self._files.write(self._manifest_path + BROKEN_SUFFIX, self._files.read(self._manifest_path))
        self._dump(self.manifest)
        if not self.is_clean:
            self._write_abort()
        # From here on, the last broker's note is no longer needed.
        self._note = self._files.open(self._note_path)
        self._write_note(None)

    def note_failed_flush(self, failed: FailedFlush) -> None:
        """Leave a note for the next start with the first flush failure, as far as the disk allows."""
        if self._is_noted:
            return
        self._is_noted = True
        try:
            self._write_note(failed)
        except OSError as error:
            log.warning("the failed flush can't be noted", path=self._note_path, reason=describe_os_error(error))

    def _write_note(self, failed: FailedFlush | None) -> None:
        content = encode_flush_note(failed)
        if self._note is not None and self._note.read(0, FLUSH_NOTE_BYTES) != content:
            self.ownership.require()
            self._note.write(0, [content])
            self._note.sync()

    def end(self, log_end: int, derived: DerivedState) -> bool:
        """Record the orderly stop, after everything in the store is on the disk; return whether that succeeded."""
        self.manifest = self.manifest.stopped(log_end, derived)
        try:
            self._dump(replace(self.manifest, abort_process_id=self._process_id))
            self._files.remove(self._abort)
            self._files.sync_dir(self.root)
            self._dump(self.manifest)
        except OSError as error:
            log.warning("the stop can't be noted in full; the next start may recover", reason=describe_os_error(error))
            return False
        return True

    def _dump(self, manifest: StoreManifest) -> None:
        manifest.dump(self._files, self.root)

    def _write_abort(self) -> None:
        write_atomically(self._files, self._abort, _abort_content(self._process_id))

    def close(self) -> None:
        """Release the locks."""
        if self._note is not None:
            self._note.close()
            self._note = None
        self.ownership.release()


def _abort_content(process_id: int) -> bytes:
    return str(process_id).encode() if process_id else b""
