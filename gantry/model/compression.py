"""Compression of message bodies with zlib, lz4 (frame format) or zstd. The producer chooses the type.

A broker never decompresses a body. Consumers, the HTTP gateway and the command line do. The size of the result is
limited, because a few hundred bytes may decompress to gigabytes.
"""

import enum
import zlib
from typing import Final

import lz4.frame
import zstandard

from gantry.model import sysflag
from gantry.model.errors import CorruptRecordError

INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
"""16 times the default maximum for the body of a message. Operators can raise that maximum, but they rarely do."""
COMPRESS_OVER_BYTES: Final = 4096
"""The default of compressMsgBodyOverHowmuch."""
LEVEL: Final = 5

# A decoder needs memory for one window. The encoders of client libraries never use a larger window than this.
_ZSTD_WINDOW_BYTES_MAX = 1 << 27


class Compression(enum.IntEnum):
    """The compression types. The value is the bits in sysFlag."""

    LZ4 = sysflag.COMPRESSION_LZ4
    ZSTD = sysflag.COMPRESSION_ZSTD
    ZLIB = sysflag.COMPRESSION_ZLIB

    @property
    def sys_flag(self) -> int:
        """The bits to set in sysFlag for a body that is compressed with this type."""
        return sysflag.COMPRESSED | self.value


def compress(body: bytes | memoryview, kind: Compression, level: int = LEVEL) -> bytes:
    """Return the compressed body. The caller sets `kind.sys_flag` in sysFlag."""
    if kind is Compression.ZLIB:
        return zlib.compress(body, level)
    if kind is Compression.ZSTD:
        return zstandard.ZstdCompressor(level=level).compress(body)
    compressed: bytes = lz4.frame.compress(bytes(body), compression_level=level)
    return compressed


def decompress(body: bytes | memoryview, sys_flag: int, *, limit_bytes: int = INFLATED_BYTES_MAX) -> bytes:
    """Return the decompressed body, or the same bytes if sysFlag says that the body is not compressed.

    Args:
        body: The body as stored.
        sys_flag: The sysFlag of the record. Type bits 0 mean zlib, because releases before 5.0 set no type bits.
        limit_bytes: The maximum size of the result.

    Raises:
        CorruptRecordError: The type is unknown, the stream is invalid or ends early, or the result exceeds the limit.
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
    # The decoder allocates the size that the frame header claims, so check the claim first.
    claimed = zstandard.frame_content_size(bytes(body[:18]))
    if claimed > limit_bytes:
        return b"\0" * (limit_bytes + 1), True
    inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    with inflater.stream_reader(bytes(body)) as reader:
        inflated = reader.read(limit_bytes + 1)
    if claimed >= 0 or len(inflated) > limit_bytes:
        return inflated, claimed in (-1, len(inflated))
    # The frame header of a streamed body has no size, and the reader above does not tell whether it saw the end of the
    # frame. Only this second decoder tells. It has no limit, but the size is now known to be within the limit.
    checker = inflater.decompressobj()
    checker.decompress(body)
    return inflated, checker.eof


def _inflate_lz4(body: bytes | memoryview, limit_bytes: int) -> tuple[bytes, bool]:
    inflater = lz4.frame.LZ4FrameDecompressor()
    inflated: bytes = inflater.decompress(bytes(body), max_length=limit_bytes + 1)
    return inflated, inflater.eof
