"""A message that was read. Pure: streams use this module too."""

import msgspec

from gantry.model.message import StoredMessage


class ReadMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that was read. It is a struct for speed.

    Attributes:
        record: The stored record, whose checksum is right.
        broker: Name of the broker that stores the record; the record does not contain it.
        body: The decompressed body.
    """

    record: StoredMessage
    broker: str
    body: bytes


def read_message(record: StoredMessage, broker: str) -> ReadMessage:
    """Return the message of a sound record. Raises CorruptRecordError if the body can't be decompressed."""
    return ReadMessage(record, broker, record.inflated_body())
