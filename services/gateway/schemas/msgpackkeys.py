"""Search for repeated keys in MessagePack maps; decoders silently keep the last value.

This search runs only if a cheaper test cannot exclude repeated keys (outgoing.py), so it favors clarity over speed. A
decoder has accepted the bytes before, so they are complete.

Source: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from typing import Final

# First byte → size of the length field, for values with a length in bytes.
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXT_SIZED: Final = frozenset({0xC7, 0xC8, 0xC9})
# First byte → number of bytes that follow, for values of a fixed size.
_FIXED: Final = {
    **dict.fromkeys((0xC0, 0xC1, 0xC2, 0xC3), 0),
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
# First byte → size of the count field.
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}


def find_duplicate_key(data: bytes) -> str | None:
    """Return the first key that its map repeats, or None.

    Args:
        data: One complete value that a decoder has accepted.

    Raises:
        RecursionError: The value is nested too deeply.
    """
    return _KeyScanner(data).value(0)[1]


class _KeyScanner:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def value(self, at: int) -> tuple[int, str | None]:
        """Return the end of the value, and a key that a map in it repeats, or None."""
        first = self._data[at]
        at += 1
        if first <= 0x7F or first >= 0xE0:
            return at, None
        if first <= 0x8F:
            return self._map(at, first & 0x0F)
        if first <= 0x9F:
            return self._items(at, first & 0x0F)
        if first <= 0xBF:
            return at + (first & 0x1F), None
        if first in _FIXED:
            return at + _FIXED[first], None
        if first in _SIZED:
            size, at = self._number(at, _SIZED[first])
            return at + size + (first in _EXT_SIZED), None
        if first in _ARRAYS:
            count, at = self._number(at, _ARRAYS[first])
            return self._items(at, count)
        count, at = self._number(at, _MAPS[first])
        return self._map(at, count)

    def _number(self, at: int, width: int) -> tuple[int, int]:
        return int.from_bytes(self._data[at : at + width], "big"), at + width

    def _items(self, at: int, count: int) -> tuple[int, str | None]:
        for _ in range(count):
            at, twice = self.value(at)
            if twice is not None:
                return at, twice
        return at, None

    def _map(self, at: int, count: int) -> tuple[int, str | None]:
        seen: set[bytes] = set()
        for _ in range(count):
            start = at
            at, twice = self.value(at)
            if twice is not None:
                return at, twice
            # A text may have a short or a long length field, so keys are compared without it.
            key = self._text(start, at)
            if key is not None and key in seen:
                return at, key.decode("utf-8", "replace")
            if key is not None:
                seen.add(key)
            at, twice = self.value(at)
            if twice is not None:
                return at, twice
        return at, None

    def _text(self, start: int, end: int) -> bytes | None:
        first = self._data[start]
        if 0xA0 <= first <= 0xBF:
            return self._data[start + 1 : end]
        if first in (0xD9, 0xDA, 0xDB):
            return self._data[start + 1 + _SIZED[first] : end]
        return None
