"""Bulk: the requests that go over a second connection to a broker, so that small sends need not wait behind them.

An answer with megabytes of messages takes tens of milliseconds to arrive, and a batch of a thousand messages takes a broker
some milliseconds to store. Requests on one connection would all stand in line behind them. No order is promised between two
sends of which the first is not answered yet.
"""

from typing import Final

from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand

BULK_BODY_BYTES: Final = 16 * 1024
"""The send of a message of more is bulk."""

_ALWAYS: Final = frozenset(
    {
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
    }
)
_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2})


def is_bulk(command: RemotingCommand) -> bool:
    """Say whether a request reads messages, or sends many or a large one."""
    if command.code in _SENDS:
        return command.body is not None and len(command.body) > BULK_BODY_BYTES
    return command.code in _ALWAYS
