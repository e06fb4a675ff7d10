"""Makes columns from bytes, thousands of values at a time: pieces at known positions, and fields of record heads."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gantry.model.address import unpack_host
from gantry.runtime.files import Memory

Bytes = bytes | Memory
Octets = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_HEX: Final = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)
_STORED_ID_CHARACTERS: Final = 32
# An Arrow view has a signed 32-bit offset, and holds a value of up to 12 bytes itself.
_VIEW_REACH: Final = (1 << 31) - 1
_INLINE_BYTES_MAX: Final = 12

# A client's clock may report any time. These limits are the years 1 to 9999: programs can't show other times.
TIME_MIN_MS: Final = -62_135_596_800_000
TIME_MAX_MS: Final = 253_402_300_799_999


def windows(memory: Octets, width: int, starts: Int64s) -> Octets:
    """Return the `width` bytes after each start, one row for each start."""
    if not len(starts):
        return np.zeros((0, width), np.uint8)
    found: Octets = np.lib.stride_tricks.sliding_window_view(memory, width)[starts]
    return found


def slice_bytes(data: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    """Return pieces of the bytes as a binary array. Arrow copies all of them in one call."""
    if not len(starts):
        return pa.array([], pa.binary())
    first = int(starts.min())
    last = int((starts + lengths).max())
    assert last - first <= _VIEW_REACH, f"{last - first} bytes of records at once"
    memory = np.frombuffer(data, np.uint8)[first:last]
    views = np.zeros((len(starts), 4), np.int32)
    views[:, 0] = lengths
    short = np.flatnonzero(lengths <= _INLINE_BYTES_MAX)
    long = np.flatnonzero(lengths > _INLINE_BYTES_MAX)
    views[long, 1] = windows(memory, 4, starts[long] - first).view(np.int32)[:, 0]
    views[long, 3] = starts[long] - first
    inline = views.view(np.uint8)
    for length in np.unique(lengths[short]).tolist():
        if length:
            alike = short[lengths[short] == length]
            inline[alike, 4 : 4 + length] = windows(memory, length, starts[alike] - first)
    buffers = [None, pa.py_buffer(views), pa.py_buffer(memory)]
    return pa.Array.from_buffers(pa.binary_view(), len(starts), buffers).cast(pa.binary())


def stored_ids(heads: npt.NDArray[Any]) -> pa.Array:
    """Return the results of `encode_packed_stored_id` for many records."""
    raw = np.empty((len(heads), _STORED_ID_CHARACTERS // 2), np.uint8)
    raw[:, :8] = np.ascontiguousarray(heads["store_host"]).view(np.uint8).reshape(-1, 8)
    raw[:, 8:] = np.ascontiguousarray(heads["physical_offset"]).view(np.uint8).reshape(-1, 8)
    offsets = np.arange(len(heads) + 1, dtype=np.int32) * _STORED_ID_CHARACTERS
    return pa.StringArray.from_buffers(len(heads), pa.py_buffer(offsets), pa.py_buffer(_HEX[raw]))


def hosts(packed: npt.NDArray[Any]) -> pa.Array:
    """Return IPv4 hosts as text. Each distinct host is formatted once, because there are few of them."""
    unique, number = np.unique(np.ascontiguousarray(packed).view(">u8"), return_inverse=True)
    texts = [str(unpack_host(int(host).to_bytes(8))) for host in unique]
    return pa.array(texts, pa.string()).take(pa.array(number))


def micros(times_ms: npt.NDArray[Any]) -> pa.Array:
    """Return times in ms as Spark's timestamps. Times outside of the limits become the nearest limit."""
    micros = np.clip(times_ms.astype(np.int64), TIME_MIN_MS, TIME_MAX_MS) * 1_000
    return pa.array(micros).cast(pa.timestamp("us", "UTC"))
