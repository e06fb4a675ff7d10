import struct

import pytest

from gantry.remoting.binaryheader import decode_binary_header, encode_binary_header
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import LocalProtocolError, RemoteProtocolError
from gantry.remoting.wireheader import WireHeader


def binary(
    *, remark: bytes = b"", pairs: bytes = b"", remark_size: int | None = None, ext_size: int | None = None
) -> bytes:
    size = len(remark) if remark_size is None else remark_size
    ext = len(pairs) if ext_size is None else ext_size
    return struct.pack(">hBhiii", 10, 0, 479, 1, 0, size) + remark + struct.pack(">i", ext) + pairs


def pair(key: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value


def test_empty_values_and_keys_read_as_absent():
    header = decode_binary_header(binary(pairs=pair(b"a", b"") + pair(b"", b"1") + pair(b"c", b"3")), WireHeader)

    assert header.ext_fields == {"c": "3"}


def test_an_unknown_language_is_other():
    data = bytearray(binary())
    data[2] = 200

    assert decode_binary_header(bytes(data), WireHeader).language_name == "OTHER"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(20),
        binary(remark_size=1),
        binary(remark_size=-1),
        binary(remark_size=2**31 - 1),
        binary(ext_size=1),
        binary(ext_size=-1),
        binary(remark=b"\xff"),
        binary(pairs=pair(b"\xff", b"1")),
        binary(pairs=pair(b"a", b"\xff")),
        binary(pairs=b"\0"),
        binary(pairs=b"\0\x01a\0\0"),
        binary(pairs=b"\0\x05a\0\0\0\0"),
        binary(pairs=b"\xff\xff" + bytes(8)),
        binary(pairs=b"\0\x01a\xff\xff\xff\xff"),
        binary(pairs=b"\0\x01a\0\0\0\x02b"),
    ],
    ids=lambda data: data.hex()[-24:],
)
def test_wrong_sizes_and_texts_that_are_not_utf8_are_refused(data: bytes):
    with pytest.raises(RemoteProtocolError, match="binary header"):
        decode_binary_header(data, WireHeader)


@pytest.mark.parametrize(
    "command",
    [
        RemotingCommand(code=200_050),
        RemotingCommand(code=10, version=40_000),
        RemotingCommand(code=10, opaque=2**31),
        RemotingCommand(code=10, ext_fields={"k" * 40_000: "v"}),
    ],
)
def test_a_value_too_large_for_a_binary_header_is_refused(command: RemotingCommand):
    with pytest.raises(LocalProtocolError, match="can't travel in a binary header"):
        encode_binary_header(command)
