"""The stored id (offsetMsgId): the address of the store and the physical offset of the record, in hex.

Format: IP (4 or 16 bytes), port (4), physical offset (8), written as 32 or 56 upper-case hex digits.
"""

import struct
from typing import Final

from gantry.model.address import PORT_MAX, Address, pack_host, unpack_host
from gantry.model.errors import InvalidIdError

STORED_ID_V4_LENGTH: Final = 32
STORED_ID_V6_LENGTH: Final = 56

_OFFSET = struct.Struct(">q")
_OFFSET_MASK: Final = 2**64 - 1
# A reader sees the messages of a few stores.
_PREFIXES_CACHED_MAX: Final = 256
_prefixes: dict[Address, str] = {}


def encode_stored_id(store_host: Address, physical: int) -> str:
    """Return the id of the record at physical offset `physical` in the store at `store_host`."""
    prefix = _prefixes.get(store_host)
    if prefix is None:
        if len(_prefixes) >= _PREFIXES_CACHED_MAX:
            _prefixes.clear()
        prefix = _prefixes[store_host] = pack_host(store_host).hex().upper()
    return f"{prefix}{physical & _OFFSET_MASK:016X}"


def encode_packed_stored_id(store_host: bytes, physical: int) -> str:
    """Return the id, given the address in the format of a record."""
    return (store_host + _OFFSET.pack(physical)).hex().upper()


def decode_stored_id(text: str) -> tuple[Address, int]:
    """Return the address of the store and the physical offset that an id contains.

    Raises:
        InvalidIdError: The text is not 32 or 56 hex digits, or the port or the offset is out of range.
    """
    if len(text) not in (STORED_ID_V4_LENGTH, STORED_ID_V6_LENGTH):
        raise InvalidIdError("stored_id", text, f"has {len(text)} characters instead of 32 or 56")
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    # bytes.fromhex skips blanks. The length of the result shows whether all characters were digits.
    if len(data) * 2 != len(text):
        raise InvalidIdError("stored_id", text, "holds characters that are no hex digits")
    address = unpack_host(data[:-8])
    (physical,) = _OFFSET.unpack_from(data, len(data) - 8)
    if address.port > PORT_MAX:
        raise InvalidIdError("stored_id", text, f"holds port {address.port}")
    if physical < 0:
        raise InvalidIdError("stored_id", text, f"holds the negative offset {physical}")
    return address, physical
