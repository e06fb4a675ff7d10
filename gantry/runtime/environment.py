"""The process's environment and its place among others, for what can be told no other way.

Settings are handed down as values; but a library that reads the environment when it starts (PySpark, and the JVM and
workers it starts) has to find there what we chose.
"""

import os
import resource
from collections.abc import MutableMapping


def process_environment() -> MutableMapping[str, str]:
    """Return the environment of this process; what is set there is inherited by every process it starts."""
    return os.environ


def cpu_count() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def give_way(niceness: int) -> None:
    """Let others on this machine go first: add to this process's niceness, and to that of every process it starts."""
    os.nice(niceness)


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to what this process may have; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
