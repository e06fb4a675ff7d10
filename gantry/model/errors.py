"""Errors of the model.

ModelError
├── InvalidValueError          a value from a caller is invalid; names field, value and reason
│   ├── InvalidNameError       a topic or group name
│   ├── InvalidIdError         a stored message id or a unique key
│   ├── InvalidMessageError    a part of a message: body, property, record field
│   └── InvalidExpressionError a subscription expression
└── RecordError                the bytes are not a complete, valid record; names the position
    ├── TornRecordError        the record is incomplete: more bytes may come, or a crash interrupted the write
    └── CorruptRecordError     the bytes contradict each other: damage, or not a record
"""

from typing import Final

_VALUE_SHOWN_MAX = 80
# The field may contain a name of any length from the caller.
_FIELD_SHOWN_MAX = 256


class ModelError(Exception):
    """Base class of the errors of the model."""


NO_VALUE: Final = object()
"""A placeholder for a value that the error text omits, because there is none or the reason is enough."""


class InvalidValueError(ModelError):
    """A value from outside is invalid. Field, value and reason are for the sender of the value."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        if len(field) > _FIELD_SHOWN_MAX:
            field = field[:_FIELD_SHOWN_MAX] + "…"
        super().__init__(f"{field}: {reason}" if value is NO_VALUE else f"{field}: {shorten_value(value)} {reason}")
        self.field = field
        self.value = value
        self.reason = reason


def shorten_value(value: object) -> str:
    """Return a value as an error text shows it: bytes as text, and long text truncated.

    Long values are truncated before they are escaped, because escaping a long text is slow.
    """
    if isinstance(value, (str, bytes, bytearray)):
        value = value[: _VALUE_SHOWN_MAX + 1]
    text = repr(value.decode("utf-8", "backslashreplace") if isinstance(value, (bytes, bytearray)) else value)
    return text if len(text) <= _VALUE_SHOWN_MAX else text[:_VALUE_SHOWN_MAX] + "…"


class InvalidNameError(InvalidValueError):
    """A topic or group name breaks the rules of names."""


class InvalidIdError(InvalidValueError):
    """A text is not a message id of the expected kind."""


class InvalidMessageError(InvalidValueError):
    """A part of a message can't be stored: it is too long or empty, or it contains reserved characters."""


class InvalidExpressionError(InvalidValueError):
    """A subscription expression is invalid."""


class RecordError(ModelError):
    """The bytes are not a complete, valid record. `at` is the start of the record in the bytes of the caller."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(f"at {at}: {reason}")
        self.reason = reason
        self.at = at


class TornRecordError(RecordError):
    """The bytes end before the end of the record. In the newest file this means a crash, elsewhere damage."""


class CorruptRecordError(RecordError):
    """The bytes contradict each other: a length, the magic, a checksum or a compressed stream is wrong."""
