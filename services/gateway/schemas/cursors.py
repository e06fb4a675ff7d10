"""Cursors: the start of the next page. They are opaque to clients, so their content may change.

Format: base64url, without padding, of the list's name, a colon and the last item's position.
"""

import re
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from datetime import UTC, datetime, timedelta
from typing import Final

from gantry.model.errors import InvalidValueError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MOMENT_PLACE: Final = re.compile(r"([0-9]{1,17})/([0-9a-f-]{36})", re.ASCII)


def encode_cursor(listing: str, after: str) -> str:
    """Return the cursor after the item at `after` of a list."""
    return urlsafe_b64encode(f"{listing}:{after}".encode()).rstrip(b"=").decode()


def decode_cursor(text: str, listing: str) -> str:
    """Return the position in a cursor.

    Raises:
        InvalidValueError: It is not a cursor of this list.
    """
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (Base64Error, ValueError):
        data = ""
    found, separator, after = data.partition(":")
    if found != listing or not separator or not after or encode_cursor(listing, after) != text or "\x00" in after:
        raise InvalidValueError("cursor", text, "is not a cursor of this list")
    return after


def encode_moment_cursor(listing: str, at: datetime, item_id: uuid.UUID) -> str:
    """Return the cursor after an item of a list by time and id."""
    return encode_cursor(listing, f"{(at - _EPOCH) // _MICROSECOND}/{item_id}")


def decode_moment_cursor(text: str, listing: str) -> tuple[datetime, uuid.UUID]:
    """Return the time and the id in a cursor.

    Raises:
        InvalidValueError: It is not a cursor of this list.
    """
    place = _MOMENT_PLACE.fullmatch(decode_cursor(text, listing))
    try:
        if place is not None and str(uuid.UUID(place[2])) == place[2]:
            return _EPOCH + int(place[1]) * _MICROSECOND, uuid.UUID(place[2])
    except (ValueError, OverflowError):
        pass
    raise InvalidValueError("cursor", text, "is not a cursor of this list")
