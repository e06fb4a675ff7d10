"""The unit row: a ConsumeQueue unit and when its message was stored, as tools are given them in great numbers.

Format (28 bytes, big-endian; docs/formats/remoting.md, request 900001):
    position  size  field
    0         8     physical offset of the record, 0 where there is no message
    8         4     size of the whole record, -1 where there is no message: filler, never written, nonsense
    12        8     tags code
    20        8     stored at, ms; -1 where the record can't be read: removed with its file, or damaged
"""

import struct
from typing import Final

UNIT_ROW: Final = struct.Struct(">qiqq")
UNIT_ROW_BYTES: Final = 28
assert UNIT_ROW.size == UNIT_ROW_BYTES  # The table above is what is on the wire.

NO_MESSAGE_SIZE: Final = -1
UNKNOWN_STORED_AT: Final = -1
NO_MESSAGE_ROW: Final = UNIT_ROW.pack(0, NO_MESSAGE_SIZE, 0, UNKNOWN_STORED_AT)
