"""The bodies of request 900032, Gantry's own: removal of old data on demand."""

from typing import Final

import msgspec

from gantry.remoting.bodies.fastjson import JsonBody

EXPIRED_FILES: Final = "EXPIRED_FILES"
EXPIRED_QUEUES: Final = "EXPIRED_QUEUES"
UNUSED_TOPICS: Final = "UNUSED_TOPICS"
WHAT: Final = (EXPIRED_FILES, EXPIRED_QUEUES, UNUSED_TOPICS)


class Clean(JsonBody, kw_only=True):
    """900032: names of WHAT; with `dry_run`, nothing is removed."""

    dry_run: bool = False
    what: list[str]


class Cleaned(JsonBody, kw_only=True):
    """The response: what was removed, or with `dry_run` what would be.

    Attributes:
        log_bytes: Bytes of the removed files of the CommitLog.
        log_files: Number of the removed files of the CommitLog.
        min_physical_offset: First byte of the CommitLog that is still there.
        queue_files: Number of removed files of ConsumeQueues; 0 with `dry_run`.
        topics: The removed topics.
    """

    log_bytes: int = 0
    log_files: int = 0
    min_physical_offset: int
    queue_files: int = 0
    topics: list[str] = msgspec.field(default_factory=list)
