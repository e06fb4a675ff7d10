"""The settings and limits of a store. The settings have RocketMQ's names in snake_case."""

import enum
from dataclasses import dataclass

from gantry.model.delaylevel import parse_delay_levels
from gantry.storeformat import layout

_HOURS = range(24)
# Senders write at most 100 MB/s, and the creation of a file takes about 100 ms with its syncs. The next start removes
# the files that hold no messages.
LOG_AHEAD_BYTES = 16 << 20


class FlushDiskType(enum.StrEnum):
    """When a send is acknowledged: when its record is on the disk, or when it is in the page cache."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings of one store. `BrokerSettings` inherits them.

    Defaults are RocketMQ's, unless a comment gives the reason for another one.
    """

    # Files
    store_path_root_dir: str = "store"
    mapped_file_size_commit_log: int = layout.COMMIT_LOG_FILE_BYTES  # bytes
    mapped_file_size_consume_queue: int = layout.CONSUME_QUEUE_FILE_BYTES  # bytes
    max_hash_slot_num: int = layout.HASH_SLOTS
    max_index_num: int = layout.INDEX_ENTRIES
    message_index_enable: bool = True

    # Flushes
    flush_disk_type: FlushDiskType = FlushDiskType.SYNC_FLUSH  # RocketMQ: ASYNC_FLUSH. ADR-0007.
    flush_interval_commit_log: int = 500  # ms
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000  # ms
    flush_interval_consume_queue: int = 1000  # ms
    flush_consume_queue_least_pages: int = 2
    # ms. RocketMQ: 60,000. After a crash, data since the last thorough flush is read again, at about 10 µs for each
    # record.
    flush_consume_queue_thorough_interval: int = 10_000
    enabled_append_prop_crc: bool = True  # RocketMQ: off. ADR-0006.

    # Retention
    file_reserved_time: int = 72  # hours
    delete_when: str = "04"  # Hours of the day, separated by `;`.
    clean_resource_interval: int = 10_000  # ms
    delete_file_batch_max: int = 10
    redelete_hanged_file_interval: int = 120_000  # ms
    disk_max_used_space_ratio: int = 75  # %
    disk_space_clean_forcibly_ratio: int = 85  # %
    disk_space_warning_level_ratio: int = 90  # %
    clean_file_forcibly_enable: bool = True

    # Messages
    max_message_size: int = 4_194_304  # bytes
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    max_transfer_bytes_on_message_in_memory: int = 262_144
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 65_536
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40  # % of the memory of the machine
    max_filter_message_size: int = 16_000  # bytes of units that one get checks
    max_msgs_num_batch: int = 64

    def check(self) -> None:
        """Raise ValueError("name: reason") for an invalid value."""
        if not self.store_path_root_dir:
            raise ValueError("store_path_root_dir: is empty")
        if self.mapped_file_size_commit_log < 4096:
            raise ValueError(f"mapped_file_size_commit_log: {self.mapped_file_size_commit_log} is less than 4096 bytes")
        size = self.mapped_file_size_consume_queue
        if size < layout.UNIT_SIZE_BYTES or size % layout.UNIT_SIZE_BYTES:
            raise ValueError(f"mapped_file_size_consume_queue: {size} is no multiple of {layout.UNIT_SIZE_BYTES}")
        for name, least in (("max_hash_slot_num", 1), ("max_index_num", 2), ("max_message_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)} is less than {least}")
        for name in ("disk_max_used_space_ratio", "disk_space_clean_forcibly_ratio", "disk_space_warning_level_ratio"):
            if not 1 <= getattr(self, name) <= 100:
                raise ValueError(f"{name}: {getattr(self, name)} is not within 1 and 100")
        self.delete_hours()
        try:
            parse_delay_levels(self.message_delay_level)
        except ValueError as error:
            raise ValueError(f"message_delay_level: {self.message_delay_level!r}: {error}") from None

    def delete_hours(self) -> frozenset[int]:
        """Return the hours of the day in which expired files are removed; raises ValueError."""
        parts = [part.strip() for part in self.delete_when.split(";") if part.strip()]
        if not all(part.isdigit() and int(part) in _HOURS for part in parts):
            raise ValueError(f"delete_when: {self.delete_when!r} is not hours of the day separated by semicolons")
        return frozenset(int(part) for part in parts)

    @property
    def is_sync_flush(self) -> bool:
        """Return whether a send waits for the disk."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of one store that are not settings: only tests change them."""

    log_files_ahead_max: int = 8
    """Limit for files of the log that are created ahead; fewer if LOG_AHEAD_BYTES are reached before."""
    dispatch_pending_max: int = 65_536
    """Limit for records that are appended, not yet dispatched and kept in memory for dispatch; others are read from the
    log."""

    def __post_init__(self) -> None:
        assert self.log_files_ahead_max >= 1, "log_files_ahead_max: the log always creates its next file ahead"

    def log_files_ahead(self, file_bytes: int) -> int:
        """Return how many files of the log are created ahead: one of RocketMQ's size, more of smaller ones.

        Args:
            file_bytes: Size of one file of the log.
        """
        return max(1, min(self.log_files_ahead_max, LOG_AHEAD_BYTES // file_bytes))
