"""Texts in the format of Java properties: the bodies of 25, 26, 318 and 319.

Format: one `key=value` per line. RocketMQ writes the text without escapes and reads it with java.util.Properties.
That class supports comments (`#`, `!`), `:` or a blank as separator, backslash escapes, and lines that continue after a
backslash.
"""

import re
from collections.abc import Iterator, Mapping

from gantry.remoting.errors import BodyError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX4 = re.compile("[0-9a-fA-F]{4}")
_BLANKS = " \t\f"


def encode_properties_text(properties: Mapping[str, str]) -> bytes:
    """Return the text, sorted by key. Backslashes and line ends in values are escaped; decoding restores them."""
    lines = []
    for key in sorted(properties):
        value = properties[key].replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{key}={value}\n")
    return "".join(lines).encode()


def decode_properties_text(data: bytes) -> dict[str, str]:
    """Decode the text. If a key occurs more than once, its last value is used.

    Raises:
        BodyError: The data is not UTF-8, or an escape is invalid.
    """
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise BodyError("properties", "", str(error)) from None
    return dict(_split(line) for line in _logical_lines(text))


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = raw.lstrip(_BLANKS)
        if not pending and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _split(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line) and line[at] not in "=:" + _BLANKS:
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return _unescape(key), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        if character != "\\" or at + 1 == len(text):
            parts.append(character)
            at += 1
        elif text[at + 1] == "u":
            digits = text[at + 2 : at + 6]
            if _HEX4.fullmatch(digits) is None:
                raise BodyError("properties", "", f"\\u{digits} is no escape")
            parts.append(chr(int(digits, 16)))
            at += 6
        else:
            parts.append(_ESCAPES.get(text[at + 1], text[at + 1]))
            at += 2
    return "".join(parts)
