"""The configuration of a topic, and the version that distinguishes two copies of a table."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self


class Perm(enum.IntFlag):
    """The permissions of a topic or a broker."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read."""
        return bool(self & Perm.READ)

    @property
    def is_writable(self) -> bool:
        """Whether producers may send."""
        return bool(self & Perm.WRITE)

    @property
    def is_inherited(self) -> bool:
        """Whether a broker may create other topics with this topic as the template."""
        return bool(self & Perm.INHERIT)


DUPLICATE_WINDOW: Final = "gantry.duplicate.window.ms"
"""The attribute of a topic with a duplicate window: the time, in ms, in which a message is stored only once."""
DUPLICATE_WINDOW_MS_MIN: Final = 1_000
DUPLICATE_WINDOW_MS_MAX: Final = 24 * 3_600_000
DUPLICATE_WINDOW_MS_DEFAULT: Final = 600_000

READ_WRITE = Perm.READ | Perm.WRITE
SINGLE_TAG = "SINGLE_TAG"
MULTI_TAG = "MULTI_TAG"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic on a broker: its queues, permissions and attributes."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = int(READ_WRITE)
    order: bool = False
    topic_filter_type: str = SINGLE_TAG
    topic_sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a table that is stored and sent to other processes. Any difference in a field is a new version."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> Self:
        """Return the version after one more change."""
        return type(self)(state_version=self.state_version, timestamp=now_ms, counter=self.counter + 1)
