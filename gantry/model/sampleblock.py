"""Sample blocks: one sample of all groups and topics of one broker, encoded as bytes.

A *pair* is a group and a topic, or a topic without a group. For each pair, a block has the queues, their offsets, and the
age of the oldest unconsumed message. There are three kinds of content, all in one format:

| content | contains |
|---|---|
| full | all pairs, with names and absolute numbers |
| state | all pairs, as differences from a full block, its *base*; an unlisted pair is the same as in the base |
| changes | only the pairs that differ from the previous block, as differences from the base |

A reader of a block needs its base and no other block. So damage to one block that is no base loses only one sample.

Numbers are columns of 64-bit words, stored in planes of bytes: first the lowest byte of all words, then the next. Most
words are small. Their high planes are left out, and the other planes compress well. Only `zigzag` creates a Python
object for each number.

Format: docs/formats/samples.md. ADR 0022.
"""

import enum
import json
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import zstandard

from gantry.model.errors import ModelError

VERSION: Final = 3
_AGE_MAX: Final = 2**64 - 3
"""Largest age in blocks of old versions; their even ages grow by 2, and must still fit into 64 bits."""
_VERSION_WITHOUT_AGE_NONE: Final = 2
"""Its blocks do not distinguish a pair without a message from one whose oldest message is unknown."""
_VERSION_WITHOUT_SERVED: Final = 1
"""Besides, its blocks do not say whether consumers were connected."""
WORDS_MAX: Final = 32 * 1024 * 1024
"""Largest number of words in a block. 50,000 pairs with 64 queues each have less than half of it."""
BODY_BYTES_MAX: Final = 8 * WORDS_MAX + 64 * 1024 * 1024
"""Largest size of an uncompressed block: WORDS_MAX words, and room for the names of 50,000 pairs."""
LEVEL: Final = 3

Pair: TypeAlias = tuple[str | None, str]
"""Group and topic. The group is None for a topic without a group."""
Words: TypeAlias = "array[int]"
"""A column of unsigned 64-bit words (type code Q)."""

_COUNTS: Final = struct.Struct("<6I")
_WHOLE_COLUMNS: Final = 4
_CHANGED_COLUMNS: Final = 3
SERVED: Final = (None, False, True)
"""Meanings of the words in `Section.served`: unknown, not connected, connected."""
AGE_UNKNOWN: Final = 0
"""Code of an unknown age."""
AGE_NONE: Final = 1
"""Code of a pair that has no unconsumed message that the group's filter accepts."""


class Kind(enum.IntEnum):
    """Purpose of a block. Blocks from STATE on describe all pairs."""

    CHANGES = 0  # Changes since the previous block.
    MINUTE = 1  # Changes in one minute: several blocks of CHANGES, merged.
    STATE = 2  # All pairs, every few minutes.
    QUARTER = 3  # All pairs: the last STATE of 15 minutes.
    FULL = 4  # All pairs, every hour: the base of the blocks after it.
    HOUR = 5  # All pairs: the last FULL of an hour. No block uses it as its base any longer.


class SampleBlockError(ModelError):
    """The bytes are not a valid sample block, or a block would be too large. Readers skip the block and report it."""


@dataclass(frozen=True, slots=True)
class Section:
    """Columns of some pairs and of their queues.

    Attributes:
        counts: Number of queues, one word for each pair. A pair without queues is gone.
        ages: `age_code` of the oldest unconsumed message or AGE_NONE, zigzag, one word for each pair.
        columns: Words of all queues, pair after pair. A full block has queue ids, and as zigzag: max offsets, messages held
            (max - min) and `behind_code`. Other blocks have, as zigzag, the differences from the base: of the max offset,
            the min offset and `behind_code`.
        served: Index into SERVED, one word for each pair: whether a consumer was connected when the last movement of
            the pair's commits was seen.
    """

    counts: Words
    ages: Words
    columns: tuple[Words, ...]
    served: Words

    def slices(self) -> Iterable[slice]:
        """Yield the slice of each pair's queues in the columns."""
        at = 0
        for count in self.counts:
            yield slice(at, at + count)
            at += count


@dataclass(frozen=True, slots=True)
class Block:
    """Content of a block.

    Attributes:
        pairs: Pairs of the section `whole`.
        whole: Pairs with absolute numbers: all pairs of a full block. In other blocks, the pairs that are not in the base
            with the same queues.
        bases: Indexes in the base of the pairs in the section `changed`.
        changed: Pairs as differences from the base.
        gone: Indexes in the base of pairs that no longer exist, or that are in `whole`. In blocks of changes: of those
            pairs that ceased to exist or to have the base's queues.
    """

    pairs: Sequence[Pair]
    whole: Section
    bases: Words
    changed: Section
    gone: Words


def words(values: Iterable[int] = ()) -> Words:
    """Return numbers from 0 to 2**64 - 1 as a column. Raises OverflowError."""
    return array("Q", values)


def zigzag(values: Iterable[int]) -> Words:
    """Return signed numbers as a column: 0, -1, 1, -2 … as 0, 1, 2, 3 …, so that the high planes of small numbers are empty.

    Raises:
        OverflowError: A number needs more than 64 bits.
    """
    return array("Q", [value + value if value >= 0 else -1 - value - value for value in values])


def empty_section(*, is_whole: bool) -> Section:
    """Return a section without pairs."""
    columns = _WHOLE_COLUMNS if is_whole else _CHANGED_COLUMNS
    return Section(words(), words(), tuple(words() for _ in range(columns)), words())


def behind_code(max_offset: int, committed: int | None) -> int:
    """Return the lag of a commit: 0 without a commit, n + 1 for n messages, -n for a commit n messages beyond the end."""
    if committed is None:
        return 0
    return max_offset - committed + 1 if committed <= max_offset else max_offset - committed


def age_code(at_ms: int, stored_at_ms: int | None) -> int:
    """Return the age of a message at the time of the block: n + 2 for n ms, -n for n ms ahead; None: AGE_UNKNOWN."""
    if stored_at_ms is None:
        return AGE_UNKNOWN
    return at_ms - stored_at_ms + 2 if stored_at_ms <= at_ms else at_ms - stored_at_ms


def stored_at(code: int, at_ms: int) -> int:
    """Return the store time in ms of the message of an `age_code` other than AGE_UNKNOWN and AGE_NONE."""
    return at_ms - (code - 2 if code > 0 else code)


def encode_block(block: Block) -> bytes:
    """Return a block as bytes. Raises SampleBlockError if it would be too large."""
    names: dict[str, int] = {}
    groups = words(0 if group is None else names.setdefault(group, len(names)) + 1 for group, _ in block.pairs)
    topics = words(names.setdefault(topic, len(names)) for _, topic in block.pairs)
    text = json.dumps(list(names), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    whole, changed = block.whole, block.changed
    counts = (
        *(len(text), len(block.pairs), len(whole.columns[0]), len(block.bases), len(changed.columns[0])),
        len(block.gone),
    )
    _check_words(counts)
    body = b"".join(
        [
            _COUNTS.pack(*counts),
            text,
            *map(_byte_planes, (groups, topics, whole.counts, whole.ages, whole.served, *whole.columns)),
            *map(_byte_planes, (block.bases, changed.counts, changed.ages, changed.served, *changed.columns)),
            _byte_planes(block.gone),
            bytes([VERSION]),
        ]
    )
    if len(body) > BODY_BYTES_MAX:
        raise SampleBlockError(f"{len(body)} bytes are more than {BODY_BYTES_MAX}")
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True)
    return bytes([VERSION]) + compressor.compress(body)


def decode_block(data: bytes | memoryview) -> Block:
    """Return the block that `encode_block` encoded. Raises SampleBlockError."""
    version, body = _decompress(bytes(data))
    reader = _Reader(body, version)
    counts = reader.counts()
    # The counts are checked before memory is reserved, because the body may be too short for that many words.
    _check_words(counts)
    text_bytes, whole_pairs, whole_queues, changed_pairs, changed_queues, gone = counts
    names = _names(reader.take(text_bytes))
    groups, topics = reader.column(whole_pairs), reader.column(whole_pairs)
    whole = reader.section(whole_pairs, whole_queues, _WHOLE_COLUMNS)
    bases = reader.column(changed_pairs)
    changed = reader.section(changed_pairs, changed_queues, _CHANGED_COLUMNS)
    block_gone = reader.column(gone)
    if version > _VERSION_WITHOUT_AGE_NONE and reader.take(1)[0] != version:
        raise SampleBlockError("its first byte, the version, differs from its last one")
    reader.end()
    if max(groups, default=0) > len(names) or max(topics, default=-1) >= len(names):
        raise SampleBlockError(f"a pair refers to a name beyond the last of {len(names)} names")
    pairs = [(names[group - 1] if group else None, names[topic]) for group, topic in zip(groups, topics, strict=True)]
    return Block(pairs, whole, bases, changed, block_gone)


def merge_changes(blocks: Sequence[tuple[int, Block]]) -> Block:
    """Return consecutive blocks of changes merged into one. For each pair, the last block with this pair counts.

    Args:
        blocks: Times in ms, and changes from the same base, sorted by time. The merged block has the last time.
    """
    whole: dict[Pair, _Part] = {}
    changed: dict[int, _Part] = {}
    gone: set[int] = set()
    until_ms = blocks[-1][0]
    for at_ms, block in blocks:
        for base in block.gone:
            changed.pop(base, None)
        gone = gone.union(block.gone).difference(block.bases)
        for index, (pair, part) in enumerate(zip(block.pairs, block.whole.slices(), strict=True)):
            whole[pair] = _Part(block.whole, index, part, until_ms - at_ms)
        for index, (base, part) in enumerate(zip(block.bases, block.changed.slices(), strict=True)):
            changed[base] = _Part(block.changed, index, part, until_ms - at_ms)
    order = sorted(changed)
    return Block(
        list(whole),
        _collect(whole.values(), is_whole=True),
        words(order),
        _collect((changed[base] for base in order), is_whole=False),
        words(sorted(gone)),
    )


class _Part(NamedTuple):
    """A pair of a section. `earlier_ms` is the time between its block and the merged block."""

    section: Section
    place: int
    queues: slice
    earlier_ms: int


def _add_age(word: int, by_ms: int) -> int:
    """Return the zigzag age of the same message at a time `by_ms` later."""
    code = -(word >> 1) - 1 if word & 1 else word >> 1
    if code in (AGE_UNKNOWN, AGE_NONE) or by_ms == 0:
        return word
    return zigzag([age_code(by_ms, stored_at(code, 0))])[0]


def _collect(parts: Iterable[_Part], *, is_whole: bool) -> Section:
    made = empty_section(is_whole=is_whole)
    for part in parts:
        made.counts.append(part.section.counts[part.place])
        made.ages.append(_add_age(part.section.ages[part.place], part.earlier_ms))
        made.served.append(part.section.served[part.place])
        for column, source in zip(made.columns, part.section.columns, strict=True):
            column.extend(source[part.queues])
    return made


def _check_words(counts: tuple[int, ...]) -> None:
    _, whole_pairs, whole_queues, changed_pairs, changed_queues, gone = counts
    whole = 5 * whole_pairs + _WHOLE_COLUMNS * whole_queues
    total = whole + 4 * changed_pairs + _CHANGED_COLUMNS * changed_queues + gone
    if total > WORDS_MAX:
        raise SampleBlockError(f"{total} words are more than {WORDS_MAX}")


def _byte_planes(column: Words) -> bytes:
    width = (max(column, default=0).bit_length() + 7) // 8
    data = _to_little_endian(column).tobytes()
    return bytes([width]) + b"".join(data[plane::8] for plane in range(width))


def _to_little_endian(column: Words) -> Words:
    if sys.byteorder == "big":  # pragma: no cover - no such machine here.
        column = column[:]
        column.byteswap()
    return column


def _decompress(data: bytes) -> tuple[int, bytes]:
    """Return the version of a block and its uncompressed body."""
    if not data or data[0] not in (_VERSION_WITHOUT_SERVED, _VERSION_WITHOUT_AGE_NONE, VERSION):
        raise SampleBlockError(f"version {data[0]} is above {VERSION}" if data else "it is empty")
    frame = data[1:]
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= BODY_BYTES_MAX:
            raise SampleBlockError(f"its uncompressed size is {size} bytes; at most {BODY_BYTES_MAX} are allowed")
        decompressor = zstandard.ZstdDecompressor(max_window_size=BODY_BYTES_MAX)
        return data[0], decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise SampleBlockError(f"it can't be decompressed: {error}") from None


def _names(text: bytes) -> list[str]:
    try:
        names = json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise SampleBlockError(f"its names can't be read: {error}") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SampleBlockError("its names are no list of texts")
    return names


class _Reader:
    """Reads a body from begin to end. Raises SampleBlockError if the body is too short or too long."""

    def __init__(self, body: bytes, version: int) -> None:
        self._body = memoryview(body)
        self._version = version
        self._at = 0

    def counts(self) -> tuple[int, ...]:
        return _COUNTS.unpack(self.take(_COUNTS.size))

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._body):
            raise SampleBlockError(f"it has {len(self._body)} bytes and needs {end} or more")
        found = bytes(self._body[self._at : end])
        self._at = end
        return found

    def column(self, count: int) -> Words:
        width = self.take(1)[0]
        if width > 8:
            raise SampleBlockError(f"a word of {width} bytes")
        data = bytearray(8 * count)
        for plane in range(width):
            data[plane::8] = self.take(count)
        column = words()
        column.frombytes(data)
        return _to_little_endian(column)

    def section(self, pairs: int, queues: int, columns: int) -> Section:
        counts, ages = self.column(pairs), self.column(pairs)
        if self._version <= _VERSION_WITHOUT_AGE_NONE:
            # There 0 stands for no message, too, and n + 1 for n ms.
            if any(word > _AGE_MAX and not word & 1 for word in ages):
                raise SampleBlockError("an age that no block of its version can have")
            ages = words(word if word == 0 or word & 1 else word + 2 for word in ages)
        has_served = self._version > _VERSION_WITHOUT_SERVED
        served = self.column(pairs) if has_served else words([0]) * pairs
        if sum(counts) != queues:
            raise SampleBlockError(f"the pairs have {sum(counts)} queues, but the block has {queues}")
        if max(served, default=0) >= len(SERVED):
            raise SampleBlockError(f"the value {max(served)} of `served` is unknown")
        return Section(counts, ages, tuple(self.column(queues) for _ in range(columns)), served)

    def end(self) -> None:
        if self._at != len(self._body):
            raise SampleBlockError(f"{len(self._body) - self._at} bytes too many")
