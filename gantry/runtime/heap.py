"""The C library's heap: memory of large buffers goes back to the system when they are freed.

By default glibc raises the size from which it maps buffers one by one, up to 32 MiB, as soon as one is freed. Bodies of
some MiB then lie on the heap, and what lives between them keeps the heap large long after a flood is over.
"""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MAPPED_FROM_BYTES: Final = 512 * 1024
_TRIMMED_FROM_BYTES: Final = 4 * 1024 * 1024
_ARENAS: Final = 2


def give_memory_back() -> None:
    """Have the heap give memory back; without effect where the C library has no `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in (
        (_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES),
        (_M_TRIM_THRESHOLD, _TRIMMED_FROM_BYTES),
        (_M_ARENA_MAX, _ARENAS),
    ):
        mallopt(option, value)
