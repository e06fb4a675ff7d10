"""The timer log: one unit for each message that waits, in the order in which the messages came.

Units are appended to a buffer and written with one call (`write_out`). A check point makes them durable. A file is
created with holes, so that it takes no space before it is used; writing into a hole reports a full disk as an error.
After a crash everything behind the last valid unit is overwritten with zeros: otherwise a later crash could make old
bytes look like units that follow new ones.

Concurrency: the loop's thread; `sync` runs in a thread, while the loop's thread appends.
"""

from gantry.runtime.errors import StartupError
from gantry.runtime.files import File, FileSystem
from gantry.storeformat.layout import file_name, parse_file_name
from gantry.storeformat.timerfiles import (
    BLANK_BYTES,
    UNIT_BYTES,
    TimerUnit,
    encode_timer_blank,
    encode_timer_unit,
    find_timer_unit,
)

OPEN_FILES_MAX = 4
# Units of one slot often stand close together. One read gets those before or after the wanted one, too.
_WINDOW_BYTES = 128 * UNIT_BYTES
_ZEROS_BYTES = 1 << 16


class UnitLog:
    """The files of the timer log.

    Args:
        files: The file system.
        folder: The folder of the files.
        file_bytes: The size of a file.

    Attributes:
        start: The first position that a file holds.
        end: The position of the next unit.
    """

    def __init__(self, files: FileSystem, folder: str, file_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._file_bytes = file_bytes
        self._starts: list[int] = []
        self._open: dict[int, File] = {}
        self._unsynced: set[int] = set()
        self._folder_is_dirty = False
        self._buffer = bytearray()
        self._window: tuple[int, bytes] = (0, b"")
        self.start = 0
        self.end = 0

    def load(self) -> None:
        """Find the files; `end` is then the end of the last one. Raises StartupError."""
        listed = {
            name: size for name, size in self._files.list_files(self._folder) if parse_file_name(name) is not None
        }
        starts = sorted(start for name in listed if (start := parse_file_name(name)) is not None)
        while starts and listed[file_name(starts[-1])] == 0:
            # A crash while the file was created.
            self._files.remove(self._path(starts.pop()))
            self._folder_is_dirty = True
        for start in starts:
            size = listed[file_name(start)]
            if size != self._file_bytes or start % self._file_bytes:
                raise StartupError(
                    f"{self._path(start)} has {size} bytes; files of {self._file_bytes} bytes are expected "
                    "(mapped_file_size_timer_log)"
                )
        self._starts = starts
        self.start = starts[0] if starts else 0
        self.end = starts[-1] + self._file_bytes if starts else 0

    @property
    def files_count(self) -> int:
        """The number of files."""
        return len(self._starts)

    def append(self, unit: TimerUnit) -> int:
        """Append a unit to the buffer and return its position. Raises OSError: nothing was appended."""
        left = self._file_bytes - self.end % self._file_bytes
        if not self._starts or self.end >= self._starts[-1] + self._file_bytes:
            self._add_file()
        elif left < UNIT_BYTES + BLANK_BYTES:
            self._end_file(left)
        position = self.end
        self._buffer += encode_timer_unit(unit)
        self.end += UNIT_BYTES
        return position

    def write_out(self) -> None:
        """Write the buffer. Raises OSError; the buffer stays, and the next call writes it."""
        if self._buffer:
            start = self.end - len(self._buffer)
            self._write(start, bytes(self._buffer))
            self._buffer.clear()

    def find(self, position: int) -> TimerUnit | None:
        """Return the unit at a position, or None if there is none. Raises OSError."""
        written_end = self.end - len(self._buffer)
        if written_end <= position < self.end:
            return find_timer_unit(self._buffer, position - written_end)
        start, data = self._window
        if not start <= position <= start + len(data) - UNIT_BYTES:
            file_start = position - position % self._file_bytes
            if file_start not in self._starts or position + UNIT_BYTES > min(
                written_end, file_start + self._file_bytes
            ):
                return None
            # Lists are walked backward to find their units, and then forward to deliver them.
            is_forward = position > start
            stop = min(written_end, file_start + self._file_bytes, position + _WINDOW_BYTES)
            start = position if is_forward else max(file_start, position + UNIT_BYTES - _WINDOW_BYTES)
            stop = stop if is_forward else position + UNIT_BYTES
            data = self._file(file_start).read(start - file_start, stop - start)
            self._window = start, data
        return find_timer_unit(data, position - start)

    def next_position(self, position: int) -> int | None:
        """Return the position after a unit's place that may hold the next unit: perhaps in the next file.

        None if the place is the last one of the last file.
        """
        file_start = position - position % self._file_bytes
        if self._file_bytes - (position - file_start) >= UNIT_BYTES + BLANK_BYTES:
            return position
        following = file_start + self._file_bytes
        return following if following in self._starts else None

    def cut(self, end: int) -> None:
        """Make a position the end: remove all later files, and overwrite what follows in its file. Raises OSError."""
        self._window = (0, b"")
        for start in [start for start in self._starts if start > end or (start == end and start != self._starts[0])]:
            self._close_file(start)
            self._files.remove(self._path(start))
            self._starts.remove(start)
            self._folder_is_dirty = True
        self.end = end
        file_start = end - end % self._file_bytes
        if file_start not in self._starts:
            return
        file = self._file(file_start)
        stop = file.data_end(end - file_start)
        for at in range(end - file_start, min(stop, self._file_bytes), _ZEROS_BYTES):
            file.write(at, [bytes(min(_ZEROS_BYTES, self._file_bytes - at))])
        self._unsynced.add(file_start)

    def drop_before(self, position: int) -> int:
        """Remove the files that end at or before a position, but not the last one. Return their number."""
        dropped = 0
        while len(self._starts) > 1 and self._starts[0] + self._file_bytes <= position:
            start = self._starts.pop(0)
            self._close_file(start)
            self._unsynced.discard(start)
            self._files.remove(self._path(start))
            self.start = self._starts[0]
            dropped += 1
        return dropped

    def take_unsynced(self) -> tuple[list[File], bool]:
        """Return the files that `sync` has to sync, and whether the folder has new names."""
        taken = [self._file(start) for start in sorted(self._unsynced)], self._folder_is_dirty
        self._unsynced.clear()
        self._folder_is_dirty = False
        return taken

    def sync(self, unsynced: tuple[list[File], bool]) -> None:
        """Make the files durable. Raises OSError."""
        files, is_dirty = unsynced
        for file in files:
            file.sync()
        if is_dirty:
            self._files.sync_dir(self._folder)

    def close(self) -> None:
        """Close all files."""
        for start in list(self._open):
            self._close_file(start)

    def _add_file(self) -> None:
        if not self._starts:
            self._files.make_dirs(self._folder)
            self._files.sync_dir(self._folder.rpartition("/")[0])
        self._open[self.end] = self._files.create(self._path(self.end), self._file_bytes, sparse=True)
        self._starts.append(self.end)
        self._folder_is_dirty = True

    def _end_file(self, left: int) -> None:
        self.write_out()
        assert left >= BLANK_BYTES, f"{left} bytes are left in the timer log's file that ends with {self.end}"
        self._write(self.end, encode_timer_blank(left))
        following = self.end + left
        before, self.end = self.end, following
        try:
            self._add_file()
        except OSError:
            self.end = before
            raise

    def _write(self, position: int, data: bytes) -> None:
        file_start = position - position % self._file_bytes
        self._unsynced.add(file_start)
        self._file(file_start).write(position - file_start, [data])
        self._window = (0, b"")

    def _file(self, start: int) -> File:
        file = self._open.get(start)
        if file is None:
            file = self._files.open(self._path(start))
            for other in [other for other in self._open if other not in self._starts[-2:]][OPEN_FILES_MAX - 3 :]:
                # A check point may be syncing one of the two newest files. The others are only read.
                if other not in self._unsynced:
                    self._close_file(other)
            self._open[start] = file
        return file

    def _close_file(self, start: int) -> None:
        file = self._open.pop(start, None)
        if file is not None:
            file.close()

    def _path(self, start: int) -> str:
        return f"{self._folder}/{file_name(start)}"
