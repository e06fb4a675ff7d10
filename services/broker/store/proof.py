"""Whether a record is the one that a ConsumeQueue unit promises, unharmed: asked before every record that is read.

Reads check again, every time: what was right when it was written, or when the store started, may come back wrong
from the disk later. That costs about 1 µs per KiB (CRC-32) and needs no memory of what was checked.
"""

import struct
from typing import cast

from gantry.model.message import PropertyName
from gantry.model.record import CRC_PROPERTY_BYTES
from gantry.runtime.files import Memory
from gantry.storeformat.mark import GantryMark
from gantry.storeformat.resync import examine

# Size, queue id, queue offset and physical offset, at their places in every record (message record, first 36 bytes).
IDENTITY = struct.Struct(">i8xi4xqq")
IDENTITY_BYTES = 36
assert IDENTITY.size == IDENTITY_BYTES

# The checksum property read backwards, since its digits are written least significant first; and where that ends.
CRC_PROPERTY_TURNED = b"\x02%010d\x01" + PropertyName.CRC32.encode()[::-1]
CRC_PROPERTY_STOP = -CRC_PROPERTY_BYTES - 1
assert len(CRC_PROPERTY_TURNED % 0) == CRC_PROPERTY_BYTES


def is_sound(  # noqa: PLR0917 - called from the hot path; keywords cost.
    record: bytes, physical_offset: int, queue_id: int, queue_offset: int, topic: bytes, mark: GantryMark
) -> bool:
    """Say whether bytes are the record that a unit promises, and prove themselves.

    Args:
        record: A copy, of the size that the unit says: what is checked must be what is handed out.
        physical_offset: Where it lies in the log.
        queue_id: Of the queue the unit is from.
        queue_offset: The unit's index.
        topic: Of the queue.
        mark: Says where a record must have the whole-record checksum.
    """
    head, _, problem = examine(cast(Memory, record), 0, end=len(record), base=physical_offset, mark=mark)
    return (
        problem is None
        and head is not None
        and head.size_bytes == len(record)
        and head.queue_id == queue_id
        and head.queue_offset == queue_offset
        and head.topic == topic
    )
