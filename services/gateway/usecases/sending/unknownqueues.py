"""Queues that a send names and the route at hand does not have: there is one look for them, whatever their number.

A batch may name a thousand. If each were looked for by itself, one request would ask the name server a thousand times,
and with a name server that hangs its good messages would wait for an hour.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol

from gantry.client.routecache import PublishInfo
from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from services.gateway.errors import BROKER_UNAVAILABLE, NOT_STORED, UNKNOWN_QUEUE, ProblemError
from services.gateway.schemas.outgoing import Item

NOT_REGISTERED: Final = "is not registered just now"


class Homes(Protocol):
    """Tells a broker that is away from one that never was (presence.py)."""

    async def find_away(self, name: str, brokers: Collection[str]) -> Collection[str]:
        """Return those of the brokers that may hold the topic all the same and are away. Raises ProblemError (503)."""
        ...


class UnknownQueues:
    """The look of one call.

    Concurrency: one task.
    """

    def __init__(
        self, items: Collection[Item], refresh: Callable[[], Awaitable[PublishInfo]], *, topic: str, topics: Homes
    ) -> None:
        """Make one; `items` are the call's messages, `refresh` returns the route anew and raises ProblemError."""
        self._items = items
        self._refresh = refresh
        self._topic = topic
        self._topics = topics
        self._known: Collection[MessageQueue] | None = None
        self._away: Collection[str] = ()
        self._failure: ProblemError | None = None

    async def require(self, queue: MessageQueue, at: str) -> None:
        """Raise ProblemError unless the topic has the queue after all.

        Args:
            queue: Queue that the message at `at`, a JSON pointer, names.
            at: Stands in the problem.

        Raises:
            ProblemError: 404: there is no such queue; 503: its broker may have it and is away, or nobody can say.
        """
        if self._known is None:
            await self._look()
        failure = self._failure
        if failure is not None:
            # An exception that is raised a thousand times keeps as many traces.
            raise ProblemError(failure.kind, failure.detail, field=failure.field, outcome=NOT_STORED)
        if queue in (self._known or ()):
            return
        broker = queue.broker_name
        if broker in self._away:
            detail = f"broker: {broker} {NOT_REGISTERED}"
            raise ProblemError(BROKER_UNAVAILABLE, detail, field="broker", outcome=NOT_STORED)
        detail = f"{at}/queue: {broker!r} has no queue {queue.queue_id} of topic {self._topic} to write to"
        raise ProblemError(UNKNOWN_QUEUE, detail, field=f"{at}/queue", outcome=NOT_STORED)

    async def _look(self) -> None:
        self._known = ()
        try:
            self._known = known = (await self._refresh()).key_queues
            named = {
                item.queue.broker for item in self._items if not isinstance(item, InvalidValueError) and item.queue
            }
            missing = named - {queue.broker_name for queue in known}
            if missing:
                self._away = await self._topics.find_away(self._topic, missing)
        except ProblemError as problem:
            self._failure = problem
