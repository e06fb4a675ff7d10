"""config/*.json: written as RocketMQ writes them, read as tolerantly as it reads them.

Format: JSON in fastjson's pretty print (docs/formats/config.md): tabs, no blank after a colon; a map whose keys are
integers is not broken into lines (`{0:250,1:250` and the brace on a line of its own).

Durability: what stood in NAME is in NAME.bak before NAME is replaced; either of them is whole after a crash. A file
that is missing, empty or broken is read from its .bak; if that is broken too, the start is refused: topics and offsets
that silently become empty are worse than a broker that does not start.
"""

import re
from typing import Any, TypeVar

import msgspec

from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem, write_atomically

_BACKUP = ".bak"

T = TypeVar("T")

_scalar = msgspec.json.Encoder().encode
# A string, to be passed over, or an integer that is a key.
_INTEGER_KEY = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?=\s*:)', re.DOTALL)


def encode_config(value: Any) -> bytes:
    """Encode a config file's content."""
    parts: list[bytes] = []
    _write(value, 0, parts)
    return b"".join(parts)


def read_config(files: FileSystem, path: str, kind: type[T]) -> T | None:
    """Read a config file, or its backup, as `kind`, a msgspec type.

    Returns:
        The value, or None where neither file holds anything.

    Raises:
        StartupError: There is something in the files and none of it can be read.
    """
    reasons = []
    for candidate in (path, path + _BACKUP):
        try:
            data = files.read(candidate)
        except FileNotFoundError:
            continue
        except OSError as error:
            reasons.append(f"{candidate}: {error.strerror or error}")
            continue
        if not data.strip(b" \t\r\n\0"):
            continue
        try:
            return msgspec.json.decode(_quote_keys(data), type=kind, strict=False)
        except (ValueError, RecursionError) as error:
            reasons.append(f"{candidate}: {error}")
    if reasons:
        raise StartupError(
            f"{'; '.join(reasons)}; repair the file, or move it away (what it holds would be lost), and start again"
        )
    return None


def write_config(files: FileSystem, path: str, data: bytes) -> None:
    """Replace a config file and keep the old content beside it; durable when it returns. Raises OSError."""
    try:
        old = files.read(path)
    except FileNotFoundError:
        old = b""
    if old:
        write_atomically(files, path + _BACKUP, old)
    write_atomically(files, path, data)


def _write(value: Any, depth: int, parts: list[bytes]) -> None:
    if isinstance(value, dict) and value:
        if all(isinstance(key, int) for key in value):
            _write_integer_keys(value, depth, parts)
            return
        indent = b"\n" + b"\t" * (depth + 1)
        separator = b"{" + indent
        for key, member in value.items():
            parts += (separator, _scalar(key), b":")
            _write(member, depth + 1, parts)
            separator = b"," + indent
        parts += (b"\n", b"\t" * depth, b"}")
    else:
        parts.append(_scalar(value))


def _write_integer_keys(value: dict[int, Any], depth: int, parts: list[bytes]) -> None:
    separator = b"{"
    for key, member in value.items():
        parts += (separator, b"%d:" % key)
        _write(member, depth + 2, parts)
        separator = b","
    parts += (b"\n", b"\t" * depth, b"}")


def _quote_keys(data: bytes) -> bytes:
    return _INTEGER_KEY.sub(lambda match: match[0] if match[0][0] == 0x22 else b'"%b"' % match[0], data)
