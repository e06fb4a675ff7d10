"""A member's presence: its heart-beats at the brokers, and the engine's calls about its group.

Concurrency: the event loop's thread.
"""

import asyncio
from collections.abc import Callable, Mapping

from gantry.client.consumer.heldqueues import HeldQueues
from gantry.client.engine import ClientEngine
from gantry.client.runninginfo import member_info
from gantry.model.group import MessageModel
from gantry.model.message import MessageQueue
from gantry.remoting.bodies import ConsumerData, ConsumerRunningInfo


class Presence:
    """The presence of one member.

    Attributes:
        started_at_ms: Wall time at which the member was started; its owner sets it.
    """

    def __init__(
        self, engine: ClientEngine, client_id: str, data: ConsumerData, held: HeldQueues, *, is_orderly: bool
    ) -> None:
        self.started_at_ms = 0
        self._engine = engine
        self._client_id = client_id
        self._data = data
        self._held = held
        self._is_orderly = is_orderly
        # End the engine's calls, of changed members and of what this one is doing.
        self._stops: list[Callable[[], None]] = []
        self._is_announced = False

    async def begin(
        self,
        *,
        on_members_changed: Callable[[], None],
        on_reset: Callable[[Mapping[MessageQueue, int], int], None],
    ) -> None:
        """Listen, and send heart-beats from now on; return when each broker has answered or can't be reached.

        Raises:
            InvalidArgumentError: Another member of this engine has the same client id, group and topic.
        """
        self._engine.heartbeats.check_unused(self._client_id, self._data.group_name, self._topics)
        self._stops = [
            self._engine.listen(self._data.group_name, on_members_changed),
            self._engine.running_infos.add(self._client_id, self._data.group_name, self._running_info),
        ]
        if self._data.message_model is MessageModel.CLUSTERING:
            self._stops.append(self._engine.resets.listen(self._data.group_name, on_reset))
        self._is_announced = True
        await self._engine.heartbeats.put_consumer(self._client_id, self._data)

    def end_calls(self) -> None:
        """End the engine's calls."""
        while self._stops:
            self._stops.pop()()

    def end(self) -> "asyncio.Task[None] | None":
        """End the calls and the heart-beats at once.

        Returns:
            The task of the engine that tells the brokers; None if there is nothing to tell.
        """
        self.end_calls()
        if not self._is_announced:
            return None
        self._is_announced = False
        return self._engine.heartbeats.drop_consumer(self._client_id, self._data.group_name, self._topics)

    @property
    def _topics(self) -> list[str]:
        return [one.topic for one in self._data.subscriptions]

    def _running_info(self) -> ConsumerRunningInfo:
        return member_info(
            self._engine.settings.namesrv,
            self._data.group_name,
            self._data.consume_from_where,
            self._data.subscriptions,
            {queue: self._held.committed_offset(queue) for queue in self._held},
            started_at_ms=self.started_at_ms,
            model=self._data.message_model,
            is_orderly=self._is_orderly,
        )
