"""Messages that the index lacks, because one of its files is gone, cut, too long, or can't be read.

Entries follow the log, and the head of each file names its first and its last message. So the record that follows the
last one of a file shows whether something is missing: if it has a key and lies before the next file's first one, it
belongs into a file that is not there. Only a few records at each border are looked at.

What is missing is built again from the log. The start waits for that, so it reads REBUILT_BYTES_MAX at most. If more
is missing nothing is built, and the log tells a person to run `gantry store repair`.
"""

from typing import Final

from gantry.model.record import RecordHead
from gantry.runtime.telemetry import logger
from services.broker.store.commitlog import CommitLog
from services.broker.store.entry import is_indexed
from services.broker.store.indexservice import IndexService
from services.broker.store.storefolder import StoreFolder

REBUILT_BYTES_MAX: Final = 1 << 30
"""So much of the log is read at a start to build a part of the index again: about 20 s for messages of 1 KiB."""
_LOOKED_AT_MAX: Final = 64
_TOO_MUCH: Final = (
    "messages are not found by their keys: files of the index are missing or broken, and to build them again takes too "
    "long for a start; stop the broker and run `gantry store repair` on its store"
)

log = logger("broker.store")


class IndexGap:
    """Finds what is missing.

    Args:
        folder: Says how far the index reached at the last orderly stop, and which topics were deleted.

    Attributes:
        left: The range in which messages are missing that the start does not build again; None where there is none.
    """

    def __init__(self, commit_log: CommitLog, index: IndexService, folder: StoreFolder) -> None:
        self._log = commit_log
        self._index = index
        self._deleted = folder.deleted
        derived = folder.mark.clean_stop_derived if folder.is_clean else None
        self.left: tuple[int, int] | None = None
        self._promised_end = derived.index_end if derived is not None else 0

    def rebuild_from(self, start: int, *, is_mended: bool) -> int:
        """Return where the scan of a start has to begin so that nothing is missing in the index.

        Files that can't be read, or are broken otherwise, are given up; they are removed if nothing is missing then.

        Args:
            start: Where it would begin otherwise; everything from there on is indexed again.
            is_mended: The index is mended whatever is found here.

        Returns:
            `start` if nothing is missing, or if too much is: then that is logged.
        """
        index, begin = self._index, start
        index.check(begin, is_mended=is_mended)
        while (missing := self.first_missing(begin)) is not None:
            found = {"start": missing, "bytes": start - missing, "broken": dict(index.broken)}
            if start - missing > REBUILT_BYTES_MAX:
                self.left = missing, start
                log.error(_TOO_MUCH, **found)
                return start
            log.warning("files of the index are missing or broken; the start builds them again", **found)
            assert missing < begin, f"a gap before {begin} can't begin at {missing}"
            begin = missing
            index.check(begin, is_mended=True)
        index.remove_broken()
        return begin

    def is_missing_behind(self, start: int) -> bool:
        """Say whether the index lacks messages from an offset on, before the last message that it has."""
        end = self._index.last_update[1]
        missing = self.first_missing(end) if start < end else None
        return missing is not None and missing >= start

    def first_missing(self, until: int) -> int | None:
        """Return an offset before `until` from which on messages are missing; None where none seems to be."""
        reached, is_known, name = self._log.min_offset, False, ""
        for file in self._index:
            if file.count == 1:
                continue
            if max(file.begin_offset, reached) >= until:
                break
            # If a file begins before the log does, the log has no messages of the files before it.
            is_broken = file.begin_offset >= self._log.min_offset and self._index.has_broken(name, file.name)
            if is_broken or self._is_missing(reached, file.begin_offset, is_known):
                return reached
            name = file.name
            if file.end_offset >= reached:
                reached, is_known = file.end_offset, True
        is_promised = reached < until and (reached < self._promised_end or self._index.has_broken(name, None))
        return reached if is_promised or self._is_missing(reached, until, is_known) else None

    def _is_missing(self, start: int, end: int, is_first_known: bool) -> bool:
        """Say whether one of the first records in a range belongs into the index.

        Args:
            start: Offset of a record, or of the log's beginning.
            end: The range's end.
            is_first_known: The record at its start is in the index.
        """
        position = start
        for _ in range(_LOOKED_AT_MAX):
            file = self._log.files.find(position) or self._log.files.following(position)
            position = max(position, file.start) if file is not None else end
            if file is None or position >= end:
                return False
            head = self._log.find_head(position)
            if head is None:
                position = file.end  # A filler, or damage, behind which one would have to search.
                continue
            if self._belongs_into(head) and not (is_first_known and position == start):
                return True
            position += head.size_bytes
        return False

    def _belongs_into(self, head: RecordHead) -> bool:
        return is_indexed(head) and not self._deleted.covers(head.topic, head.physical_offset, head.stored_at_ms)
