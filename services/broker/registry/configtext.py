"""The text of config/*.json. The text of each entry of a large table is kept from save to save.

Format: JSON in fastjson's pretty print (docs/formats/config.md): tabs, and no blank after a colon. A map whose keys are
integers is not broken into lines (`{0:250,1:250` and the brace on a line of its own).

Theory of operation. A broker may have 50,000 topics and 160,000 offsets. Encoding them takes half a second. A thread
would not help, because it holds the interpreter lock while it encodes. So the text of each entry is kept, and a
save encodes only the entries that changed since the last save. It does this in slices, and other work of the loop runs
between them. Another thread then joins the pieces of the whole text and writes them. It releases the interpreter lock
with every piece.

Concurrency: `refresh` and `take` run in the loop's thread. The iterator that `take` returns may run in any thread.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec

SLICE_BYTES: Final = 16 * 1024
"""Size of the text that is encoded in one turn of the loop; takes about half a millisecond."""
PIECE_BYTES: Final = 64 * 1024
"""Size of the text that is joined and written at once; takes a tenth of a millisecond."""

# The removal of an entry takes about as long as encoding this many bytes.
_REMOVED_BYTES: Final = 32
# After this many rounds, the rest is encoded in one turn, whatever its size.
_PASSES_MAX: Final = 8
_ENTRY_DEPTH: Final = 2

_scalar = msgspec.json.Encoder().encode


class EntryTexts:
    """The texts of a table's entries.

    Args:
        changed: Keys of the entries that are new, changed or removed since the last save. The owner of the table adds
            keys, and a save takes them out.
        find: Function that returns the value of an entry, or None if it was removed.
    """

    def __init__(self, changed: OrderedDict[str, None], find: Callable[[str], Any]) -> None:
        self._changed = changed
        self._find = find
        self._texts: dict[str, bytes] = {}

    @property
    def is_stale(self) -> bool:
        """Whether an entry has changed since its text was encoded."""
        return bool(self._changed)

    def refresh(self) -> Iterator[None]:
        """Encode the entries that have changed; yield after each slice."""
        size = 0
        for _ in range(len(self._changed)):
            # Take the keys one by one, so that the next save still has the rest if this save is cancelled.
            key, _ = self._changed.popitem(last=False)
            value = self._find(key)
            if value is None:
                self._texts.pop(key, None)
                size += _REMOVED_BYTES
            else:
                text = self._texts[key] = _entry(key, value)
                size += len(text)
            if size >= SLICE_BYTES:
                size = 0
                yield

    def take(self) -> list[bytes]:
        """Return the texts of all entries."""
        assert not self.is_stale, "refreshed in the same turn of the loop"
        return list(self._texts.values())


class ConfigText:
    """The text of one file.

    Args:
        members: Members of the JSON object, in order: a value that each save encodes, or the entries of a table.
    """

    def __init__(self, members: Mapping[str, Callable[[], Any] | EntryTexts]) -> None:
        self._members = members

    def refresh(self) -> Iterator[None]:
        """Encode the changed entries; yield after each slice. At the end, call `take` in the same turn of the loop."""
        tables = [member for member in self._members.values() if isinstance(member, EntryTexts)]
        for _ in range(_PASSES_MAX):
            # Between the slices, entries may have changed again. Each round has fewer of them.
            for table in tables:
                yield from table.refresh()
            if not any(table.is_stale for table in tables):
                return
        for table in tables:
            for _ in table.refresh():
                pass

    def take(self) -> Iterator[bytes]:
        """Return the current text, in pieces that the iterator joins when it reaches them."""
        parts: list[bytes | list[bytes]] = []
        separator = b"{\n\t"
        for name, member in self._members.items():
            parts += (separator, _scalar(name), b":")
            if not isinstance(member, EntryTexts):
                value: list[bytes] = []
                write_value(member(), 1, value)
                parts.append(b"".join(value))
            elif entries := member.take():
                parts += (b"{\n\t\t", entries, b"\n\t}")
            else:
                parts.append(b"{}")
            separator = b",\n\t"
        parts.append(b"\n}")
        return _chunks(parts)

    def encode(self) -> bytes:
        """Return the whole text at once, for callers without an event loop."""
        for _ in self.refresh():
            pass
        return b"".join(self.take())


def write_value(value: Any, depth: int, parts: list[bytes]) -> None:
    """Append the text of a value to `parts`.

    Args:
        value: A struct, a map with texts as keys, a map from integers to integers, or a value that fits on one line.
        depth: Depth of the line on which the value begins.
        parts: Pieces of the text.
    """
    if isinstance(value, msgspec.Struct):
        for beginning, name in _struct_members(type(value), depth):
            parts.append(beginning)
            member = getattr(value, name)
            if type(member) is dict and member:
                write_value(member, depth + 1, parts)
            else:
                parts.append(_scalar(member))
        parts.append(_end(depth))
    elif not isinstance(value, dict) or not value:
        parts.append(_scalar(value))
    elif all(isinstance(key, int) for key in value):
        parts += (b"{", b",".join([b"%d:%d" % item for item in value.items()]), _end(depth))
    else:
        indent = b"\n" + b"\t" * (depth + 1)
        separator = b"{" + indent
        for key, member in value.items():
            parts += (separator, _scalar(key), b":")
            write_value(member, depth + 1, parts)
            separator = b"," + indent
        parts.append(_end(depth))


@cache
def _struct_members(kind: type[msgspec.Struct], depth: int) -> list[tuple[bytes, str]]:
    """Return, for each member, the text before its value and its name."""
    indent = b"\n" + b"\t" * (depth + 1)
    return [
        ((b"," if number else b"{") + indent + _scalar(field.encode_name) + b":", field.name)
        for number, field in enumerate(msgspec.structs.fields(kind))
    ]


@cache
def _end(depth: int) -> bytes:
    return b"\n" + b"\t" * depth + b"}"


def _entry(key: str, value: Any) -> bytes:
    parts = [_scalar(key), b":"]
    write_value(value, _ENTRY_DEPTH, parts)
    return b"".join(parts)


def _chunks(parts: list[bytes | list[bytes]]) -> Iterator[bytes]:
    gathered: list[bytes] = []
    size = 0
    for part in parts:
        entries = [part] if isinstance(part, bytes) else part
        separator = b""
        for entry in entries:
            gathered += (separator, entry)
            size += len(entry)
            separator = b",\n\t\t"
            if size >= PIECE_BYTES:
                yield b"".join(gathered)
                gathered, size = [], 0
    yield b"".join(gathered)
