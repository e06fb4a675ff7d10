"""Bulk: requests that use a second connection to a broker, so that small sends do not wait behind them.

An answer with megabytes of messages takes tens of milliseconds to arrive. A broker takes some milliseconds to store a
batch of a thousand messages. On one connection, all later requests would wait behind them. Gantry promises no order
between two sends if the second one starts before the first is answered.
"""

from typing import Final

from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand

BULK_BODY_BYTES: Final = 16 * 1024
"""A send with a body larger than this is bulk."""

_ALWAYS: Final = frozenset(
    {
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
    }
)
_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2})


def is_bulk(command: RemotingCommand) -> bool:
    """Return whether a request reads messages, sends many messages, or sends a large one."""
    if command.code in _SENDS:
        return command.body is not None and len(command.body) > BULK_BODY_BYTES
    return command.code in _ALWAYS
