"""Registration of features: each one builds its processor and names the request codes that it answers.

`features.py` lists the features; one line adds one. The server itself replies with code 3 to all other request codes.

A handler may raise RefusalError. It may also raise an error of the model for an invalid name or value, for which the
reply is 29, INVALID_PARAMETER. The channel replies to HeaderError and BodyError (1, SYSTEM_ERROR). The reply to a
change that can't be saved is 14, SERVICE_NOT_AVAILABLE.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from gantry.model.errors import InvalidValueError
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.refusal import RefusalError
from services.broker.registry.persistence import NotSavedError

PlainHandler = Callable[[Channel, RemotingCommand], RemotingCommand | Awaitable[RemotingCommand | None] | None]
"""A handler that may raise one of the errors above. It replies at once, or returns an awaitable of its reply."""


class Processor(Protocol):
    """The part of a feature that answers requests."""

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code that the feature answers."""
        ...


def combine(processors: Iterable[Processor], unsupported: Mapping[int, Handler]) -> dict[int, Handler]:
    """Return the handlers of all processors. A code that none of them answers gets its unsupported handler, if any."""
    table: dict[int, Handler] = {}
    for processor in processors:
        for code, handler in processor.handlers().items():
            assert code not in table, f"two features answer request {code}"
            table[code] = handler
    return {**unsupported, **table}


def replying_to_refusals(handlers: Mapping[int, PlainHandler]) -> dict[int, Handler]:
    """Return handlers that turn the errors of these handlers into replies."""
    return {code: _replying_to_refusals(handler) for code, handler in handlers.items()}


def _replying_to_refusals(handler: PlainHandler) -> Handler:
    def handle(
        channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        try:
            reply = handler(channel, request)
        except (RefusalError, InvalidValueError) as error:
            return _refusal(request, error)
        return reply if reply is None or isinstance(reply, RemotingCommand) else _reply_later(request, reply)

    return handle


async def _reply_later(request: RemotingCommand, reply: Awaitable[RemotingCommand | None]) -> RemotingCommand | None:
    try:
        return await reply
    except (RefusalError, NotSavedError, InvalidValueError) as error:
        return _refusal(request, error)


def _refusal(request: RemotingCommand, error: RefusalError | NotSavedError | InvalidValueError) -> RemotingCommand:
    if isinstance(error, RefusalError):
        return error.reply_to(request)
    is_value = isinstance(error, InvalidValueError)
    code = ResponseCode.INVALID_PARAMETER if is_value else ResponseCode.SERVICE_NOT_AVAILABLE
    return RemotingCommand.response_to(request, code, remark=str(error))
