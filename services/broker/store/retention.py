"""Retention: which files go, and when the disk is too full to take more.

Files of the CommitLog go from the oldest on, never the last one, and only what is on the disk and dispatched:

- expired ones (last written so many hours ago), during the hours of `delete_when` or when the disk is fuller than
  `disk_max_used_space_ratio`;
- any, when it is fuller than `disk_space_clean_forcibly_ratio`.

Only what the checkpoint covers goes: units and index entries that a crash tears are built again from the log, so the
log must not go before they are on the disk.

Above `disk_space_warning_level_ratio` nothing is stored any more, until the disk is below the ratio before. The log
decides: files of ConsumeQueues and index go when all their messages are gone.

A file is forgotten first, then a worker removes its name and unmaps it. If somebody still reads it, it stays mapped
("hanged"), and its space taken, until that ends; closing it is tried again now and then.
"""

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime

from gantry.runtime.clock import Clock
from gantry.runtime.files import FileSystem
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import Worker
from services.broker.store.commitlog import CommitLog
from services.broker.store.consumequeuestore import ConsumeQueueStore
from services.broker.store.indexservice import IndexService
from services.broker.store.mappedfile import MappedFile, remove_file
from services.broker.store.results import Expiry
from services.broker.store.settings import StoreSettings

_HOUR_MS = 3_600_000
ROUNDS_BY_HAND = 20

# How long a look at the files' ages serves those who ask when a file goes.
_AGES_MS = 10_000
# The last of year 9999: what would be kept for longer is kept for ever.
_MOMENT_MS_MAX = 253_402_300_799_999

log = logger("broker.store.retention")


class Retention:
    """Removes what is no longer kept.

    Concurrency: the store's thread; files are removed by the worker that syncs derived files, so that no file is
    closed while it is synced.

    Attributes:
        is_disk_full: Above the warning level; nothing is stored.
        disk_percent: As last looked at.
    """

    def __init__(
        self,
        files: FileSystem,
        settings: StoreSettings,
        clock: Clock,
        worker: Worker,
        *,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService | None,
    ) -> None:
        self._files = files
        self._settings = settings
        self._clock = clock
        self._worker = worker
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._hours = settings.delete_hours()
        self._ran_at_ms: int | None = None
        self._retried_at_ms = 0
        self._rounds_by_hand = 0
        self._removal: Future[list[MappedFile]] | None = None
        self._hanged: list[MappedFile] = []
        self._kept_until: dict[int, int] = {}
        self._expiries: dict[int, Expiry | None] = {}
        self._ages: tuple[int, MappedFile] | None = None
        self.is_disk_full = False
        self.disk_percent = 0

    @property
    def hanged_files(self) -> int:
        """Return how many removed files are still mapped because somebody reads them."""
        return len(self._hanged)

    def look_at_disk(self) -> int:
        """Measure the disk and decide whether it is too full; return the percentage."""
        settings = self._settings
        self.disk_percent = self._files.disk_usage(settings.root_dir).percent
        was_full = self.is_disk_full
        if self.disk_percent > settings.disk_space_warning_level_ratio:
            self.is_disk_full = True
        elif self.disk_percent <= settings.disk_space_clean_forcibly_ratio:
            self.is_disk_full = False
        if self.is_disk_full != was_full:
            log.warning("disk full" if self.is_disk_full else "disk has room again", percent=self.disk_percent)
        return self.disk_percent

    def tick(self, monotonic_ms: int, durable_offset: int) -> None:
        """Run if it is time to; `durable_offset` as for `run`."""
        self._collect()
        if self._hanged and monotonic_ms - self._retried_at_ms >= self._settings.redelete_hanged_file_interval_ms:
            self._retried_at_ms = monotonic_ms
            self._hanged = [file for file in self._hanged if not file.close()]
        if self._ran_at_ms is not None and monotonic_ms - self._ran_at_ms < self._settings.clean_resource_interval_ms:
            return
        self._ran_at_ms = monotonic_ms
        self.run(durable_offset)

    def run_by_hand(self, durable_offset: int) -> int:
        """Remove expired files whatever the hour and the disk, now and in the next rounds, as RocketMQ does."""
        self._rounds_by_hand = ROUNDS_BY_HAND
        return self.run(durable_offset)

    def run(self, durable_offset: int) -> int:
        """Look at the disk and remove what is due now; return how many files of the CommitLog went.

        Args:
            durable_offset: What is derived from the log before this is on the disk; nothing from here on goes.
        """
        settings = self._settings
        percent = self.look_at_disk()
        by_force = percent > settings.disk_space_clean_forcibly_ratio and settings.clean_file_forcibly_enable
        hour = _local(self._clock.now_ms()).hour
        is_by_hand = self._rounds_by_hand > 0
        self._rounds_by_hand = max(0, self._rounds_by_hand - 1)
        if not (by_force or is_by_hand or percent > settings.disk_max_used_space_ratio or hour in self._hours):
            return 0
        limit = min(self._log.flushed_offset, durable_offset, self._expired_end(by_force=by_force))
        dropped = self._log.files.drop_before(limit, count_max=settings.delete_file_batch_max)
        if not dropped:
            return 0
        min_offset = self._log.min_offset
        log.info("files removed", count=len(dropped), min_offset=min_offset, disk_percent=percent)
        derived = self._queues.expire(min_offset)
        if self._index is not None:
            derived += self._index.expire(min_offset)
        self._collect(wait=True)
        # The log first: a file of it that came back after a crash without its units would look like damage.
        self._removal = self._worker.submit(lambda: self._remove(dropped) + self._remove(derived))
        return len(dropped)

    def expires_at(self, physical_offset: int) -> Expiry | None:
        """Return when the file of a record goes by age and hour, at the earliest.

        Returns:
            None where it never goes by these, where the file is not there, and where its age is not known. Files'
            ages are looked at every 10 s at most.
        """
        files = self._log.files
        file, last, now_ms = files.find(physical_offset), files.last, self._clock.monotonic_ms()
        if file is None or last is None:
            return None
        if self._ages is None or now_ms - self._ages[0] >= _AGES_MS or self._ages[1] is not last:
            self._look_at_ages()
            self._ages = now_ms, last
        if file.start not in self._expiries:
            kept_until_ms = self._kept_until.get(file.start)
            at_ms = None if kept_until_ms is None else _next_moment(kept_until_ms, self._hours)
            self._expiries[file.start] = None if at_ms is None else Expiry(at_ms, file is last)
        return self._expiries[file.start]

    def _look_at_ages(self) -> None:
        """Note for every file until when its age keeps it; a file goes only with all before it."""
        now_ms = self._clock.now_ms()
        reserved_ms = self._settings.file_reserved_time_hours * _HOUR_MS
        self._kept_until.clear()
        self._expiries.clear()
        # What is old enough already goes in the next of its hours, the earliest of which is this one.
        kept_until_ms = now_ms
        for file in self._log.files:
            try:
                modified_ms = now_ms if file is self._log.files.last else self._files.modified_ms(file.path)
            except OSError:
                return  # Somebody took the file away: nothing is known of it, nor of those behind it.
            kept_until_ms = max(kept_until_ms, modified_ms + reserved_ms)
            self._kept_until[file.start] = kept_until_ms

    def _expired_end(self, *, by_force: bool) -> int:
        """Return where the files that may go end: from the oldest to the first that is still kept."""
        end = self._log.min_offset
        oldest_ms = self._clock.now_ms() - self._settings.file_reserved_time_hours * _HOUR_MS
        for file in self._log.files:
            if not by_force and self._files.modified_ms(file.path) > oldest_ms:
                break
            end = file.end
        return end

    def _remove(self, gone: Sequence[MappedFile]) -> list[MappedFile]:
        """Remove names and unmap; return what is still read. Runs in the worker."""
        for file in gone:
            remove_file(self._files, file.path)
        for folder in {file.path.rpartition("/")[0] for file in gone}:
            if self._files.is_dir(folder):
                self._files.sync_dir(folder)
        return [file for file in gone if not file.close()]

    def _collect(self, *, wait: bool = False) -> None:
        removal = self._removal
        if removal is None or not (wait or removal.done()):
            return
        self._removal = None
        try:
            self._hanged += removal.result()
        except OSError as error:
            # The names come back with the next start, which removes them again when their time has come.
            log.warning("files can't be removed", reason=str(error))

    def finish(self) -> None:
        """Wait for what is being removed."""
        self._collect(wait=True)


def _local(at_ms: int) -> datetime:
    """Return a moment in local time, as people mean it when they name hours."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).astimezone()


def _next_moment(at_ms: int, hours: Collection[int]) -> int | None:
    """Return the first moment from one on that lies in one of these hours of the day; None where there is none."""
    # Two days, since clocks that are put forward leave an hour out.
    for _ in range(49):
        if at_ms > _MOMENT_MS_MAX:
            return None
        local = _local(at_ms)
        if local.hour in hours:
            return at_ms
        at_ms += _HOUR_MS - (local.minute * 60 + local.second) * 1000 - at_ms % 1000
    return None
