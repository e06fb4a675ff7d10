"""Retention: removes old files, and decides when the disk is too full to take more messages.

Retention removes files of the CommitLog from the oldest on, never the last one, and only data that is on the disk and
dispatched:

- expired files (last written more than the reserved hours ago), during the hours of `delete_when` or when the disk is
  fuller than `disk_max_used_space_ratio`;
- other files, when the disk is fuller than `disk_space_clean_forcibly_ratio`, if that helps. Retention counts the bytes
  that must go, and removes the oldest files until it is enough. If all files were not enough, other programs fill the
  disk, and the messages stay.

Retention removes only data that the checkpoint covers. After a crash, torn units and index entries are rebuilt from the
log, so the log must not be removed before they are on the disk.

Above `disk_space_warning_level_ratio` the store takes no messages until the disk is at or below
`disk_space_clean_forcibly_ratio`. The log decides about other files: a file of a ConsumeQueue or of the index is
removed when all its messages are gone. A tick checks a limited number of queues. If a queue is read before its turn,
`ConsumeQueueStore.find` corrects its min offset.

The store drops a file first; then a worker removes it (removal.py).
"""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime

from gantry.runtime.clock import Clock
from gantry.runtime.errors import describe_os_error
from gantry.runtime.files import DiskUsage, FileSystem
from gantry.runtime.telemetry import logger
from services.broker.store.files.mappedfile import MappedFile
from services.broker.store.files.removal import FileRemover
from services.broker.store.index.indexservice import IndexService
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.queues.consumequeue import ConsumeQueue
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from services.broker.store.queues.queuefile import QueueFile
from services.broker.store.results import Expiry
from services.broker.store.settings import StoreSettings

_HOUR_MS = 3_600_000
ROUNDS_BY_HAND = 20

QUEUES_PER_TICK_MAX = 128
"""Limit for the queues that a tick checks, at 30 µs each: a tick blocks the loop for 4 ms, 10,000 queues take 8 s."""

# `expires_at` uses the files' ages for this long before it reads them again.
_AGES_MS = 10_000
# The end of year 9999: a file with a later expiry is kept forever.
_MOMENT_MS_MAX = 253_402_300_799_999

log = logger("broker.store.retention")


class Retention:
    """Removes data that is no longer kept.

    Concurrency: the store's thread.

    Attributes:
        is_disk_full: Whether the disk is above the warning level; then nothing is stored.
        disk_percent: The result of the last measurement.
        expired_queue_files: Number of files of queues that were removed since the start.
    """

    def __init__(
        self,
        files: FileSystem,
        settings: StoreSettings,
        clock: Clock,
        remover: FileRemover,
        *,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService | None,
    ) -> None:
        self._files = files
        self._settings = settings
        self._clock = clock
        self._remover = remover
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._hours = settings.delete_hours()
        self._ran_at_ms: int | None = None
        self._retried_at_ms = 0
        self._rounds_by_hand = 0
        self._to_expire: Iterator[ConsumeQueue] | None = None
        self._expired_to = 0
        self._kept_until: dict[int, int] = {}
        self._expiries: dict[int, Expiry | None] = {}
        self._ages: tuple[int, MappedFile] | None = None
        self.is_disk_full = False
        self.disk_percent = 0
        self.expired_queue_files = 0
        self._usage = DiskUsage(used=0, usable=0)
        self._insufficient_reason = ""
        self._unknown_age = ""

    @property
    def settled_offset(self) -> int:
        """Return the log's first offset if no queue has a file to be removed, or -1 if one may have."""
        min_offset = self._queues.log_min_offset
        return min_offset if self._to_expire is None and self._expired_to == min_offset else -1

    @property
    def refusal(self) -> str | None:
        """Return why nothing is stored, or None."""
        if not self.is_disk_full:
            return None
        limit = self._settings.disk_space_warning_level_ratio
        reason = f"the disk is {self.disk_percent} % full, nothing is stored above {limit} %"
        return f"{reason}; {self._insufficient_reason}" if self._insufficient_reason else reason

    def measure_disk(self) -> int:
        """Measure the disk and decide whether it is too full; return the percentage."""
        settings = self._settings
        self._usage = self._files.disk_usage(settings.store_path_root_dir)
        self.disk_percent = self._usage.percent
        was_full = self.is_disk_full
        if self.disk_percent > settings.disk_space_warning_level_ratio:
            self.is_disk_full = True
        elif self.disk_percent <= settings.disk_space_clean_forcibly_ratio:
            self.is_disk_full = False
        if self.is_disk_full != was_full:
            log.warning("disk full" if self.is_disk_full else "disk has room again", percent=self.disk_percent)
        return self.disk_percent

    def tick(self, monotonic_ms: int, durable_offset: int) -> None:
        """Continue the running removal, and start a run if one is due; `durable_offset` as for `run`."""
        settings, remover = self._settings, self._remover
        self._expire_some()
        remover.tick()
        if monotonic_ms - self._retried_at_ms >= settings.redelete_hanged_file_interval:
            self._retried_at_ms = monotonic_ms
            remover.retry_close_in_use()
        if self._ran_at_ms is None or monotonic_ms - self._ran_at_ms >= settings.clean_resource_interval:
            self._ran_at_ms = monotonic_ms
            self.run(durable_offset)

    def run_by_hand(self, durable_offset: int) -> int:
        """Remove expired files regardless of hour and disk, now and in the next rounds, as RocketMQ does."""
        self._rounds_by_hand = ROUNDS_BY_HAND
        return self.run(durable_offset)

    def count_expired(self) -> tuple[int, int]:
        """Return how many files of the CommitLog `run_by_hand` would remove in all its rounds, and their bytes.

        Files whose derived files are not on the disk yet count, too: they are removed some seconds later.
        """
        limit = self._log.flushed_offset
        oldest_ms = self._clock.now_ms() - self._settings.file_reserved_time * _HOUR_MS
        count, size_bytes = 0, 0
        for file in self._log.files:
            if file.end > limit or file is self._log.files.last or self._is_younger(file, oldest_ms):
                break
            count += 1
            size_bytes += file.end - file.start
        return count, size_bytes

    def run(self, durable_offset: int) -> int:
        """Measure the disk and remove the files that are due now; return the number of removed CommitLog files.

        Args:
            durable_offset: The offset up to which the files derived from the log are on the disk; no data from there on
                is removed.
        """
        settings = self._settings
        try:
            percent = self.measure_disk()
        except OSError as error:
            # Without a measurement nothing may be removed; the next run measures again.
            log.warning("the disk can't be measured", path=settings.store_path_root_dir, reason=str(error))
            return 0
        hour = _local(self._clock.now_ms()).hour
        is_by_hand = self._rounds_by_hand > 0
        self._rounds_by_hand = max(0, self._rounds_by_hand - 1)
        limit, end = min(self._log.flushed_offset, durable_offset), 0
        if is_by_hand or percent > settings.disk_max_used_space_ratio or hour in self._hours:
            end = self._expired_end(limit)
        if settings.clean_file_forcibly_enable:
            end = max(end, self._forced_end(limit))
        sizes = {file: self._allocated_bytes(file.path) for file in self._deletable(end)}
        dropped = self._log.files.drop_before(end, count_max=settings.delete_file_batch_max)
        if not dropped:
            return 0
        min_offset = self._log.min_offset
        log.info("files removed", count=len(dropped), min_offset=min_offset, disk_percent=percent)
        self._queues.log_min_offset = min_offset
        self._remover.remove_log_files([(file, sizes[file]) for file in dropped])
        if self._index is not None:
            self._remover.remove_derived_files(self._index.expire(min_offset))
        self._expire_some()
        return len(dropped)

    def expire_queues(self) -> bool:
        """Check some queues, remove their files whose messages are gone, and return whether more are to be checked."""
        self._expire_some()
        return self.settled_offset < 0

    def _expire_some(self) -> None:
        """Check some queues, and remove their files whose messages are gone.

        A pass over all queues ends before the next one begins, even if more of the log is removed meanwhile. Otherwise
        the last queues would never get their turn.
        """
        if self._to_expire is None:
            if self._expired_to == self._queues.log_min_offset:
                return
            self._expired_to = self._queues.log_min_offset
            self._to_expire = iter(self._queues)
        expired: list[QueueFile] = []
        min_offset = self._queues.log_min_offset
        for _ in range(QUEUES_PER_TICK_MAX):
            queue = next(self._to_expire, None)
            if queue is None:
                self._to_expire = None
                break
            if self._queues.holds(queue):
                expired += self._queues.expire(queue)
                if queue.corrected_to != min_offset:
                    queue.correct_min(min_offset)
        for file in expired:
            file.close()
        self._remover.remove_derived_files(expired)
        self.expired_queue_files += len(expired)

    def expires_at(self, physical_offset: int) -> Expiry | None:
        """Return when the file of a record expires by age and hour, at the earliest.

        Returns:
            None if the file never expires by age and hour, does not exist, or has an unknown age. The files' ages are
            read every 10 s at most.
        """
        files = self._log.files
        file, last, now_ms = files.find(physical_offset), files.last, self._clock.monotonic_ms()
        if file is None or last is None:
            return None
        if self._ages is None or now_ms - self._ages[0] >= _AGES_MS or self._ages[1] is not last:
            self._check_ages()
            self._ages = now_ms, last
        if file.start not in self._expiries:
            kept_until_ms = self._kept_until.get(file.start)
            at_ms = None if kept_until_ms is None else _next_moment(kept_until_ms, self._hours)
            self._expiries[file.start] = None if at_ms is None else Expiry(at_ms, file is last)
        return self._expiries[file.start]

    def _check_ages(self) -> None:
        """Note for every file until when its age keeps it; a file is removed only together with all files before it."""
        now_ms = self._clock.now_ms()
        reserved_ms = self._settings.file_reserved_time * _HOUR_MS
        self._kept_until.clear()
        self._expiries.clear()
        # A file that is already old enough expires in the next of the hours, at the earliest in the current one.
        kept_until_ms = now_ms
        for file in self._log.files:
            try:
                modified_ms = now_ms if file is self._log.files.last else self._files.modified_ms(file.path)
            except OSError:
                return  # The file was removed from outside: its age is unknown, and so are those of later files.
            kept_until_ms = max(kept_until_ms, modified_ms + reserved_ms)
            self._kept_until[file.start] = kept_until_ms

    def _deletable(self, limit: int) -> list[MappedFile]:
        """Return the files that this run may remove, oldest first: files before an offset, and never the last one."""
        files = self._log.files
        found: list[MappedFile] = []
        for file in files:
            if file.end > limit or file is files.last or len(found) >= self._settings.delete_file_batch_max:
                break
            found.append(file)
        return found

    def _expired_end(self, limit: int) -> int:
        """Return the end of the files that expire by age: from the oldest file to the first one that is still kept."""
        end = self._log.min_offset
        oldest_ms = self._clock.now_ms() - self._settings.file_reserved_time * _HOUR_MS
        for file in self._deletable(limit):
            if self._is_younger(file, oldest_ms):
                break
            end = file.end
        return end

    def _is_younger(self, file: MappedFile, oldest_ms: int) -> bool:
        try:
            return self._files.modified_ms(file.path) > oldest_ms
        except FileNotFoundError:
            return False  # The file was removed from outside: it has nothing to keep, and must not keep later files.
        except OSError as error:
            # The next run checks again.
            if file.path != self._unknown_age:
                self._unknown_age = file.path
                log.warning(
                    "a file stays, since its age can't be read", path=file.path, reason=describe_os_error(error)
                )
            return True

    def _forced_end(self, limit: int) -> int:
        """Return the end of the files to remove so that the disk is no longer too full; 0 if it is not possible.

        The files of queues that are removed with them are not counted, because that would mean to check all queues. The
        estimate is therefore low, and retention keeps messages rather than removing some without effect.
        """
        needed = self._bytes_too_many()
        end, freed = 0, 0
        if needed > 0:
            files = self._log.files
            for file in files:
                if file.end > limit or file is files.last or freed >= needed:
                    break
                end = file.end
                freed += self._allocated_bytes(file.path)
            freed += self._index_bytes(end)
        if freed >= needed:
            self._insufficient_reason = ""
            return end
        if not self._insufficient_reason:
            log.warning(
                "the disk is filled by others; removing messages would not help, so they stay",
                percent=self.disk_percent,
                bytes_too_many=needed,
                removable_bytes=freed,
            )
        self._insufficient_reason = f"removing all messages that may go would free {freed} of the {needed} bytes that are too many, so they stay"
        return 0

    def _bytes_too_many(self) -> int:
        """Return how many bytes exceed the ratio for removal by force, without those that are already being removed."""
        usage = self._usage
        allowed = (usage.used + usage.usable) * self._settings.disk_space_clean_forcibly_ratio // 100
        return max(0, usage.used - allowed - self._remover.pending_bytes)

    def _index_bytes(self, min_offset: int) -> int:
        """Return the disk space of the index files that are removed when the log begins at an offset."""
        files = list(self._index) if self._index is not None else []
        return sum(self._allocated_bytes(file.path) for file in files[:-1] if file.end_offset < min_offset)

    def _allocated_bytes(self, path: str) -> int:
        try:
            return self._files.allocated_bytes(path)
        except OSError:
            return 0  # The file was removed from outside.


def _local(at_ms: int) -> datetime:
    """Return a moment in local time, because hours in settings are local hours."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).astimezone()


def _next_moment(at_ms: int, hours: Collection[int]) -> int | None:
    """Return the first moment at or after `at_ms` that lies in one of these hours of the day, or None."""
    # Two days, because a clock that is put forward skips an hour.
    for _ in range(49):
        if at_ms > _MOMENT_MS_MAX:
            return None
        local = _local(at_ms)
        if local.hour in hours:
            return at_ms
        at_ms += _HOUR_MS - (local.minute * 60 + local.second) * 1000 - at_ms % 1000
    return None
