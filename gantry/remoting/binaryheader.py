"""ROCKETMQ header encoding: the compact binary form.

Format (big-endian; docs/formats/remoting.md):
    offset  size  field
    0       2     code, signed: this form can't carry codes above 32,767
    2       1     language
    3       2     version, signed
    5       4     opaque
    9       4     flag
    13      4     remark_size_bytes, 0 = no remark
    17      n     remark, UTF-8
    17+n    4     ext_size_bytes, 0 = no ext fields
    21+n    m     pairs: key_size 2, key, value_size 4, value; UTF-8; a pair with an empty key or value is dropped

Source: RocketMQ RocketMQSerializable.
"""

import struct
from typing import TypeVar

from gantry.remoting.codes import LanguageCode
from gantry.remoting.errors import LocalProtocolError, RemoteProtocolError
from gantry.remoting.wireheader import UNKNOWN_LANGUAGE, WireHeader

H = TypeVar("H", bound=WireHeader)

_FIXED = struct.Struct(">hBhiii")
_INT32 = struct.Struct(">i")
_KEY_SIZE = struct.Struct(">h")
FIXED_BYTES = _FIXED.size + _INT32.size
assert FIXED_BYTES == 21  # As in the table above.

_LANGUAGE_NAMES = tuple(code.name for code in sorted(LanguageCode))
_LANGUAGE_CODES = {name: code for code, name in enumerate(_LANGUAGE_NAMES)}
assert _LANGUAGE_CODES["NODE_JS"] == LanguageCode.NODE_JS  # Codes are dense from 0.


def decode_binary_header(data: bytes, header_type: type[H]) -> H:
    """Decode the bytes of a binary header.

    Raises:
        RemoteProtocolError: A size points past the end of the header, or a string is not UTF-8.
    """
    end = len(data)
    if end < FIXED_BYTES:
        raise RemoteProtocolError(f"binary header of {end} bytes, its fixed part has {FIXED_BYTES}")
    code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(data)
    at = _FIXED.size
    if not 0 <= remark_size <= end - FIXED_BYTES:
        raise RemoteProtocolError(f"binary header: remark of {remark_size} bytes in a header of {end}")
    try:
        remark = str(data[at : at + remark_size], "utf-8") if remark_size else None
        at += remark_size
        (ext_size,) = _INT32.unpack_from(data, at)
        at += _INT32.size
        if not 0 <= ext_size <= end - at:
            raise RemoteProtocolError(f"binary header: ext fields of {ext_size} bytes in a header of {end}")
        ext_fields = _decode_pairs(data, at, at + ext_size) if ext_size else {}
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"binary header: {error}") from None
    name = _LANGUAGE_NAMES[language] if language < len(_LANGUAGE_NAMES) else UNKNOWN_LANGUAGE
    return header_type(code, ext_fields, flag, name, opaque, remark, version)


def encode_binary_header(header: WireHeader) -> bytes:
    """Encode a header in the binary form.

    Raises:
        LocalProtocolError: A number or a string does not fit its field.
    """
    try:
        remark = header.remark.encode() if header.remark else b""
        pairs = bytearray()
        for key, value in header.ext_fields.items():
            key_bytes, value_bytes = key.encode(), value.encode()
            pairs += _KEY_SIZE.pack(len(key_bytes))
            pairs += key_bytes
            pairs += _INT32.pack(len(value_bytes))
            pairs += value_bytes
        language = _LANGUAGE_CODES.get(header.language_name, LanguageCode.OTHER)
        fixed = _FIXED.pack(header.code, language, header.version, header.opaque, header.flag, len(remark))
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"code {header.code} can't travel in a binary header: {error}") from None
    return b"".join((fixed, remark, _INT32.pack(len(pairs)), pairs))


def _decode_pairs(data: bytes, at: int, end: int) -> dict[str, str]:
    pairs: dict[str, str] = {}
    key_size_at, value_size_at = _KEY_SIZE.unpack_from, _INT32.unpack_from
    try:
        while at < end:
            (key_size,) = key_size_at(data, at)
            at += 2
            key = str(data[at : at + key_size], "utf-8")
            at += key_size
            (value_size,) = value_size_at(data, at)
            at += 4
            if key_size < 0 or value_size < 0 or at + value_size > end:
                raise RemoteProtocolError(f"binary header: pair of {key_size} and {value_size} bytes at {at}")
            if key_size and value_size:
                pairs[key] = str(data[at : at + value_size], "utf-8")
            at += value_size
    except struct.error:
        raise RemoteProtocolError(f"binary header: ext fields end within a pair at {at}") from None
    return pairs
