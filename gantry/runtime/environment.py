"""The environment variables, priority and limits of the process.

Gantry passes settings as values. But some libraries read their settings from the environment when they start: PySpark,
and the JVM and the workers that PySpark starts. So Gantry sets environment variables for them.
"""

import os
import resource
from collections.abc import MutableMapping


def process_environment() -> MutableMapping[str, str]:
    """Return the environment of this process. Every process that it starts inherits the variables set there."""
    return os.environ


def cpu_count() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process: add `niceness` to its nice value. Child processes inherit the value."""
    os.nice(niceness)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
