"""Processes: children that die with their parent, and whole families of them.

A child started here gets a signal from the kernel when its parent ends, even where the parent is killed and can say
nothing any more. Families are found through /proc; where there is none, a family is its first member.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return what a child runs before its program starts, so that it gets the signal when its parent ends.

    Linux only; None elsewhere, where a supervisor that is killed leaves its children running. The kernel watches
    the thread that started the child, which therefore must be one that lives as long as the process.
    """
    if not sys.platform.startswith("linux"):
        return None
    # Loaded here and not in the child: between fork and exec only the least may be done.
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def before_exec() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # It ended before the line above.
            os.kill(os.getpid(), number)

    return before_exec


def family(pid: int) -> list[int]:
    """Return a process, its children, theirs, and so on, as far as they live."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(member for child in children for member in family(int(child)))]


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to every one that lives."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the process group of a child that was started in a session of its own, as far as it lives."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def is_group_alive(pid: int) -> bool:
    """Say whether a process group has a member, be it one that ended and that nobody has waited for."""
    try:
        os.killpg(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def kill_all(pids: Iterable[int]) -> None:
    """Kill -9 every one that lives."""
    signal_all(pids, signal.SIGKILL)


def wait_until_gone(pids: Iterable[int], *, timeout_s: float) -> bool:
    """Wait until none of them lives; False where some still do."""
    left = list(pids)
    deadline = time.monotonic() + timeout_s
    while left := [pid for pid in left if is_alive(pid)]:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    """Say whether a process runs or is stopped; one that only waits to be collected does neither."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes_in(folder: Path, *, program: str) -> list[int]:
    """Return the processes of a program whose working folder is `folder`; none where there is no /proc."""
    found = []
    wanted = folder.resolve()
    for entry in Path("/proc").glob("[0-9]*"):
        # Others come and go, or are not ours to look at.
        with suppress(OSError):
            if (entry / "cwd").readlink() == wanted and (entry / "exe").readlink().name.split()[0] == program:
                found.append(int(entry.name))
    return found
