"""Cursors: the start of the next page. They are opaque to clients, so their content may change.

Format: base64url, without padding, of the list's name, a colon and the last item's position.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error

from gantry.model.errors import InvalidValueError


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
