"""Receipts: signed texts by which a client acknowledges, returns or extends a message that it has pulled. Pure.

Format: base64url, without padding, of

    version (1 byte, 1) · MAC (16 bytes) · topic, reconsume times and receipt of the pop, in lines

The MAC is a keyed BLAKE2b over the version, the group and the rest. The group is not in the receipt, so a receipt is
valid for the group to which the message was given, and for no other. The receipt of the pop (gantry.model.popreceipt)
names broker, queue and offset, so any gateway can settle the message.

A signature says that a gateway made the receipt. The broker decides whether it is still valid: it knows which messages
are in flight.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from typing import Final, NamedTuple

from gantry.model.errors import InvalidIdError
from gantry.model.popreceipt import PopReceipt, decode_pop_receipt, encode_pop_receipt

RECEIPT_LENGTH_MAX: Final = 1_024
"""Limit of a receipt's length: with the longest names a receipt has about 700 characters."""

_VERSION: Final = b"\x01"
_MAC_BYTES: Final = 16
_HEAD_BYTES: Final = len(_VERSION) + _MAC_BYTES


class Receipt(NamedTuple):
    """The content of a receipt.

    Attributes:
        topic: The topic to which the message was sent.
        reconsume_times: The number of times that the message was delivered before.
        pop: The receipt of the pop.
    """

    topic: str
    reconsume_times: int
    pop: PopReceipt


def sign_receipt(key: bytes, group: str, receipt: Receipt) -> str:
    """Return the text of the receipt of a message that was given to a group."""
    content = f"{receipt.topic}\n{receipt.reconsume_times}\n{encode_pop_receipt(receipt.pop)}".encode()
    return urlsafe_b64encode(_VERSION + _mac(key, group, content) + content).rstrip(b"=").decode()


def open_receipt(key: bytes, group: str, text: str) -> Receipt | None:
    """Return the content of a receipt, or None if no gateway made this text for this group."""
    if len(text) > RECEIPT_LENGTH_MAX:
        return None
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (Base64Error, ValueError):
        return None
    content = data[_HEAD_BYTES:]
    if data[:1] != _VERSION or not hmac.compare_digest(data[1:_HEAD_BYTES], _mac(key, group, content)):
        return None
    # Base64 ignores characters outside its alphabet, and the last character has unused bits.
    if urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        return None
    topic, times, pop_text = content.decode().split("\n")
    try:
        return Receipt(topic, int(times), decode_pop_receipt(pop_text))
    except InvalidIdError:
        # A gateway signed what its broker gave. A later version may read it otherwise.
        return None


def _mac(key: bytes, group: str, content: bytes) -> bytes:
    # No group name has a line feed, so no other group and content make the same bytes.
    return hashlib.blake2b(_VERSION + group.encode() + b"\n" + content, key=key, digest_size=_MAC_BYTES).digest()
