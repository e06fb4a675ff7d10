"""Settings of the C library's heap, so that freed memory of large buffers returns to the system.

By default glibc maps each large buffer separately. But when such a buffer is freed, glibc raises the size limit for
separate maps, up to 32 MiB. Bodies of several MiB are then on the heap. Live objects between them keep the heap large
long after a burst of messages. glibc returns the free pages between live objects only on request (`malloc_trim`).
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MAPPED_FROM_BYTES: Final = 512 * 1024
_TRIMMED_FROM_BYTES: Final = 4 * 1024 * 1024
_ARENAS: Final = 2


_TRIM_INTERVAL_S: Final = 30.0
_TRIM_GROWTH_BYTES_MIN: Final = 16 * 1024 * 1024
_STATM: Final = Path("/proc/self/statm")


def configure_heap() -> None:
    """Set the heap to return freed memory to the system. This has no effect if the C library has no `mallopt`."""
    mallopt = _find_c_function("mallopt")
    if mallopt is None:
        return
    for option, value in (
        (_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES),
        (_M_TRIM_THRESHOLD, _TRIMMED_FROM_BYTES),
        (_M_ARENA_MAX, _ARENAS),
    ):
        mallopt(option, value)


async def trim_after_floods(interval_s: float = _TRIM_INTERVAL_S) -> None:
    """Check the size of the process at an interval. Trim the heap if the size is at least 16 MiB above the baseline.

    The baseline is the smallest size after any earlier trim. The size after the last trim would be a bad baseline: a
    trim during a burst returns little memory, so this size is too large for the time after the burst. A thread calls
    `malloc_trim`, which blocks other users of the heap for less than 10 ms. The function needs glibc and Linux;
    elsewhere it has no effect.
    """
    trim = _find_c_function("malloc_trim")
    least_bytes = 0
    while trim is not None and _STATM.exists():
        await asyncio.sleep(interval_s)
        if _resident_bytes() >= least_bytes + _TRIM_GROWTH_BYTES_MIN:
            await asyncio.to_thread(trim, 0)
            left_bytes = _resident_bytes()
            least_bytes = min(least_bytes, left_bytes) or left_bytes


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _find_c_function(name: str) -> Callable[..., Any] | None:
    function: Callable[..., Any] | None = getattr(ctypes.CDLL(None), name, None)
    return function
