"""Resets: sets committed offsets so that the commits of running consumers can't overwrite them.

A reset is one step in the loop's thread: it stores the offsets and the rows of the reset, wakes the pulls that are held
for these queues, so that they are answered with 21, and tells the members of the group (request 220). From then on,
`resetfence.py` recognises requests from before it. A caller reports a reset as done when `durable` has returned.

Concurrency: the loop's thread.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from gantry.model.message import MessageQueue
from gantry.remoting.bodies.resets import ResetOffsets
from gantry.remoting.codes import LanguageCode, RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.reset import ResetClientOffsetHeader
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.broker.longpolling import LongPolling
from services.broker.refusal import RefusalError
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.offsets import OffsetTable
from services.broker.resetfence import QueueKey, ResetFence

log = logger("broker.offsets")

OnReset = Callable[[str, str, Mapping[int, int | None]], None]
"""Called with topic, group, and the new committed offset of each queue; None for a queue whose offset was removed."""

# RocketMQ's clients handle request 220 since 3.0.7.
_TOLD_VERSION_MIN = 28


@dataclass(frozen=True, slots=True)
class Moved:
    """A reset that was made.

    Attributes:
        epoch: Its epoch.
        offsets: Queue id → committed offset before and after.
    """

    epoch: int
    offsets: Mapping[int, tuple[int | None, int | None]]


class OffsetResets:
    """Makes resets.

    Args:
        callbacks: Callbacks of features, called with each reset before its members are told.
        save: Requests a save of the changed tables, and returns an awaitable that waits until they are on disk.
    """

    def __init__(
        self,
        broker_name: str,
        *,
        offsets: OffsetTable,
        consumers: ConsumerTable,
        fence: ResetFence,
        long_polling: LongPolling,
        clock: Clock,
        callbacks: Sequence[OnReset],
        save: Callable[[], Awaitable[None]],
    ) -> None:
        self._broker_name = broker_name
        self._offsets = offsets
        self._consumers = consumers
        self._fence = fence
        self._long_polling = long_polling
        self._clock = clock
        self._callbacks = callbacks
        self._save = save

    def apply(self, topic: str, group: str, targets: Mapping[int, int | None]) -> Moved:
        """Set the committed offsets of these queues, all or none; None removes the offset of a queue.

        Raises:
            RefusalError: SYSTEM_BUSY: there is no room for the reset; nothing was changed.
        """
        assert targets, f"a reset of {group} on {topic} names queues"
        offsets, now_ms = self._offsets, self._clock.now_ms()
        if not offsets.has_room(topic, group, targets) or not offsets.resets.has_room(
            topic, group, list(targets), now_ms
        ):
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY,
                f"group {group} on topic {topic}: there is no room for a reset of {len(targets)} queues; nothing was reset",
            )
        moves = {queue_id: (offsets.find(topic, group, queue_id), offset) for queue_id, offset in targets.items()}
        epoch = offsets.resets.put(topic, group, moves, now_ms)
        for queue_id, offset in targets.items():
            if offset is None:
                offsets.remove_queue(topic, group, queue_id)
                continue
            has_room = offsets.commit(topic, group, queue_id, offset, now_ms)
            assert has_room, "checked above"
            offsets.note_pull(topic, group, queue_id, offset)
        log.info("offsets reset", topic=topic, group=group, epoch=epoch, queues=len(targets))
        for callback in self._callbacks:
            callback(topic, group, targets)
        self._tell(topic, group, epoch, targets)
        for queue_id in targets:
            self._long_polling.resume_queue(topic, queue_id)
        return Moved(epoch, moves)

    async def durable(self) -> None:
        """Wait until the resets so far are on disk. Raises NotSavedError."""
        await self._save()

    def _tell(self, topic: str, group: str, epoch: int, targets: Mapping[int, int | None]) -> None:
        info = self._consumers.find(group)
        told = {queue_id: offset for queue_id, offset in targets.items() if offset is not None}
        if info is None or not told:
            return
        header = ResetClientOffsetHeader(
            topic=topic, group=group, timestamp=self._clock.now_ms(), is_force=True, gantry_reset_epoch=epoch
        )
        body = ResetOffsets(
            {MessageQueue(topic, self._broker_name, queue_id): offset for queue_id, offset in told.items()}
        )
        members = {member.connection: member for member in info.members.values()}
        for connection, member in members.items():
            if member.version < _TOLD_VERSION_MIN:
                continue
            for queue_id, offset in told.items():
                self._fence.told(connection, QueueKey(topic, group, queue_id), offset)
            content = body.encode_for_cpp() if member.language is LanguageCode.CPP else body.encode()
            command = RemotingCommand.request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body=content, one_way=True
            )
            connection.send_one_way(command)
