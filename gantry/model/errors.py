"""Errors of the model.

ModelError
├── InvalidValueError          a caller's value can't be used; names field, value and reason
│   ├── InvalidNameError       a topic or group name
│   ├── InvalidIdError         a stored message id or a unique key
│   ├── InvalidMessageError    a part of a message: body, property, record field
│   └── InvalidExpressionError a subscription expression
└── RecordError                bytes that are no whole, sound record; carries where
    ├── TornRecordError        the bytes end before the record does: more may come, or a crash cut it off
    └── CorruptRecordError     the bytes contradict themselves: damage, or no record at all
"""

from typing import Final

_VALUE_SHOWN_MAX = 80
# A name that a caller made up may be a part of the field.
_FIELD_SHOWN_MAX = 256


class ModelError(Exception):
    """Root of the family."""


UNSHOWN: Final = object()
"""Stands for a value that an error does not show: there is none, or the reason says it all."""


class InvalidValueError(ModelError):
    """A value from outside can't be used; who sent it is to be told field, value and reason."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        if len(field) > _FIELD_SHOWN_MAX:
            field = field[:_FIELD_SHOWN_MAX] + "…"
        super().__init__(f"{field}: {reason}" if value is UNSHOWN else f"{field}: {shorten_value(value)} {reason}")
        self.field = field
        self.value = value
        self.reason = reason


def shorten_value(value: object) -> str:
    """Return how a value is shown in an error: bytes as text, and a long text cut before it is escaped, which takes long."""
    if isinstance(value, (str, bytes, bytearray)):
        value = value[: _VALUE_SHOWN_MAX + 1]
    shown = repr(value.decode("utf-8", "backslashreplace") if isinstance(value, (bytes, bytearray)) else value)
    return shown if len(shown) <= _VALUE_SHOWN_MAX else shown[:_VALUE_SHOWN_MAX] + "…"


class InvalidNameError(InvalidValueError):
    """A topic or group name breaks the rules of names."""


class InvalidIdError(InvalidValueError):
    """A text is no message id of the expected kind."""


class InvalidMessageError(InvalidValueError):
    """A part of a message can't be stored: too long, empty, or with characters that the format reserves."""


class InvalidExpressionError(InvalidValueError):
    """A subscription expression can't be read."""


class RecordError(ModelError):
    """Bytes are no whole, sound record; `at` is where the record starts in what was handed in."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(f"at {at}: {reason}")
        self.reason = reason
        self.at = at


class TornRecordError(RecordError):
    """The bytes end before the record does. At the end of the newest file it is a crash, elsewhere damage."""


class CorruptRecordError(RecordError):
    """The bytes contradict themselves: a length, the magic, a checksum or a compressed stream is wrong."""
