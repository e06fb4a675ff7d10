"""Watches for the removal of two files of a running store: the lock file and the current CommitLog file.

A broker of Apache RocketMQ could start on a store without a lock file, so the watch creates it again (ownership.py).
The bytes of a file without a name are gone when the process ends, so the log continues in a new file. Until then, the
messages of the removed file can still be read.
"""

from typing import Final

from gantry.runtime.telemetry import logger
from services.broker.store.errors import FileNotReadyError, StoreFullError, StoreWriteError
from services.broker.store.folder.ownership import Ownership
from services.broker.store.log.commitlog import CommitLog

CHECK_INTERVAL_MS: Final = 1000

log = logger("broker.store")


class StoreWatch:
    """Checks now and then whether the files still have their names.

    Concurrency: the store's thread.
    """

    def __init__(self, ownership: Ownership, commit_log: CommitLog) -> None:
        self._ownership = ownership
        self._log = commit_log
        self._checked_at_ms = 0

    def tick(self, monotonic_ms: int) -> None:
        """Check the files if a check is due."""
        if monotonic_ms - self._checked_at_ms >= CHECK_INTERVAL_MS:
            self._checked_at_ms = monotonic_ms
            self.check()

    def check(self) -> None:
        """Check the files now, and call `maintain_files` of the log."""
        if not self._ownership.is_still_owned():
            return
        self._log.maintain_files()
        try:
            path = self._log.leave_missing_file()
        except FileNotReadyError:
            return  # The file will exist at the next check.
        except (StoreFullError, StoreWriteError) as error:
            log.warning("somebody took the CommitLog's file away, and there is no other", reason=str(error))
        else:
            if path is not None:
                log.error("somebody took the CommitLog's file away; its messages are lost with the stop", path=path)
