"""Failpoints: named moments at which a test may kill the process.

Armed by the environment, `GANTRY_FAILPOINTS=store.before_sync:3` (kill -9 at the third time), and free when it is
not set. They only ever end the process: what a fault returns to its caller is the business of FaultFileSystem.
"""

import enum
import os
import signal


class Failpoint(enum.StrEnum):
    """The moments that matter."""

    STORE_BEFORE_SYNC = "store.before_sync"
    STORE_AFTER_SYNC = "store.after_sync"
    STORE_BEFORE_ROLL = "store.before_roll"
    STORE_BEFORE_CHECKPOINT = "store.before_checkpoint"
    BROKER_BEFORE_REPLY = "broker.before_reply"


_armed: dict[Failpoint, int] = {}


def arm_from_environment() -> None:
    """Read GANTRY_FAILPOINTS: `name:count` items separated by commas. Raises ValueError for an unknown name."""
    for item in filter(None, os.environ.get("GANTRY_FAILPOINTS", "").split(",")):
        name, _, count = item.partition(":")
        _armed[Failpoint(name)] = int(count or "1")


def hit(failpoint: Failpoint) -> None:
    """Pass the failpoint, or die there if a test has armed it."""
    if _armed and failpoint in _armed:
        _armed[failpoint] -= 1
        if _armed[failpoint] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
