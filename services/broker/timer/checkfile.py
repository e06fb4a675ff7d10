"""The check point of the timer: config/timercheck, written in place once a second while something happens.

Durability: a file system writes a sector as a whole, and each of the file's two parts lies in one sector.
"""

from gantry.model.errors import CorruptRecordError
from gantry.runtime.files import FileSystem
from gantry.storeformat.timerfiles import (
    CHECK_FILE_BYTES,
    PROGRESS,
    PROGRESS_AT,
    SlotProgress,
    TimerCheck,
    decode_timer_check,
    encode_slot_progress,
    encode_timer_check,
    find_slot_progress,
)


class CheckFile:
    """The file of the check point."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path

    def read(self) -> tuple[TimerCheck, SlotProgress | None] | None:
        """Return the content, or None if there is none: no file, or one that a crash cut while it was created."""
        if not self._files.exists(self._path):
            return None
        data = self._files.read(self._path)
        try:
            check = decode_timer_check(data)
        except CorruptRecordError:
            return None
        if not any(check):
            return None
        return check, find_slot_progress(data) if len(data) == CHECK_FILE_BYTES else None

    def write(self, check: TimerCheck, progress: SlotProgress | None) -> None:
        """Replace the content. Durable on return. Raises OSError."""
        is_new = not self._files.exists(self._path) or self._files.size_bytes(self._path) != CHECK_FILE_BYTES
        if is_new:
            if self._files.exists(self._path):
                self._files.remove(self._path)
            self._files.make_dirs(self._path.rpartition("/")[0])
            file = self._files.create(self._path, CHECK_FILE_BYTES)
        else:
            file = self._files.open(self._path)
        try:
            file.write(0, [encode_timer_check(check)])
            file.write(PROGRESS_AT, [bytes(PROGRESS.size) if progress is None else encode_slot_progress(progress)])
            file.sync()
        finally:
            file.close()
        if is_new:
            self._files.sync_dir(self._path.rpartition("/")[0])
