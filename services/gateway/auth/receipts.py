"""Receipts: signed texts by which a client acknowledges, returns or extends a message that it has pulled. Pure.

Format (ADR 0057): base64url of

    version (1 byte, 2) · MAC (16 bytes) · content, in numbers and names · zero bytes up to a multiple of 3

    content   queue offset 8 · reconsume times 4 · start offset 8 · time of the pop 8 · invisible time 8 · revive queue 4
              · queue 4 · retry flag 1 · length of the broker's name 1 · broker · topic

The MAC is a keyed BLAKE2b over the version, the group and the content. The group is not in the receipt, so a receipt is
valid for the group to which the message was given, and for no other. The content names broker, queue and offset, so any
gateway can settle the message.

Version 1 has the content in lines of text: topic, reconsume times and receipt of the pop (gantry.model.popreceipt). Such
receipts are read, and made for what does not fit the numbers above.

A signature says that a gateway made the receipt. The broker decides whether it is still valid: it knows which messages
are in flight.
"""

import hashlib
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from typing import Final, NamedTuple

from gantry.model.errors import InvalidIdError
from gantry.model.popreceipt import NOT_RETRY, RETRY_V1, RETRY_V2, PopReceipt, decode_pop_receipt, encode_pop_receipt

RECEIPT_LENGTH_MAX: Final = 1_024
"""Limit of a receipt's length: with the longest names a receipt has about 770 characters."""

_VERSION_1: Final = b"\x01"
_VERSION_2: Final = b"\x02"
_MAC_BYTES: Final = 16
_HEAD_BYTES: Final = 1 + _MAC_BYTES
_CONTENT: Final = struct.Struct(">qIqqqIIBB")
_NAMES_AT: Final = _HEAD_BYTES + _CONTENT.size
_RETRIES: Final = (NOT_RETRY, RETRY_V1, RETRY_V2)
_RETRY_NUMBERS: Final = {retry: number for number, retry in enumerate(_RETRIES)}
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
# The characters of the other alphabet and the padding must not be read as if they were those of this one.
_FROM_URL: Final = bytes.maketrans(b"-_+/=", b"+/!!!")
_NAMES_CACHED_MAX: Final = 256
_new_tuple = tuple.__new__


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


class Receipts:
    """Makes and reads the receipts of one group: those of one request.

    Concurrency: one thread.
    """

    __slots__ = ("_encoded", "_group", "_hash", "_key", "_names")

    def __init__(self, key: bytes, group: str) -> None:
        self._key = key
        self._group = group.encode()
        # No group name has a line feed, so no other group and content make the same bytes.
        self._hash = hashlib.blake2b(_VERSION_2 + self._group + b"\n", key=key, digest_size=_MAC_BYTES)
        self._encoded: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._names: dict[tuple[int, bytes], tuple[str, str]] = {}

    def sign(self, receipt: Receipt) -> str:
        """Return the text of the receipt of a message that was given to the group."""
        topic, times, pop = receipt
        start, popped_at_ms, invisible_ms, revive, retry, broker, queue_id, offset = pop
        names = self._encoded.get((broker, topic)) or self._encode(broker, topic)
        try:
            content = (
                _CONTENT.pack(
                    offset, times, start, popped_at_ms, invisible_ms, revive, queue_id, _RETRY_NUMBERS[retry], names[0]
                )
                + names[1]
            )
        except (struct.error, KeyError):
            return self._sign_text(receipt)
        mac = self._hash.copy()
        mac.update(content)
        return b2a_base64(_VERSION_2 + mac.digest() + content, newline=False).translate(_TO_URL).decode()

    def open(self, text: str) -> Receipt | None:
        """Return the content of a receipt, or None if no gateway made this text for this group."""
        if len(text) > RECEIPT_LENGTH_MAX:
            return None
        try:
            data = a2b_base64(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
        except (Base64Error, ValueError):
            return self._open_text(text)  # Those of version 1 have no padding.
        if data[:1] != _VERSION_2:
            return self._open_text(text)
        if len(data) <= _NAMES_AT:
            return None
        mac = self._hash.copy()
        mac.update(data[_HEAD_BYTES:])
        if not hmac.compare_digest(data[1:_HEAD_BYTES], mac.digest()):
            return None
        offset, times, start, popped_at_ms, invisible_ms, revive, queue_id, retry, length = _CONTENT.unpack_from(
            data, _HEAD_BYTES
        )
        encoded = data[_NAMES_AT:]
        broker, topic = self._names.get((length, encoded)) or self._decode(length, encoded)
        pop = _new_tuple(
            PopReceipt, (start, popped_at_ms, invisible_ms, revive, _RETRIES[retry], broker, queue_id, offset)
        )
        return _new_tuple(Receipt, (topic, times, pop))

    def _encode(self, broker: str, topic: str) -> tuple[int, bytes]:
        name = broker.encode()
        encoded = name + topic.encode()
        padded = len(name), encoded + bytes(-(_NAMES_AT + len(encoded)) % 3)
        if len(self._encoded) < _NAMES_CACHED_MAX:
            self._encoded[broker, topic] = padded
        return padded

    def _decode(self, length: int, encoded: bytes) -> tuple[str, str]:
        names = encoded[:length].decode(), encoded[length:].rstrip(b"\0").decode()
        if len(self._names) < _NAMES_CACHED_MAX:
            self._names[length, encoded] = names
        return names

    def _sign_text(self, receipt: Receipt) -> str:
        content = f"{receipt.topic}\n{receipt.reconsume_times}\n{encode_pop_receipt(receipt.pop)}".encode()
        return urlsafe_b64encode(_VERSION_1 + self._mac_of_text(content) + content).rstrip(b"=").decode()

    def _open_text(self, text: str) -> Receipt | None:
        """Return the content of a receipt of version 1."""
        try:
            data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (Base64Error, ValueError):
            return None
        content = data[_HEAD_BYTES:]
        if data[:1] != _VERSION_1 or not hmac.compare_digest(data[1:_HEAD_BYTES], self._mac_of_text(content)):
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

    def _mac_of_text(self, content: bytes) -> bytes:
        data = _VERSION_1 + self._group + b"\n" + content
        return hashlib.blake2b(data, key=self._key, digest_size=_MAC_BYTES).digest()
