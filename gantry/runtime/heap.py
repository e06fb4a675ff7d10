"""The C library's heap: memory of large buffers goes back to the system when they are freed.

By default glibc raises the size from which it maps buffers one by one, up to 32 MiB, as soon as one is freed. Bodies of
some MiB then lie on the heap, and what lives between them keeps the heap large long after a flood is over. Free pages
between what lives are given back only on demand.
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
_WORTH_BYTES: Final = 16 * 1024 * 1024
_STATM: Final = Path("/proc/self/statm")


def give_memory_back() -> None:
    """Have the heap give memory back when it is freed; without effect where the C library has no `mallopt`."""
    mallopt = _of_c_library("mallopt")
    if mallopt is None:
        return
    for option, value in (
        (_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES),
        (_M_TRIM_THRESHOLD, _TRIMMED_FROM_BYTES),
        (_M_ARENA_MAX, _ARENAS),
    ):
        mallopt(option, value)


async def trim_after_floods(interval_s: float = _TRIM_INTERVAL_S) -> None:
    """Give back free pages while the process is larger by 16 MiB than it was; without effect outside of glibc and Linux.

    What it was is the least that any call has left: a call within a flood gives back little, and says nothing of the time
    after it. A thread does it: it keeps others from the heap for less than 10 ms.
    """
    trim = _of_c_library("malloc_trim")
    least_bytes = 0
    while trim is not None and _STATM.exists():
        await asyncio.sleep(interval_s)
        if _resident_bytes() >= least_bytes + _WORTH_BYTES:
            await asyncio.to_thread(trim, 0)
            left_bytes = _resident_bytes()
            least_bytes = min(least_bytes, left_bytes) or left_bytes


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _of_c_library(name: str) -> Callable[..., Any] | None:
    function: Callable[..., Any] | None = getattr(ctypes.CDLL(None), name, None)
    return function
