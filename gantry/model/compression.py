"""Compression of message bodies: zlib, lz4 (frame format) and zstd, as clients choose them.

A broker never opens a compressed body. Consumers, the HTTP gateway and the command line do, so what comes out is
bounded: a few hundred bytes can claim to hold gigabytes.
"""

import enum
import zlib
from typing import Final

import lz4.frame
import zstandard

from gantry.model import sysflag
from gantry.model.errors import CorruptRecordError

INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
"""16 times the largest body a client may send by default; larger ones are raised by setting, and rare."""
COMPRESS_OVER_BYTES: Final = 4096
"""Default of compressMsgBodyOverHowmuch."""
LEVEL: Final = 5

# A decoder must hold one window; no encoder that a client library offers asks for more than this.
_ZSTD_WINDOW_BYTES_MAX = 1 << 27


class Compression(enum.IntEnum):
    """The kinds, by their bits in sysFlag."""

    LZ4 = sysflag.COMPRESSION_LZ4
    ZSTD = sysflag.COMPRESSION_ZSTD
    ZLIB = sysflag.COMPRESSION_ZLIB

    @property
    def sys_flag(self) -> int:
        """Return the bits to set in sysFlag for a body compressed this way."""
        return sysflag.COMPRESSED | self.value


def compress(body: bytes | memoryview, kind: Compression, level: int = LEVEL) -> bytes:
    """Return the body compressed; the caller sets `kind.sys_flag`."""
    if kind is Compression.ZLIB:
        return zlib.compress(body, level)
    if kind is Compression.ZSTD:
        return zstandard.ZstdCompressor(level=level).compress(body)
    compressed: bytes = lz4.frame.compress(bytes(body), compression_level=level)
    return compressed


def decompress(body: bytes | memoryview, sys_flag: int, *, limit_bytes: int = INFLATED_BYTES_MAX) -> bytes:
    """Return the body as it was before compression; as it is where sysFlag says that it is not compressed.

    Args:
        body: The body as stored.
        sys_flag: The record's. Type bits 0 mean zlib, as releases before 5.0 wrote it.
        limit_bytes: More than this is not unpacked.

    Raises:
        CorruptRecordError: The type is unknown, the stream is broken or ends early, or more than the limit comes out.
    """
    if not sys_flag & sysflag.COMPRESSED:
        return bytes(body)
    kind = sys_flag & sysflag.COMPRESSION_MASK
    try:
        if kind in (0, sysflag.COMPRESSION_ZLIB):
            inflated, is_complete = _inflate_zlib(body, limit_bytes)
        elif kind == sysflag.COMPRESSION_ZSTD:
            inflated, is_complete = _inflate_zstd(body, limit_bytes)
        elif kind == sysflag.COMPRESSION_LZ4:
            inflated, is_complete = _inflate_lz4(body, limit_bytes)
        else:
            raise CorruptRecordError(f"unknown compression type {kind:#x} in sysFlag {sys_flag:#x}", 0)
    except (zlib.error, zstandard.ZstdError, RuntimeError, MemoryError) as error:
        raise CorruptRecordError(f"compressed body of {len(body)} bytes can't be unpacked: {error}", 0) from None
    if len(inflated) > limit_bytes:
        raise CorruptRecordError(f"compressed body unpacks to more than {limit_bytes} bytes", 0)
    if not is_complete:
        raise CorruptRecordError(f"compressed body of {len(body)} bytes ends early", 0)
    return inflated


def _inflate_zlib(body: bytes | memoryview, limit_bytes: int) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj()
    inflated = inflater.decompress(body, limit_bytes + 1)
    return inflated, inflater.eof


def _inflate_zstd(body: bytes | memoryview, limit_bytes: int) -> tuple[bytes, bool]:
    # The one-call decoder allocates what the frame's header claims, so the claim is looked at first.
    claimed = zstandard.frame_content_size(bytes(body[:18]))
    if claimed > limit_bytes:
        return b"\0" * (limit_bytes + 1), True
    inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    with inflater.stream_reader(bytes(body)) as reader:
        inflated = reader.read(limit_bytes + 1)
    if claimed >= 0 or len(inflated) > limit_bytes:
        return inflated, claimed in (-1, len(inflated))
    # A frame written as a stream does not say its size, and the reader does not say whether it saw the end. Only
    # this decoder does, which knows no limit, but by now the size is known to be within it.
    checker = inflater.decompressobj()
    checker.decompress(body)
    return inflated, checker.eof


def _inflate_lz4(body: bytes | memoryview, limit_bytes: int) -> tuple[bytes, bool]:
    inflater = lz4.frame.LZ4FrameDecompressor()
    inflated: bytes = inflater.decompress(bytes(body), max_length=limit_bytes + 1)
    return inflated, inflater.eof
