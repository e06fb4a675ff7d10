"""The store's folder as a whole: whose it is, whether it was left in order, and which format it has.

- The folder itself and `lock` in it: both are locked while a broker runs on the store (ownership.py). RocketMQ's
  brokers lock the same byte of the file; the folder's lock also holds where somebody removes the file.
- `abort`: there from start to an orderly stop, so that its presence at start means a crash; holds the process's id.
- `config/gantry.json`: our mark (gantry.storeformat.mark).
- `config/gantry-flush`: why the last broker could not flush the store (gantry.storeformat.flushnote).
- `config/gantry-deletions.json`: which records are dead though they are in the log (deletedtopics.py).

Mark and `abort` together say who ran on the store last. Each line is the state after a durable write; a crash can leave
any of them, and the next start reads it as the last column says. P is our process id, Q that of an Apache RocketMQ
broker, X the log's end at our stop.

    step                          `abort`   mark                    the last one on the store
    stopped in order              -         stopped at X            us, in order
    start: the mark names P       -         stopped at X, abort P   us, in order
    start: `abort` is written     P         stopped at X, abort P   us, crashed
    start: the log is recovered   P         running                 us, crashed
    stop: all is flushed          P         stopped at X, abort P   us, crashed
    stop: `abort` is removed      -         stopped at X, abort P   us, in order
    stop: the mark forgets P      -         stopped at X            us, in order

    RocketMQ crashed              Q         stopped at X            RocketMQ
    RocketMQ came after our
    crash, and stopped in order   -         running                 RocketMQ (`trusted_mark`)

A start leaves an `abort` file that it finds as it is until the mark says "running", and removes a mark that says
"running" without an `abort` file before it writes its own: until recovery is done, a crash of this start leaves what
the start has found. P alone would not do (in a container every broker may have the same process id): the mark names P
only from just before `abort` is written, and until just after it is removed. So a RocketMQ broker with the same process
id is taken for us only if we were killed between these two writes, and it then ran and crashed. Even that does no harm:
what we flushed before X stays flushed, whoever ran since, and `proven_offset` says no more than X.
"""

from dataclasses import replace
from errno import EIO

from gantry.runtime.errors import os_reason
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
    MARK_FILE,
    Checkpoint,
    ConfirmOffset,
    decode_checkpoint,
    decode_confirm_offset,
    parse_file_name,
)
from gantry.storeformat.mark import DerivedState, GantryMark, opened_mark, trusted_mark
from services.broker.store.deletedtopics import DeletedTopics
from services.broker.store.errors import StoreFormatError
from services.broker.store.ownership import OwnedFiles, Ownership
from services.broker.store.results import RecoveryReport

log = logger("broker.store")


class StoreFolder:
    """The folder of one store.

    Args:
        files: Where it lies.
        root: Its path.

    Concurrency: the store's thread; `note_failed_flush` runs in a worker.

    Attributes:
        ownership: Its locks.
        files: Changes nothing by path once the store is lost.
        is_clean: The last stop was orderly, or there was none.
        failed_flush: The last one to run on the store could not flush it, and this is what it noted; or None.
        found_mark: What the mark said when the folder was opened; None where there was none.
        mark: What it says now.
        deleted: The topics that were deleted.
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        self.ownership = Ownership(files, root)
        self.files: FileSystem = OwnedFiles(files, self.ownership)
        self._files = self.files
        self.root = root
        self.checkpoint_path = f"{root}/{CHECKPOINT_FILE}"
        self._abort = f"{root}/{ABORT_FILE}"
        self._mark_path = f"{root}/{MARK_FILE}"
        self._note_path = f"{root}/{FLUSH_NOTE_FILE}"
        self._note: File | None = None
        self._is_noted = False
        self._has_broken_mark = False
        self._process_id = 0
        self._has_begun = False
        self._abort_found: bytes | None = None
        self.is_clean = True
        self.failed_flush: FailedFlush | None = None
        self.found_mark: GantryMark | None = None
        self.mark = GantryMark()
        self.deleted = DeletedTopics(self.files, root)

    def open(self, *, is_repair: bool = False) -> None:
        """Make what is missing, lock the store and read its mark; nothing of a store is changed by that.

        Args:
            is_repair: Take a broken mark for none: the whole store is going to be checked.

        Raises:
            StoreLockedError: Another process runs on it.
            StoreFormatError: It has a format that this release does not know, or a broken mark.
            OSError: The disk refused.
        """
        files = self._files
        for folder in (COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, CONFIG_DIR):
            files.make_dirs(f"{self.root}/{folder}")
        self.ownership.take()
        self.is_clean = not files.exists(self._abort)
        self._abort_found = None if self.is_clean else files.read(self._abort)
        if not self.is_clean and files.exists(self._note_path):
            self.failed_flush = decode_flush_note(files.read(self._note_path))
        self.found_mark = trusted_mark(self._read_mark(is_repair=is_repair), has_abort=not self.is_clean)
        self.mark = self.found_mark or GantryMark()
        self.deleted.load(is_ours=self.is_ours)

    @property
    def is_ours(self) -> bool:
        """Say whether the last one to run on the store was us, so that the checkpoint is ours too (see above)."""
        mark = self.found_mark
        if mark is None:
            return False
        if self.is_clean or mark.clean_stop_offset is None:
            return self.is_clean == (mark.clean_stop_offset is not None)
        return mark.abort_process_id is not None and self._abort_found == _abort_content(mark.abort_process_id)

    def proven_offset(self) -> ConfirmOffset:
        """Return the physical offset before which the disk has the log and all that is derived from it.

        The checkpoint's confirm offset counts only if the checkpoint is ours.
        """
        if self.found_mark is None or not self.is_ours:
            return ConfirmOffset(0, is_proven=False)
        confirmed, stop = (
            decode_confirm_offset(self._checkpoint(), log_end=self._log_end()),
            self.found_mark.clean_stop_offset,
        )
        return confirmed if stop is None else confirmed._replace(offset=min(confirmed.offset, stop))

    def _log_end(self) -> int:
        """Return where the last file of the CommitLog ends."""
        listed = self._files.list_files(f"{self.root}/{COMMIT_LOG_DIR}")
        return max((start + size for name, size in listed if (start := parse_file_name(name)) is not None), default=0)

    def _read_mark(self, *, is_repair: bool) -> GantryMark | None:
        try:
            return GantryMark.load(self.files, self.root)
        except NewerFormatError as error:
            raise StoreFormatError(str(error)) from None
        except BrokenFileError as error:
            if not is_repair:
                raise StoreFormatError(
                    f"{error}. This file is the store's mark: it says which records carry a checksum and where the log "
                    f"ended. Nothing was changed. Run `gantry store repair {self.root}`, which checks the whole store "
                    "and writes a new mark (docs/formats/config.md), and start again"
                ) from None
            log.warning(
                "the mark is broken; the whole store is checked without it", path=error.path, reason=error.reason
            )
            self._has_broken_mark = True
            return None

    def read_checkpoint(self) -> Checkpoint:
        """Return what the checkpoint says; nothing where it is not there."""
        return decode_checkpoint(self._checkpoint())

    def _checkpoint(self) -> bytes:
        return self._files.read(self.checkpoint_path) if self._files.exists(self.checkpoint_path) else b""

    def begin(self, process_id: int) -> None:
        """Say that somebody runs on the store, before anything in it is changed; the second call does nothing."""
        if self._has_begun:
            return
        self._has_begun = True
        self._process_id = process_id
        if self.is_clean:
            if self.is_ours:
                self._dump(replace(self.mark, abort_process_id=process_id))
            elif self.found_mark is not None:
                # Beside our abort file it would say that we have crashed, and that RocketMQ's records are damaged.
                self._files.remove(self._mark_path)
                self._files.sync_dir(f"{self.root}/{CONFIG_DIR}")
            self._write_abort()
        if not self._is_note_usable():
            self._files.write(self._note_path, encode_flush_note(None), durable=True)
        # The folders' own names, all the way up: what is in a folder is lost with its name.
        self._files.sync_dir(self.root)
        folder = self.root
        while "/" in folder.rstrip("/"):
            folder = folder.rstrip("/").rpartition("/")[0] or "/"
            try:
                self._files.sync_dir(folder)
            except PermissionError:
                return  # Where we may not look we have made nothing.

    def _is_note_usable(self) -> bool:
        path = self._note_path
        try:
            return self._files.exists(path) and len(self._files.read(path)) == FLUSH_NOTE_BYTES
        except OSError as error:
            if error.errno != EIO:
                raise
            # After a crash this would have ended the start. After an orderly stop it says nothing.
            log.warning("the disk can't read the note of a failed flush; it is made again", path=path)
            return False

    def mark_opened(self, report: RecoveryReport, derived: DerivedState, record_checksum: bool) -> None:
        """Write the mark, and what recovery means for deletions, before the first record is appended."""
        log_end = report.log_end_offset
        self.deleted.settle(report.log_min_offset, log_end)
        opened = opened_mark(self.found_mark, log_end=log_end, record_checksum=record_checksum)
        self.mark = replace(opened, opened_offset=log_end, opened_derived=derived)
        if self._has_broken_mark:
            # A copy: until the new mark is there, a start has to find the broken one and refuse it.
            self._files.write(self._mark_path + BROKEN_SUFFIX, self._files.read(self._mark_path))
        self._dump(self.mark)
        if not self.is_clean:
            self._write_abort()
        # Only now is what the last broker noted of no use any more.
        self._note = self._files.open(self._note_path)
        self._write_note(None)

    def note_failed_flush(self, failed: FailedFlush) -> None:
        """Leave word for the next start why the disk first refused to flush; as far as that disk allows."""
        if self._is_noted:
            return
        self._is_noted = True
        try:
            self._write_note(failed)
        except OSError as error:
            log.warning("the failed flush can't be noted", path=self._note_path, reason=os_reason(error))

    def _write_note(self, failed: FailedFlush | None) -> None:
        content = encode_flush_note(failed)
        if self._note is not None and self._note.read(0, FLUSH_NOTE_BYTES) != content:
            self.ownership.require()
            self._note.write(0, [content])
            self._note.sync()

    def end(self, log_end: int, derived: DerivedState) -> bool:
        """Say that the store was stopped in order, after everything in it is on the disk; return whether that went."""
        self.mark = self.mark.stopped(log_end, derived)
        try:
            self._dump(replace(self.mark, abort_process_id=self._process_id))
            self._files.remove(self._abort)
            self._files.sync_dir(self.root)
            self._dump(self.mark)
        except OSError as error:
            log.warning("the stop can't be noted in full; the next start may recover", reason=os_reason(error))
            return False
        return True

    def _dump(self, mark: GantryMark) -> None:
        mark.dump(self._files, self.root)

    def _write_abort(self) -> None:
        write_atomically(self._files, self._abort, _abort_content(self._process_id))

    def close(self) -> None:
        """Give the locks back."""
        if self._note is not None:
            self._note.close()
            self._note = None
        self.ownership.release()


def _abort_content(process_id: int) -> bytes:
    return str(process_id).encode() if process_id else b""
