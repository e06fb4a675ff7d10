"""Processes: children that end with their parent, and process trees.

The kernel sends a child started here a signal when its parent ends, even if the parent is killed. Descendants of a
process are found through /proc. Without /proc, only the process itself is found.
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
    """Return a function for the child to call before exec, so that it gets the signal when its parent ends.

    Returns None on systems other than Linux: there, children survive a supervisor that is killed. The kernel watches
    the thread that started the child, so this thread must live as long as the process.
    """
    if not sys.platform.startswith("linux"):
        return None
    # Loaded here and not in the child: only async-signal-safe calls are allowed between fork and exec.
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def before_exec() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # The parent ended before prctl.
            os.kill(os.getpid(), number)

    return before_exec


def family(pid: int) -> list[int]:
    """Return the pids of a process and all its living descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(member for child in children for member in family(int(child)))]


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to every process that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the process group of a child that was started in its own session, if the group exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def is_group_alive(pid: int) -> bool:
    """Return whether a process group has a member. A zombie counts as a member."""
    try:
        os.killpg(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def kill_all(pids: Iterable[int]) -> None:
    """Send SIGKILL to every process that still exists."""
    signal_all(pids, signal.SIGKILL)


def wait_until_gone(pids: Iterable[int], *, timeout_s: float) -> bool:
    """Wait until no process lives. Return False if some still live after the time-out."""
    left = list(pids)
    deadline = time.monotonic() + timeout_s
    while left := [pid for pid in left if is_alive(pid)]:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_running(pid: int) -> bool:
    """Return whether a child of this process runs and will not be killed, as far as the kernel knows. Reap nothing."""
    try:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
    except ChildProcessError:
        return False
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True  # There is no /proc here.
    # A process that was sent SIGKILL still exists until it is scheduled the next time.
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return not any(mask >> (signal.SIGKILL - 1) & 1 for mask in pending)


def processes_in(folder: Path, *, program: str) -> list[int]:
    """Return the pids of a program's processes whose working folder is `folder`. Empty without /proc."""
    found = []
    wanted = folder.resolve()
    for entry in Path("/proc").glob("[0-9]*"):
        # Processes may end meanwhile, or belong to other users.
        with suppress(OSError):
            if (entry / "cwd").readlink() == wanted and (entry / "exe").readlink().name.split()[0] == program:
                found.append(int(entry.name))
    return found
