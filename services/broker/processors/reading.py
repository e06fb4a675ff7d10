"""How requests read the store: at once while everything is in memory, in a task where the disk has to be waited for."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.errors import os_reason
from gantry.runtime.telemetry import logger
from services.broker.coldreader import ColdReader, ColdReadsBusyError
from services.broker.processors.refusal import RefusalError
from services.broker.store.errors import StoreReadError
from services.broker.store.pages import NotInMemoryError
from services.broker.turns import Turns

log = logger("broker.reading")

R = TypeVar("R")


async def read_cold(cold: ColdReader, owner: Any, operation: Callable[[], R], *, turns: Turns | None = None) -> R:
    """Run an operation, waiting for the disk.

    Raises:
        RefusalError: SYSTEM_BUSY: it can't wait now, try again. SYSTEM_ERROR: the disk can't read what it needs.
    """
    try:
        return await cold.run(owner, operation, turns=turns)
    except ColdReadsBusyError as error:
        raise RefusalError(ResponseCode.SYSTEM_BUSY, str(error)) from None
    except StoreReadError as error:
        raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    except OSError as error:
        if error.errno is None:
            raise  # A TimeoutError, say, which no system call raised.
        log.warning("a read failed", reason=os_reason(error))
        raise RefusalError(
            ResponseCode.SYSTEM_ERROR, f"a file of the store can't be read: {os_reason(error)}"
        ) from None


def reading(
    cold: ColdReader, handler: Callable[[Channel, RemotingCommand], RemotingCommand]
) -> Callable[[Channel, RemotingCommand], RemotingCommand | Awaitable[RemotingCommand]]:
    """Return a handler that runs another one, which only reads, again and again until nothing is missing."""

    def read(channel: Channel, request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        operation = partial(handler, channel, request)
        try:
            return cold.attempt(operation)
        except NotInMemoryError:
            return read_cold(cold, channel, operation)

    return read
