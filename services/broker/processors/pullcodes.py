"""Response code and remark of a pull for each outcome of the read."""

from collections.abc import Mapping
from typing import Final

from gantry.remoting.codes import ResponseCode
from services.broker.store.results import GetResult, GetStatus

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}
# The store creates a queue with its first message. For a client, every queue of the topic exists and is empty before
# that.
REMARKS: Final[Mapping[GetStatus, str]] = {status: status.name for status in GetStatus} | {
    GetStatus.NO_MATCHED_LOGIC_QUEUE: GetStatus.NO_MESSAGE_IN_QUEUE.name
}
_EMPTY_QUEUE: Final = frozenset({GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE})


def code_of(result: GetResult, queue_offset: int) -> ResponseCode:
    """Return the response code for a pull at this offset."""
    if queue_offset == 0 and result.status in _EMPTY_QUEUE:
        return ResponseCode.PULL_NOT_FOUND
    return _CODES[result.status]
