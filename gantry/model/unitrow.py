"""The unit row: a ConsumeQueue unit and the store time of its message. Brokers send many such rows to tools.

Format (28 bytes, big-endian; docs/formats/remoting.md, request 900001):
    position  size  field
    0         8     physical offset of the record, 0 if there is no message
    8         4     size of the whole record, -1 if there is no message: filler, unused space, or an invalid unit
    12        8     tags code
    20        8     store time, ms; -1 if the record can't be read: its file was deleted, or it is damaged
"""

import struct
from typing import Final

UNIT_ROW: Final = struct.Struct(">qiqq")
UNIT_ROW_BYTES: Final = 28
assert UNIT_ROW.size == UNIT_ROW_BYTES  # As in the table above.

NO_MESSAGE_SIZE: Final = -1
UNKNOWN_STORED_AT: Final = -1
NO_MESSAGE_ROW: Final = UNIT_ROW.pack(0, NO_MESSAGE_SIZE, 0, UNKNOWN_STORED_AT)
