"""Strict decoding of JSON: typed, without unknown fields, and without repeated keys in an object.

The errors of bodies and messages are here, too. `problem` is the name of the problem type that the client receives
(services/gateway/errors.py).

msgspec decodes and checks types in one step. If an object repeats a key, msgspec keeps the last value and reports
nothing. Only a slow parser in Python finds the repeated key, so a count decides whether it must run. In a JSON text, one
`:` follows each key, and every other `:` is inside a string. The text is decoded and encoded again; the result lacks the
`:` of each dropped key, and no other. So if both texts have the same number of `:`, no key was repeated. The slow parser
runs only if the numbers differ, or if the text has an escaped `:`, which the encoder writes unescaped.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from gantry.model.errors import NO_VALUE, InvalidValueError

T = TypeVar("T")

# Every escape of `:` begins like this. A text that contains it goes to the slow parser.
ESCAPED_COLON: Final = b"\\u003"

# To show the faulty value, the text is parsed a second time. The errors of longer texts do not show it.
EXPLAINED_BYTES_MAX: Final = 64 * 1024
# The limit for an excerpt of the text in an error.
_SHOWN_BYTES: Final = 40
# Characters of msgspec's message that are kept at its start, and at its end.
_EXCERPT_CHARS: Final = 512

_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected `([^`]*)`(.*?)(?:, got `([^`]*)`)?", re.DOTALL)
_TYPES: Final = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "bytes": "bytes",
    "null": "null",
}
_UNLISTED_CHOICE: Final = "is not one of the allowed values"
_PATTERN = re.compile(r" matching regex '.*'", re.DOTALL)
# The meaning of the contract's patterns, by a part of each.
_PATTERN_WORDS: Final = {
    "[1-9][0-9]{0,18}": ' that holds a whole number, such as "42"',
    "[*%|a-zA-Z0-9_-]": " of letters, digits, *, %, |, _ and -",
    "[!-~]{1,128}": " of 1 to 128 visible ASCII characters",
    "[!-.0-~]": " of visible ASCII characters without /",
    "x1f": " without control characters",
}
_TRAILING = re.compile(r"JSON is malformed: trailing characters \(byte (\d+)\)")
_TRUNCATED: Final = "Input data was truncated"
_BYTE = re.compile(r"\(byte (\d+)\)")
# An escaped half of a surrogate pair.
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_PATH_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")


class UnreadableError(InvalidValueError):
    """The bytes are not what their content type says: JSON that can't be parsed, for example."""

    problem = "malformed-body"


class UnknownFieldError(InvalidValueError):
    """The API has no such field."""

    problem = "unknown-field"


class DuplicateError(InvalidValueError):
    """A key is repeated in one object, or a parameter is given twice."""

    problem = "duplicate"


class TooLargeError(InvalidValueError):
    """A body, a request or a batch is larger than allowed."""

    problem = "too-large"


def read_json(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the decoded value of a JSON text.

    Args:
        data: A whole request body.
        decoder: A decoder of the expected type, which rejects unknown fields.

    Raises:
        InvalidValueError: The text is not JSON, has an unknown, missing or repeated field, or a value of a wrong type.
    """
    try:
        value = decoder.decode(data)
    except READ_ERRORS as error:
        problem = translate(error, data=data)
        if isinstance(problem, WrongTypeError) and problem.is_unlisted_choice:
            problem.list_choices(choices_of(decoder.type, problem.field))
        raise problem from None
    refuse_duplicates(data)
    return value


def choices_of(struct: Any, pointer: str) -> list[str]:
    """Return the texts that are allowed for a field.

    Args:
        struct: Type of the whole text, usually a struct.
        pointer: JSON pointer of the field.

    Returns:
        The values of the field's `Literal`; empty if it has none, or if it is not a field of the struct itself.
    """
    annotation = get_type_hints(struct).get(pointer[1:]) if isinstance(struct, type) else None
    return [
        each for kind in (annotation, *get_args(annotation)) if get_origin(kind) is Literal for each in get_args(kind)
    ]


def refuse_duplicates(data: bytes, at: str = "") -> None:
    """Raise DuplicateError if an object in a JSON text repeats a key, UnreadableError if the text is not JSON.

    Args:
        data: A JSON text.
        at: JSON pointer of `data` in the request, if it is a part of the body; empty for the whole body.
    """
    try:
        if ESCAPED_COLON not in data and _encode(_decode_any(data)).count(b":") == data.count(b":"):
            return
    except msgspec.ValidationError:
        pass  # A number is too large for a double; the slow parser has no such limit.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise translate(error, at, data) from None
    find_duplicate(data, at)


def find_duplicate(data: bytes, at: str = "") -> None:
    """Parse a JSON text pair by pair and raise DuplicateError at the first key that its object repeats."""

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    raise DuplicateError(at or "/", name, "appears twice in one object")
                seen.add(name)
        return members

    try:
        # Numbers stay text, because Python rejects an integer of thousands of digits.
        json.loads(data.decode(), object_pairs_hook=check, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise translate(error, at) from None
    except ValueError as error:
        raise UnreadableError(at or "body", NO_VALUE, f"is not JSON: {error}") from None


def translate(error: Exception, at: str = "", data: bytes = b"") -> InvalidValueError:
    """Return the error that stands for msgspec's exception: with the JSON pointer of the field, and the faulty value.

    Args:
        error: One of READ_ERRORS.
        at: JSON pointer of `data` in the request, if it is a part of the body; empty for the whole body.
        data: JSON text that was rejected; without it, the error does not show the value.
    """
    if isinstance(error, UnicodeDecodeError):
        return UnreadableError(at or "body", *_explain_bytes(error, data))
    if isinstance(error, RecursionError):
        return UnreadableError(at or "body", _excerpt(data, 0), "is nested too deeply")
    text, _, path = _shorten(str(error)).partition(" - at `")
    pointer = at + pointer_of(path.rstrip("`"))
    if not isinstance(error, msgspec.ValidationError):
        return UnreadableError(pointer or "body", *_explain_syntax(text, data))
    if match := _UNKNOWN.fullmatch(text):
        return UnknownFieldError(f"{pointer}/{match[1]}", NO_VALUE, "there is no such field")
    if match := _MISSING.fullmatch(text):
        return WrongTypeError(f"{pointer}/{match[1]}", "is missing")
    found_value = _value_at(data, pointer_of(path.rstrip("`")))
    return WrongTypeError(pointer or "/", plain_reason(text, is_shown=found_value is not None), found_value)


def plain_reason(text: str, *, is_shown: bool) -> str:
    """Return msgspec's reason in plain words.

    Args:
        text: The reason, such as "Expected `int`, got `str`".
        is_shown: Whether the error shows the value after the reason, so that the reason need not name its type.
    """
    if text.startswith("Invalid enum value"):
        return _UNLISTED_CHOICE
    if (match := _EXPECTED.fullmatch(text)) is None:
        return text[:1].lower() + text[1:]
    wanted = " or ".join(_TYPES.get(name, name) for name in match[1].split(" | "))
    found = "" if is_shown or match[3] is None else f", and is {_TYPES.get(match[3], match[3])}"
    if (pattern := _PATTERN.match(match[2])) is None:
        return f"must be {wanted}{match[2]}{found}"
    return (
        f"must be {wanted}{next((words for part, words in _PATTERN_WORDS.items() if part in pattern[0]), pattern[0])}"
    )


def _shorten(text: str) -> str:
    """Return msgspec's message, without its middle if it is long: it may contain a field name of megabytes."""
    return text if len(text) <= 2 * _EXCERPT_CHARS else f"{text[:_EXCERPT_CHARS]}…{text[-_EXCERPT_CHARS:]}"


def _explain_bytes(error: UnicodeDecodeError, data: bytes) -> tuple[str, str]:
    """Return the bytes that are not UTF-8, and the reason with their position.

    msgspec counts the position from the start of a string. This one is counted from the start of the body.
    """
    try:
        data.decode()
    except UnicodeDecodeError as exact:
        error = exact
    return _excerpt(data, error.start), f"is not UTF-8: {error.reason} at byte {error.start}"


def _explain_syntax(text: str, data: bytes) -> tuple[object, str]:
    """Return the text where parsing stopped, and the reason.

    msgspec says "truncated" also for an empty text and for a half of a surrogate pair. Both get their own reason here.
    """
    if trailing := _TRAILING.fullmatch(text):
        start = int(trailing[1]) - 1
        return _excerpt(data, start), f"follows the end of the JSON value (byte {start})"
    byte = _BYTE.search(text)
    if byte is not None:
        return _excerpt(data, int(byte[1])), f"can't be read: {text}"
    if not data.strip():
        return NO_VALUE, "is empty, where JSON is expected"
    if len(data) <= EXPLAINED_BYTES_MAX and _HALF_PAIR.search(data):
        try:
            json.loads(data, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            pass
        else:
            return (
                "\\ud800 to \\udfff",
                "is half of a character: the escape of its other half is missing",
            )
    reason = "ends too early" if text == _TRUNCATED else f"can't be read: {text}"
    return _excerpt(data, max(0, len(data) - _SHOWN_BYTES)), f"{reason} (byte {len(data)})"


def _excerpt(data: bytes, start: int) -> str:
    return data[start : start + _SHOWN_BYTES].decode("utf-8", "replace")


def _value_at(data: bytes, pointer: str) -> str | None:
    """Return the value at a JSON pointer as JSON, or None if the text is too long for a second parse."""
    if not data or len(data) > EXPLAINED_BYTES_MAX:
        return None
    try:
        value = _decode_any(data)
        for step in pointer.split("/")[1:]:
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (*READ_ERRORS, LookupError, TypeError, ValueError):
        return None
    return _encode(value)[:_SHOWN_BYTES].decode("utf-8", "replace")


class WrongTypeError(InvalidValueError):
    """A field is missing, or its value has a wrong type or is out of range.

    The message ends with the value that was found, because msgspec's text names only the expected type.
    """

    def __init__(self, field: str, reason: str, found_value: str | None = None) -> None:
        super().__init__(field, "", reason)
        self._found = "" if found_value is None else f", found {found_value}"
        self.args = (f"{field}: {reason}{self._found}",)

    @property
    def is_unlisted_choice(self) -> bool:
        """Whether the value is not one of the fixed set of values that the field may have."""
        return self.reason == _UNLISTED_CHOICE

    def list_choices(self, choices: Sequence[str]) -> None:
        """Change the reason, so that it lists the values that the field may have; empty `choices` change nothing."""
        if choices:
            self.reason = f"must be one of {', '.join(choices)}"
            self.args = (f"{self.field}: {self.reason}{self._found}",)


READ_ERRORS: Final = (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def pointer_of(path: str) -> str:
    """Return msgspec's `$.messages[3].tag` as the JSON pointer `/messages/3/tag`."""
    return "".join(f"/{name or index}" for name, index in _PATH_STEP.findall(path) if name or index)
