from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gantry.model import sysflag
from gantry.model.compression import Compression, compress, decompress
from gantry.model.errors import CorruptRecordError

kinds = pytest.mark.parametrize("kind", list(Compression))


@kinds
@given(body=st.binary(max_size=2000))
def test_there_and_back(kind: Compression, body: bytes) -> None:
    assert decompress(compress(body, kind), kind.sys_flag, limit_bytes=2000) == body
    assert decompress(memoryview(compress(memoryview(body), kind)), kind.sys_flag) == body


def test_old_flag_without_type_is_zlib() -> None:
    assert decompress(compress(b"x" * 100, Compression.ZLIB), sysflag.COMPRESSED) == b"x" * 100


def test_without_the_flag_the_body_is_unchanged() -> None:
    assert decompress(b"plain", sysflag.COMPRESSION_ZSTD) == b"plain"


@kinds
def test_more_than_the_limit_is_refused(kind: Compression) -> None:
    bomb = compress(b"\0" * 1_000_000, kind)
    with pytest.raises(CorruptRecordError, match="more than 999999 bytes"):
        decompress(bomb, kind.sys_flag, limit_bytes=999_999)
    assert len(decompress(bomb, kind.sys_flag, limit_bytes=1_000_000)) == 1_000_000


def test_more_than_the_limit_is_refused_if_the_frame_does_not_state_its_size() -> None:
    encoder = zstandard.ZstdCompressor().compressobj()
    bomb = encoder.compress(b"\0" * 1_000_000) + encoder.flush()
    assert zstandard.frame_content_size(bomb) == -1
    with pytest.raises(CorruptRecordError, match="more than"):
        decompress(bomb, Compression.ZSTD.sys_flag, limit_bytes=1000)
    assert decompress(bomb, Compression.ZSTD.sys_flag) == b"\0" * 1_000_000
    with pytest.raises(CorruptRecordError):
        decompress(bomb[:-3], Compression.ZSTD.sys_flag)


def test_a_false_claim_of_a_huge_size_reserves_no_memory() -> None:
    claim = bytes.fromhex("28b52ffde0") + (1 << 60).to_bytes(8, "little")
    with pytest.raises(CorruptRecordError, match="more than"):
        decompress(claim, Compression.ZSTD.sys_flag)


@kinds
def test_streams_that_end_early_are_corrupt(kind: Compression) -> None:
    whole = compress(bytes(range(256)) * 20, kind)
    for end in range(len(whole)):
        with pytest.raises(CorruptRecordError):
            decompress(whole[:end], kind.sys_flag)


@kinds
@given(body=st.binary(max_size=100))
def test_any_bytes_unpack_or_are_corrupt(kind: Compression, body: bytes) -> None:
    with suppress(CorruptRecordError):
        assert len(decompress(body, kind.sys_flag, limit_bytes=10_000)) <= 10_000


def test_unknown_type_is_named() -> None:
    with pytest.raises(CorruptRecordError, match="unknown compression type 0x400"):
        decompress(b"x", sysflag.COMPRESSED | 0x400)
