"""Receipts: opaque texts for the client, which name a feed's token and the offsets of messages. Pure.

TOKEN.OFFSET            one message
TOKEN.FIRST-LAST        all messages of a frame
"""

from typing import Final

# The session's nonce, the feed's number, a point, and two offsets of 19 digits with a dash between them: 70 at most.
RECEIPT_LENGTH_MAX: Final = 80

INVALID: Final = "invalid"
GONE: Final = "gone"


def parse_receipt(text: str) -> tuple[str, int, int | None]:
    """Return a feed's token, an offset, and the last offset if it is a frame's receipt; an empty token if invalid."""
    token, _, rest = text.partition(".")
    first, dash, last = rest.partition("-")
    if len(text) > RECEIPT_LENGTH_MAX or not (text.isascii() and first.isdecimal()):
        return "", 0, None
    if not dash:
        return token, int(first), None
    return (token, int(first), int(last)) if last.isdecimal() else ("", 0, None)
