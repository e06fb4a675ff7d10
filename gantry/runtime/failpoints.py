"""Failpoints: named points in the code at which a test may kill the process.

The environment variable GANTRY_FAILPOINTS arms them: `store.before_sync:3` means kill -9 at the third time. If it is
not set, failpoints cost nothing. A failpoint can only kill the process. FaultFileSystem makes calls return errors.
"""

import enum
import os
import signal


class Failpoint(enum.StrEnum):
    """The failpoints of the product."""

    STORE_BEFORE_SYNC = "store.before_sync"
    STORE_AFTER_SYNC = "store.after_sync"
    STORE_BEFORE_ROLL = "store.before_roll"
    STORE_BEFORE_CHECKPOINT = "store.before_checkpoint"
    BROKER_BEFORE_REPLY = "broker.before_reply"


_armed: dict[Failpoint, int] = {}


def arm_from_environment() -> None:
    """Arm the failpoints in GANTRY_FAILPOINTS: `name:count` items, separated by commas.

    Raises:
        ValueError: A name is unknown, or a count is not a number.
    """
    for item in filter(None, os.environ.get("GANTRY_FAILPOINTS", "").split(",")):
        name, _, count = item.partition(":")
        _armed[Failpoint(name)] = int(count or "1")


def hit(failpoint: Failpoint) -> None:
    """Kill the process if a test has armed this failpoint and its count is reached. Otherwise do nothing."""
    if _armed and failpoint in _armed:
        _armed[failpoint] -= 1
        if _armed[failpoint] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
