"""The recall handle: the text by which a client can recall a message that waits for its time.

Format: `v1 TOPIC BROKER TIME KEY` with single spaces, in base64 with the alphabet for URLs. TIME is the second at which
the message waits plus one millisecond, in ms. KEY is the message's UNIQ_KEY.

Source: RocketMQ 5.3 common/producer/RecallMessageHandle.
"""

import binascii
from base64 import b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from gantry.model.errors import InvalidIdError
from gantry.runtime.digits import parse_digits

HANDLE_LENGTH_MAX: Final = 8192
"""A topic, a broker's name and a key that fit the properties of a record are shorter."""

_VERSION = "v1"
_PARTS = 5
_TIME_MAX = 2**63 - 1


class RecallHandle(NamedTuple):
    """The content of a handle."""

    topic: str
    broker_name: str
    at_ms: int
    """The second at which the message waits plus one millisecond: a time that waits at the same second."""
    unique_key: str


def encode_recall_handle(handle: RecallHandle) -> str:
    """Return the text of a handle."""
    text = f"{_VERSION} {handle.topic} {handle.broker_name} {handle.at_ms} {handle.unique_key}"
    return urlsafe_b64encode(text.encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Return the content of a handle. The padding may be missing, as in RocketMQ.

    Raises:
        InvalidIdError: The text is no handle.
    """
    if not 0 < len(text) <= HANDLE_LENGTH_MAX:
        raise InvalidIdError("recallHandle", text, "is empty or too long")
    try:
        decoded = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidIdError("recallHandle", text, "is not base64 of UTF-8") from None
    parts = decoded.split(" ")
    if len(parts) < _PARTS or parts[0] != _VERSION or not all(parts[:_PARTS]):
        raise InvalidIdError("recallHandle", text, f"is not `{_VERSION} TOPIC BROKER TIME KEY`")
    at_ms = parse_digits(parts[3], _TIME_MAX)
    if at_ms is None:
        raise InvalidIdError("recallHandle", text, "has no time in milliseconds")
    return RecallHandle(parts[1], parts[2], at_ms, parts[4])
