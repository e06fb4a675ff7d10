"""The hash of Java's `String.hashCode`. Tags codes, index keys and the choice of queues use it.

The hash is a polynomial in 31 over UTF-16 code units, modulo 2^32: `hash(a + b) = hash(a)·31^len(b) + hash(b)`. The
index hash is computed once or twice for every stored message. Thanks to this rule it can be combined from cached parts.

Source: java.lang.String.hashCode; docs/formats/indexfile.md for the index key.
"""

import struct
from functools import lru_cache
from operator import mul

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000
# There are precomputed weights for up to this number of code units. Longer texts are hashed piece by piece.
_PIECE = 64
_POWERS: tuple[int, ...] = tuple(pow(31, exponent, 1 << 32) for exponent in range(_PIECE + 1))
_WEIGHTS = tuple(tuple(_POWERS[length - 1 - place] for place in range(length)) for length in range(_PIECE + 1))

# The UNIQ_KEYs of one producer differ only in their last characters, so the hash of the head is nearly always cached.
_TAIL = 4
_HEADS_MAX = 4096
_heads: dict[str, int] = {}


def java_hash(text: str) -> int:
    """Return the result of `text.hashCode()` in Java: a signed 32-bit number, 0 for the empty text."""
    unsigned = _polynomial(text)
    return unsigned - (1 << 32) if unsigned & _SIGN else unsigned


def tags_code(tag: str | None) -> int:
    """Return the tags code of a ConsumeQueue unit: the hash of the tag, or 0 without a tag."""
    return _tag_hash(tag) if tag else 0


def index_key_hash(topic: str, key: str) -> int:
    """Return the hash of a key in the IndexFile: the absolute value of the hash of `topic#key`.

    The absolute value of -2^31 does not fit 32 bits. For this hash the result is 0, as in RocketMQ.
    """
    if len(key) > _TAIL and key.isascii():
        head = f"{topic}#{key[:-_TAIL]}"
        unsigned = _heads.get(head)
        if unsigned is None:
            if len(_heads) >= _HEADS_MAX:
                _heads.clear()
            # The cached value includes the factor 31^4 for the four characters of the tail.
            unsigned = _polynomial(head) * _POWERS[_TAIL] & _MASK
            _heads[head] = unsigned
        tail = key[-_TAIL:].encode()
        unsigned = (unsigned + tail[0] * 29791 + tail[1] * 961 + tail[2] * 31 + tail[3]) & _MASK
    else:
        unsigned = _polynomial(f"{topic}#{key}")
    if unsigned < _SIGN:
        return unsigned
    return (1 << 32) - unsigned if unsigned != _SIGN else 0


@lru_cache(maxsize=4096)
def _tag_hash(tag: str) -> int:
    return java_hash(tag)


def _polynomial(text: str) -> int:
    """Return the hash as an unsigned number."""
    units = text.encode() if text.isascii() else _utf16_units(text)
    count = len(units)
    if count <= _PIECE:
        return _weighted_sum(units) & _MASK
    total = 0
    for start in range(0, count, _PIECE):
        piece = units[start : start + _PIECE]
        total = (total * _POWERS[len(piece)] + _weighted_sum(piece)) & _MASK
    return total


def _weighted_sum(units: bytes | tuple[int, ...]) -> int:
    weighed: int = sum(map(mul, units, _WEIGHTS[len(units)]))
    return weighed


def _utf16_units(text: str) -> tuple[int, ...]:
    # A character outside the basic plane is two code units (surrogates). A lone surrogate is one code unit.
    data = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(data) // 2}H", data)
