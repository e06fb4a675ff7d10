"""Which units of a ConsumeQueue belong to messages with one of some tags.

A unit has the hash of the tag in its last 8 bytes. A scan looks at the lowest byte of many units at once: it takes every
twentieth byte, maps the bytes of wanted hashes to 1, and searches for 1. Only the units that it finds are compared.

With RocketMQ's `enableConsumeQueueExt`, the 8 bytes may instead hold an address in a file of the folder
`consumequeue_ext`: a number below the smallest hash. Such a unit matches, since clients compare the tags again.
"""

import struct
from collections.abc import Collection
from typing import Final

from gantry.storeformat.layout import UNIT_SIZE_BYTES

EXTENDED_MAX: Final = -(2**31) - 1
"""Largest number that is an address of RocketMQ's ConsumeQueueExt."""
_CODE = struct.Struct(">q")
_CODE_AT = UNIT_SIZE_BYTES - _CODE.size
# The highest byte of an address is the sign bit and nothing else, for the first 2^56 bytes of a file.
_EXTENDED_BYTE = 0x80


class TagCodes:
    """The hashes of the tags of a subscription."""

    __slots__ = ("_codes", "_table")

    def __init__(self, codes: Collection[int]) -> None:
        self._codes = frozenset(codes)
        table = bytearray(256)
        for code in codes:
            table[code & 0xFF] = 1
        self._table = bytes(table)

    def __call__(self, tags_code: int) -> bool:
        """Return whether a unit with these last 8 bytes may match."""
        return tags_code in self._codes or tags_code <= EXTENDED_MAX

    def find(self, units: bytes) -> list[int]:
        """Return the indexes of the units that may match, in order."""
        code_of = _CODE.unpack_from
        if _EXTENDED_BYTE in units[_CODE_AT::UNIT_SIZE_BYTES]:
            starts = range(_CODE_AT, len(units), UNIT_SIZE_BYTES)
            return [index for index, start in enumerate(starts) if self(code_of(units, start)[0])]
        lowest = units[UNIT_SIZE_BYTES - 1 :: UNIT_SIZE_BYTES].translate(self._table)
        found: list[int] = []
        index = lowest.find(1)
        while index >= 0:
            if code_of(units, index * UNIT_SIZE_BYTES + _CODE_AT)[0] in self._codes:
                found.append(index)
            index = lowest.find(1, index + 1)
        return found
