"""The division of a process's descriptors, so that clients can't use up the descriptors that the process needs.

Descriptors have three uses. The process needs a fixed number for itself, which is reserved first. Pooled files
(openfiles.py) work with few descriptors, because the pool reopens a closed file on its next use. Connections get the
rest, up to the maximum in the settings. A server closes a connection above this share as soon as it has accepted it.
"""

from typing import Final, NamedTuple

from gantry.runtime.errors import StartupError

PROCESS_DESCRIPTORS: Final = 96
"""The number that a process reserves for itself. It needs about 60: for standard streams, the event loop, listening
sockets, a connection to refuse, locks, the checkpoint, the newest index file, folders and config files in use, name
resolution, and the metrics server with its connections."""
FILES_MIN: Final = 16
"""With fewer descriptors, the pool would close and reopen files all the time."""
FILES_MAX: Final = 32_768
"""More descriptors do not help, because a broker hardly writes to more files between two flushes."""
CONNECTIONS_MIN: Final = 16
"""A broker with fewer connections is useless."""


class DescriptorBudget(NamedTuple):
    """The number of descriptors for each use.

    Attributes:
        limit: All descriptors of the process.
        process: Descriptors that the process reserves for itself.
        files: Descriptors for pooled files.
        connections: Descriptors for accepted connections; never more than the maximum in the settings.
    """

    limit: int
    process: int
    files: int
    connections: int


def share_descriptors(limit: int, *, process: int, connections_max: int, has_files: bool = False) -> DescriptorBudget:
    """Divide the descriptors of a process between its uses.

    It takes 10 µs to reopen a closed file, but a refused connection locks a client out. So connections have priority.
    But pooled files always get a quarter of the descriptors that the process does not reserve (at most FILES_MAX).

    Args:
        limit: The limit of descriptors for the process (RLIMIT_NOFILE).
        process: The number of descriptors that the process reserves for itself.
        connections_max: The maximum number of connections in the settings; 0 for a process without a server.
        has_files: Whether the process has pooled files.

    Raises:
        StartupError: The limit is too low.
    """
    assert min(process, connections_max) >= 0, (process, connections_max)
    files_min, connections_min = FILES_MIN if has_files else 0, min(connections_max, CONNECTIONS_MIN)
    need = process + files_min + connections_min
    if limit < need:
        raise StartupError(
            f"this process may open {limit} descriptors and needs at least {need} ({process} for itself, {files_min} for "
            f"its files, {connections_min} for connections); raise the limit of open files (ulimit -n)"
        )
    left = limit - process
    files = min(max(left - connections_max, left // 4, files_min), FILES_MAX) if has_files else 0
    return DescriptorBudget(limit, process, files, min(connections_max, left - files))
