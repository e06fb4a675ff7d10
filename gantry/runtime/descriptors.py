"""How a process shares out its descriptors, so that nobody on the network can take those that it needs itself.

Three parties need some. The process itself needs a fixed number and gets it first. Files that are opened again when
they are used (openfiles.py) make do with few. Connections get the rest, up to what the settings allow: a server closes
a connection beyond its share as soon as it has accepted it.
"""

from typing import Final, NamedTuple

from gantry.runtime.errors import StartupError

PROCESS_DESCRIPTORS: Final = 96
"""For standard streams, the event loop, listening sockets, a connection that is refused, locks, checkpoint, newest index
file, folders and config files while they are used, name resolution, the metrics server with its connections: about 60."""
FILES_MIN: Final = 16
"""Fewer pooled files would be closed and opened again all the time."""
FILES_MAX: Final = 32_768
"""More is of no use: so many files are hardly written between two flushes."""
CONNECTIONS_MIN: Final = 16
"""A broker with fewer connections is of no use to anybody."""


class DescriptorShares(NamedTuple):
    """Who may have how many descriptors.

    Attributes:
        limit: Descriptors of the process.
        process: For the process itself.
        files: For pooled files.
        connections: For accepted connections; never more than the settings allow.
    """

    limit: int
    process: int
    files: int
    connections: int


def share_descriptors(limit: int, *, process: int, connections_max: int, has_files: bool = False) -> DescriptorShares:
    """Share out descriptors.

    A file that is closed costs 10 µs when it is used again; a connection that is refused costs a client. So connections
    come first, but if they leave less than a quarter of what the process does not need, the files get a quarter.

    Args:
        limit: Descriptors that the process may have (RLIMIT_NOFILE).
        process: Descriptors that the process needs itself.
        connections_max: Connections that the settings allow; 0 for a process without a server.
        has_files: Whether there are pooled files.

    Raises:
        StartupError: There are too few.
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
    return DescriptorShares(limit, process, files, min(connections_max, left - files))
