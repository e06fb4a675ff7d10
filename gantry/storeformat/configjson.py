"""Reads the JSON of `config/`; RocketMQ's writer leaves integer keys without quotes: `{0:8,1:7}`.

A broker that finds a file empty, missing or broken reads its `.bak` file instead. `read_config` implements this rule
for the broker and for the readers of a store that no broker runs on.

Source: docs/formats/config.md.
"""

import json
import re
from collections.abc import Callable
from errno import EBADMSG, EIO, ENODATA, EUCLEAN
from typing import Any, Final, Generic, NamedTuple, TypeVar

from gantry.runtime.files import FileSystem
from gantry.storeformat.errors import BrokenFileError

BACKUP_SUFFIX: Final = ".bak"
BROKEN_SUFFIX: Final = ".broken"
"""Suffix of a file that a broker could not read and has replaced with a new one."""
CONTENT_IS_LOST: Final = frozenset({EIO, EUCLEAN, EBADMSG, ENODATA})
"""Errors that a disk or file system reports if a file's content is lost; other errors say nothing about the file."""

IS_EMPTY: Final = "is empty"
IS_MISSING: Final = "is missing"

T = TypeVar("T")

# The pattern matches strings whole, so they stay unchanged; outside of strings, a number before a colon is a key.
_TEXT_OR_KEY = re.compile(r'"(?:[^"\\]|\\.)*+"|(?P<before>[{,]\s*+)(?P<key>-?\d++)(?=\s*+:)', re.DOTALL)
# An escape for half of a surrogate pair. JSON allows it to stand alone, UTF-8 does not.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# Preallocated blocks that were never written read as NUL bytes.
_BLANK = b" \t\r\n\0"


class ConfigFile(NamedTuple, Generic[T]):
    """A configuration file's content and where it was read."""

    content: T
    path: str
    problem: str | None
    """The problem with the main file, if the content comes from its backup; None otherwise."""
    data: bytes
    """The bytes that were read."""


class UnreadableConfigError(BrokenFileError):
    """Neither the file nor its backup can be read.

    Attributes:
        reasons: Why each existing file can't be used, by path.
        is_empty: Whether the files have no content.
        may_be_valid: Whether the last file in `reasons` may have good content, because it could not be opened.
    """

    def __init__(self, reasons: dict[str, str], *, may_be_valid: bool = False) -> None:
        path, reason = next(iter(reasons.items()))
        super().__init__(path, reason)
        self.reasons = reasons
        self.is_empty = all(reason in (IS_EMPTY, IS_MISSING) for reason in reasons.values())
        self.may_be_valid = may_be_valid


class RepeatedKeyError(ValueError):
    """A key occurs twice in one object, and readers would disagree on which value counts."""


def parse_config(data: bytes) -> Any:
    """Return the content of a configuration file; all keys are strings.

    Raises:
        ValueError: The data is not JSON, even if integer keys are allowed; or an object has a key twice, so one of the
            two values would be ignored; or a string can't be encoded as UTF-8.
    """
    try:
        text = data.decode("utf-8-sig")
        try:
            content = _parse(text)
        except RepeatedKeyError:
            raise
        except ValueError:
            content = _parse(_TEXT_OR_KEY.sub(_quote, text))
    except RepeatedKeyError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if _SURROGATE.search(text):
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("has a \\u escape that is no text: half of a surrogate pair") from None
    return content


def read_config(files: FileSystem, path: str, decode: Callable[[bytes], T]) -> ConfigFile[T] | None:
    """Return a configuration file's content, or its backup's content; None if neither file exists.

    Args:
        files: The file system that holds the file.
        path: The path of the main file.
        decode: Returns the content, as `parse_config` does; raises ValueError for bytes that it does not accept.

    Raises:
        UnreadableConfigError: The file is broken and no backup is usable, or a file can't be opened now.
    """
    reasons: dict[str, str] = {}
    may_be_valid = False
    for candidate in (path, path + BACKUP_SUFFIX):
        try:
            data = files.read(candidate)
            if not data.strip(_BLANK):
                reasons[candidate] = IS_EMPTY
                continue
            return ConfigFile(decode(data), candidate, reasons.get(path), data)
        except FileNotFoundError:
            reasons[candidate] = IS_MISSING
        except OSError as error:
            reasons[candidate] = f"can't be read: {error.strerror or error}"
            if error.errno not in CONTENT_IS_LOST:
                may_be_valid = True
                break  # No descriptors or no rights, for example: the file may be good, and the backup is older.
        except (ValueError, RecursionError) as error:
            reasons[candidate] = str(error)
    if all(reason == IS_MISSING for reason in reasons.values()):
        return None
    there = {path: reason for path, reason in reasons.items() if reason != IS_MISSING}
    raise UnreadableConfigError(there, may_be_valid=may_be_valid)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RepeatedKeyError(f"has {json.dumps(key, ensure_ascii=False)} twice in one object")
            seen.add(key)
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


_parse = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant).decode


def _quote(match: re.Match[str]) -> str:
    key = match["key"]
    return match[0] if key is None else f'{match["before"]}"{key}"'
