"""Finds messages that the index lacks, because one of its files is missing, cut, too long, or unreadable.

Entries follow the log, and the header of each file names its first and its last message. The record after a file's last
message therefore shows whether something is missing: if it has a key and lies before the next file's first message, it
belongs to a file that is missing. Only a few records at each border are checked.

The start rebuilds the missing part from the log. Since the start waits for that, it reads REBUILT_BYTES_MAX at most. If
more is missing, nothing is rebuilt, and a log message tells the operator to run `gantry store repair`.
"""

from typing import Final

from gantry.model.record import RecordHead
from gantry.runtime.telemetry import logger
from services.broker.store.dispatchrequest import is_indexed
from services.broker.store.folder.storefolder import StoreFolder
from services.broker.store.index.indexservice import IndexService
from services.broker.store.log.commitlog import CommitLog

REBUILT_BYTES_MAX: Final = 1 << 30
"""Limit for the bytes of the log that a start reads to rebuild the index: about 20 s for messages of 1 KiB."""
_LOOKED_AT_MAX: Final = 64
_TOO_MUCH: Final = (
    "messages are not found by their keys: files of the index are missing or broken, and to build them again takes too "
    "long for a start; stop the broker and run `gantry store repair` on its store"
)

log = logger("broker.store")


class IndexGap:
    """Finds the missing part.

    Args:
        folder: Says how far the index reached at the last orderly stop, and which topics were deleted.

    Attributes:
        left: The range with missing messages that the start does not rebuild; None if there is none.
    """

    def __init__(self, commit_log: CommitLog, index: IndexService, folder: StoreFolder) -> None:
        self._log = commit_log
        self._index = index
        self._deleted = folder.deleted
        derived = folder.manifest.clean_stop_derived if folder.is_clean else None
        self.left: tuple[int, int] | None = None
        self._promised_end = derived.index_end if derived is not None else 0

    def rebuild_from(self, start: int, *, is_repaired: bool) -> int:
        """Return the offset at which the scan of a start must begin so that the index lacks nothing afterwards.

        Unreadable and otherwise broken files are given up; they are removed when nothing is missing.

        Args:
            start: The offset at which the scan would begin otherwise; everything from there on is indexed again.
            is_repaired: Whether the index is repaired regardless of the result.

        Returns:
            `start` if nothing is missing, or if too much is missing, which is logged.
        """
        index, begin = self._index, start
        index.check(begin, is_repaired=is_repaired)
        while (missing := self.first_missing(begin)) is not None:
            found = {"start": missing, "bytes": start - missing, "broken": dict(index.broken)}
            if start - missing > REBUILT_BYTES_MAX:
                self.left = missing, start
                log.error(_TOO_MUCH, **found)
                return start
            log.warning("files of the index are missing or broken; the start builds them again", **found)
            assert missing < begin, f"a gap before {begin} can't begin at {missing}"
            begin = missing
            index.check(begin, is_repaired=True)
        index.remove_broken()
        return begin

    def is_missing_behind(self, start: int) -> bool:
        """Return whether the index lacks messages from an offset on, before the last message that it has."""
        end = self._index.last_update[1]
        missing = self.first_missing(end) if start < end else None
        return missing is not None and missing >= start

    def first_missing(self, until: int) -> int | None:
        """Return the offset before `until` from which on messages are missing; None if none seem to be missing."""
        reached, is_known, name = self._log.min_offset, False, ""
        for file in self._index:
            if file.count == 1:
                continue
            if max(file.begin_offset, reached) >= until:
                break
            # If a file begins before the log does, the log has no messages of the files before that file.
            is_broken = file.begin_offset >= self._log.min_offset and self._index.has_broken(name, file.name)
            if is_broken or self._is_missing(reached, file.begin_offset, is_known):
                return reached
            name = file.name
            if file.end_offset >= reached:
                reached, is_known = file.end_offset, True
        is_promised = reached < until and (reached < self._promised_end or self._index.has_broken(name, None))
        return reached if is_promised or self._is_missing(reached, until, is_known) else None

    def _is_missing(self, start: int, end: int, is_first_known: bool) -> bool:
        """Return whether one of the first records in a range should be in the index.

        Args:
            start: The offset of a record, or of the log's beginning.
            end: The end of the range.
            is_first_known: Whether the record at `start` is in the index.
        """
        position = start
        for _ in range(_LOOKED_AT_MAX):
            file = self._log.files.find(position) or self._log.files.following(position)
            position = max(position, file.start) if file is not None else end
            if file is None or position >= end:
                return False
            head = self._log.find_head(position)
            if head is None:
                position = file.end  # Filler, or damage; to continue after damage would take a search.
                continue
            if self._is_indexable(head) and not (is_first_known and position == start):
                return True
            position += head.size_bytes
        return False

    def _is_indexable(self, head: RecordHead) -> bool:
        return is_indexed(head) and not self._deleted.covers(head.topic, head.physical_offset, head.stored_at_ms)
