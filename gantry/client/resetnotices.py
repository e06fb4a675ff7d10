"""Resets of committed offsets, which brokers announce to the members of a group (request 220).

Concurrency: the event loop's thread.
"""

from collections.abc import Callable, Mapping

from gantry.model.message import MessageQueue
from gantry.remoting.aio import Channel
from gantry.remoting.bodies.resets import ResetOffsets
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.reset import ResetClientOffsetHeader

OnReset = Callable[[Mapping[MessageQueue, int], int], None]
"""Called with the new committed offsets, and the epoch of the reset; 0 if the broker has no epochs."""


class ResetNotices:
    """The members of this process that want to know of resets."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[OnReset]] = {}

    def listen(self, group: str, on_reset: OnReset) -> Callable[[], None]:
        """Call `on_reset` with each reset of a group. Return a function that ends the calls."""
        listeners = self._listeners.setdefault(group, [])
        listeners.append(on_reset)

        def stop() -> None:
            listeners.remove(on_reset)
            if not listeners and self._listeners.get(group) is listeners:
                del self._listeners[group]

        return stop

    def answer(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Pass a reset on to the members of its group. Raises HeaderError, BodyError."""
        header = ResetClientOffsetHeader.from_ext(command.ext_fields)
        offsets = ResetOffsets.decode(command.body_bytes).offset_table
        for on_reset in list(self._listeners.get(header.group, ())):
            on_reset(offsets, header.gantry_reset_epoch or 0)
        return None if command.is_one_way else RemotingCommand.response_to(command, ResponseCode.SUCCESS)
