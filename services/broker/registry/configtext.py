"""The text of config/*.json, with the entries of large tables kept from save to save.

Format: JSON in fastjson's pretty print (docs/formats/config.md): tabs, no blank after a colon; a map whose keys are
integers is not broken into lines (`{0:250,1:250` and the brace on a line of its own).

Theory of operation. A broker may have 50,000 topics and 160,000 offsets. Encoding them takes half a second, and a
thread that encodes holds the interpreter as much as the loop does. So each entry's text is kept, and a save encodes
those that changed since the last one, in slices between which the loop turns. The pieces of the whole text are then
joined and written in another thread, which gives the interpreter up with every piece.

Concurrency: `refresh` and `take` in the loop's thread, the iterator that `take` returns in any.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec

SLICE_BYTES: Final = 16 * 1024
"""Text that is encoded between two turns of the loop, about half a millisecond."""
PIECE_BYTES: Final = 64 * 1024
"""Text that is joined and written at once, a tenth of a millisecond."""

# A removed entry costs about as much as so much text.
_REMOVED_BYTES: Final = 32
# After so many rounds the rest is encoded in one turn, however much it is.
_PASSES_MAX: Final = 8
_ENTRY_DEPTH: Final = 2

_scalar = msgspec.json.Encoder().encode


class EntryTexts:
    """The texts of a table's entries.

    Args:
        changed: The keys of entries that are new, changed or gone since the last save; the table's owner adds to
            it, and a save takes them out.
        find: Returns an entry's value, or None if it is gone.
    """

    def __init__(self, changed: OrderedDict[str, None], find: Callable[[str], Any]) -> None:
        self._changed = changed
        self._find = find
        self._texts: dict[str, bytes] = {}

    @property
    def is_stale(self) -> bool:
        """Whether an entry has changed since its text was made."""
        return bool(self._changed)

    def refresh(self) -> Iterator[None]:
        """Encode what has changed by now, yielding after each slice."""
        size = 0
        for _ in range(len(self._changed)):
            # One by one, so that a save that is given up half way leaves nothing out of the next one.
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
        """Return all texts."""
        assert not self.is_stale, "refreshed in the same turn of the loop"
        return list(self._texts.values())


class ConfigText:
    """The text of one file.

    Args:
        members: The members of its object, in order: a value that is encoded with each save, or a table's entries.
    """

    def __init__(self, members: Mapping[str, Callable[[], Any] | EntryTexts]) -> None:
        self._members = members

    def refresh(self) -> Iterator[None]:
        """Encode what has changed, yielding after each slice. When it ends, `take` in the same turn of the loop."""
        tables = [member for member in self._members.values() if isinstance(member, EntryTexts)]
        for _ in range(_PASSES_MAX):
            # While the loop turned, entries may have changed again, each time fewer of them.
            for table in tables:
                yield from table.refresh()
            if not any(table.is_stale for table in tables):
                return
        for table in tables:
            for _ in table.refresh():
                pass

    def take(self) -> Iterator[bytes]:
        """Return the text as it is now, in pieces that are joined when they are asked for."""
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
        return _pieces(parts)

    def encode(self) -> bytes:
        """Return the whole text, at once; for whoever has no loop."""
        for _ in self.refresh():
            pass
        return b"".join(self.take())


def write_value(value: Any, depth: int, parts: list[bytes]) -> None:
    """Add a value's text to `parts`.

    Args:
        value: A struct, a map with texts or, to integers, integers as keys, or anything that fits a line.
        depth: Depth of the line in which it begins.
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
    """Return what stands before each member's value, and the member's name."""
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


def _pieces(parts: list[bytes | list[bytes]]) -> Iterator[bytes]:
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
