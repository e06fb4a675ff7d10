"""The check that a record is valid and is the record that a ConsumeQueue unit promises.

Every read makes this check: a record that was right when it was written, or when the store started, may later come back
wrong from the disk. A check costs about 1 µs per KiB (CRC-32). It needs no memory of earlier checks.
"""

import struct
from typing import cast

from gantry.model.message import PropertyName
from gantry.model.record import CRC_PROPERTY_BYTES
from gantry.runtime.files import Memory
from gantry.storeformat.manifest import StoreManifest
from gantry.storeformat.resync import examine

# Size, queue id, queue offset and physical offset, at their positions in every record (message record, first 36 bytes).
IDENTITY = struct.Struct(">i8xi4xqq")
IDENTITY_BYTES = 36
assert IDENTITY.size == IDENTITY_BYTES

# The checksum property in reverse byte order, because its least significant digit is written first, and its slice end.
CRC_PROPERTY_TURNED = b"\x02%010d\x01" + PropertyName.CRC32.encode()[::-1]
CRC_PROPERTY_STOP = -CRC_PROPERTY_BYTES - 1
assert len(CRC_PROPERTY_TURNED % 0) == CRC_PROPERTY_BYTES


def is_valid_record(  # noqa: PLR0917 - called from the hot path; keywords cost.
    record: bytes, physical_offset: int, queue_id: int, queue_offset: int, topic: bytes, manifest: StoreManifest
) -> bool:
    """Return whether bytes are a valid record, and the record that a unit promises.

    Args:
        record: A copy of the record's bytes, with the size that the unit says. It is a copy, because the bytes that are
            returned must be the bytes that were checked.
        physical_offset: The record's position in the log.
        queue_id: The queue id of the unit's queue.
        queue_offset: The unit's index.
        topic: The topic of the unit's queue.
        manifest: The store's manifest; it says where a record must have the whole-record checksum.
    """
    head, _, problem = examine(cast(Memory, record), 0, end=len(record), base=physical_offset, manifest=manifest)
    return (
        problem is None
        and head is not None
        and head.size_bytes == len(record)
        and head.queue_id == queue_id
        and head.queue_offset == queue_offset
        and head.topic == topic
    )
