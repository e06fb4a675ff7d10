"""Receipts: signed texts by which a client acknowledges, returns or extends a message that it has pulled. Pure.

Format (ADR 0057): base64url of

    version (1 byte, 2) · MAC (16 bytes) · content, in numbers and names · zero bytes up to a multiple of 3

    content   queue offset 8 · reconsume times 4 · part
    part      start offset 8 · time of the pop 8 · invisible time 8 · revive queue 4 · queue 4 · retry flag 1 · length of
              the broker's name 1 · broker · topic

The MAC is a keyed BLAKE2b over the version, the group and the content. The group is not in the receipt, so a receipt is
valid for the group to which the message was given, and for no other. The content names broker, queue and offset, so any
gateway can settle the message.

All messages that one pop took from one queue have the same part. It is encoded and decoded once for them.

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
from gantry.model.popreceipt import (
    NOT_RETRY,
    RETRY_V1,
    RETRY_V2,
    PopPart,
    PopReceipt,
    decode_pop_receipt,
    encode_pop_receipt,
)

RECEIPT_LENGTH_MAX: Final = 1_024
"""Limit of a receipt's length: with the longest names a receipt has about 770 characters."""

_VERSION_1: Final = b"\x01"
_VERSION_2: Final = b"\x02"
_MAC_BYTES: Final = 16
_HEAD_BYTES: Final = 1 + _MAC_BYTES
_OWN: Final = struct.Struct(">qI")
_PART: Final = struct.Struct(">qqqIIBB")
_PART_AT: Final = _HEAD_BYTES + _OWN.size
_NAMES_AT: Final = _PART_AT + _PART.size
_RETRIES: Final = (NOT_RETRY, RETRY_V1, RETRY_V2)
_RETRY_NUMBERS: Final = {retry: number for number, retry in enumerate(_RETRIES)}
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
# The characters of the other alphabet and the padding must not be read as if they were those of this one.
_FROM_URL: Final = bytes.maketrans(b"-_+/=", b"+/!!!")


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


class TopicPart:
    """The part of receipts. It is compared by identity: the receipts that one `Receipts` opens share it.

    Attributes:
        topic: The topic to which the messages were sent.
        pop: The shared content of the receipts of the pop.
        encoded: Its bytes in a receipt; None if it does not fit the numbers of version 2.
    """

    __slots__ = ("encoded", "pop", "topic")

    def __init__(self, topic: str, pop: PopPart) -> None:
        self.topic = topic
        self.pop = pop
        self.encoded = _encode_part(topic, pop)


Opened = tuple[TopicPart, int, int]
"""The content of a receipt: its part, the queue offset, and the number of deliveries before."""


class Receipts:
    """Makes and reads the receipts of one group: those of one request, whose number is limited.

    Concurrency: one thread.
    """

    __slots__ = ("_group", "_hash", "_key", "_parts")

    def __init__(self, key: bytes, group: str) -> None:
        self._key = key
        self._group = group.encode()
        # No group name has a line feed, so no other group and content make the same bytes.
        self._hash = hashlib.blake2b(_VERSION_2 + self._group + b"\n", key=key, digest_size=_MAC_BYTES)
        self._parts: dict[bytes | tuple[str, PopPart], TopicPart] = {}

    def sign(self, receipt: Receipt) -> str:
        """Return the text of the receipt of a message that was given to the group."""
        topic, times, pop = receipt
        return self.sign_one(TopicPart(topic, pop.part), pop.queue_offset, times)

    def sign_one(self, part: TopicPart, offset: int, times: int) -> str:
        """Return the text of one of the receipts that share a part.

        Args:
            part: The part.
            offset: The queue offset of the message.
            times: The number of times that the message was delivered before.
        """
        encoded = part.encoded
        if encoded is None:
            return self._sign_text(part, offset, times)
        try:
            content = _OWN.pack(offset, times) + encoded
        except struct.error:
            return self._sign_text(part, offset, times)
        mac = self._hash.copy()
        mac.update(content)
        return b2a_base64(_VERSION_2 + mac.digest() + content, newline=False).translate(_TO_URL).decode()

    def open(self, text: str) -> Receipt | None:
        """Return the content of a receipt, or None if no gateway made this text for this group."""
        opened = self.open_one(text)
        if opened is None:
            return None
        part, offset, times = opened
        return Receipt(part.topic, times, part.pop.at(offset))

    def open_one(self, text: str) -> Opened | None:
        """Return the content of a receipt in parts, or None if no gateway made this text for this group.

        Receipts with the same part get the same object.
        """
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
        offset, times = _OWN.unpack_from(data, _HEAD_BYTES)
        encoded = data[_PART_AT:]
        part = self._parts.get(encoded)
        if part is None:
            part = self._parts[encoded] = _decode_part(encoded)
        return part, offset, times

    def _sign_text(self, part: TopicPart, offset: int, times: int) -> str:
        content = f"{part.topic}\n{times}\n{encode_pop_receipt(part.pop.at(offset))}".encode()
        return urlsafe_b64encode(_VERSION_1 + self._mac_of_text(content) + content).rstrip(b"=").decode()

    def _open_text(self, text: str) -> Opened | None:
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
            pop = decode_pop_receipt(pop_text)
        except InvalidIdError:
            # A gateway signed what its broker gave. A later version may read it otherwise.
            return None
        part = self._parts.setdefault((topic, pop.part), TopicPart(topic, pop.part))
        return part, pop.queue_offset, int(times)

    def _mac_of_text(self, content: bytes) -> bytes:
        data = _VERSION_1 + self._group + b"\n" + content
        return hashlib.blake2b(data, key=self._key, digest_size=_MAC_BYTES).digest()


def _encode_part(topic: str, pop: PopPart) -> bytes | None:
    """Return the part of receipts, with the zero bytes behind it, or None if it does not fit the numbers of version 2."""
    start, popped_at_ms, invisible_ms, revive, retry, broker, queue_id = pop
    name = broker.encode()
    try:
        numbers = _PART.pack(start, popped_at_ms, invisible_ms, revive, queue_id, _RETRY_NUMBERS[retry], len(name))
    except (struct.error, KeyError):
        return None
    encoded = numbers + name + topic.encode()
    return encoded + bytes(-(_PART_AT + len(encoded)) % 3)


def _decode_part(encoded: bytes) -> TopicPart:
    start, popped_at_ms, invisible_ms, revive, queue_id, retry, length = _PART.unpack_from(encoded)
    broker_end = _PART.size + length
    broker, topic = encoded[_PART.size : broker_end].decode(), encoded[broker_end:].rstrip(b"\0").decode()
    return TopicPart(topic, PopPart(start, popped_at_ms, invisible_ms, revive, _RETRIES[retry], broker, queue_id))
