"""Op messages: each lists queue offsets of half messages that need no further attention. Pure.

The body is `123,124,`: a comma follows each offset. The tag is `d`.

Source: RocketMQ 5.3 TransactionalMessageServiceImpl.
"""

from collections.abc import Iterable
from typing import Final

from gantry.model.message import StoredMessage
from gantry.runtime.digits import parse_digits

OP_TAG: Final = "d"
_SEPARATOR = ","
_INT64_MAX = 2**63 - 1


def encode_op_body(half_offsets: Iterable[int]) -> bytes:
    """Return the body of an op message."""
    return "".join([f"{offset}{_SEPARATOR}" for offset in half_offsets]).encode()


def op_offset_size(half_offset: int) -> int:
    """Return the number of bytes that an offset takes in an op message."""
    return len(str(half_offset)) + len(_SEPARATOR)


def decode_op(message: StoredMessage) -> list[int]:
    """Return the queue offsets in an op message. Anything else in its body is ignored, as in RocketMQ."""
    if message.tag != OP_TAG:
        return []
    parts = message.body.decode("utf-8", "replace").split(_SEPARATOR)
    return [offset for part in parts if (offset := parse_digits(part, _INT64_MAX)) is not None]
