"""Reads from the store: at once if everything is in memory, in a task if a request must wait for the disk."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.errors import describe_os_error
from gantry.runtime.telemetry import logger
from services.broker.coldreader import ColdReader, ColdReadsBusyError
from services.broker.refusal import RefusalError
from services.broker.store.errors import StoreReadError
from services.broker.store.files.pages import NotInMemoryError
from services.broker.turns import Turns

log = logger("broker.reading")

R = TypeVar("R")


async def read_cold(cold: ColdReader, owner: Any, operation: Callable[[], R], *, turns: Turns | None = None) -> R:
    """Run an operation that may have to wait for the disk.

    Raises:
        RefusalError: SYSTEM_BUSY: the operation can't wait now, and the client should try again. SYSTEM_ERROR: the disk
            can't read the bytes.
    """
    try:
        return await cold.run(owner, operation, turns=turns)
    except ColdReadsBusyError as error:
        raise RefusalError(ResponseCode.SYSTEM_BUSY, str(error)) from None
    except StoreReadError as error:
        raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    except OSError as error:
        if error.errno is None:
            raise  # No system call raised it: a TimeoutError, for example.
        log.warning("a read failed", reason=describe_os_error(error))
        raise RefusalError(
            ResponseCode.SYSTEM_ERROR, f"a file of the store can't be read: {describe_os_error(error)}"
        ) from None


def reading(
    cold: ColdReader, handler: Callable[[Channel, RemotingCommand], RemotingCommand]
) -> Callable[[Channel, RemotingCommand], RemotingCommand | Awaitable[RemotingCommand]]:
    """Return a handler that runs `handler`, and runs it again until no bytes are missing.

    Args:
        cold: Reader of the bytes that are not in memory.
        handler: Handler that only reads, so that it can run several times.
    """

    def read(channel: Channel, request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        operation = partial(handler, channel, request)
        try:
            return cold.attempt(operation)
        except NotInMemoryError:
            return read_cold(cold, channel, operation)

    return read
