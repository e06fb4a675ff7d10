"""Queues that a send names and the known route does not have. A call looks for all of them once.

A batch may name a thousand such queues. If the gateway looked for each of them separately, one call would send a thousand
requests to the name server. If the name server hung, the valid messages of the batch would wait for an hour.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

from gantry.client.routecache import PublishInfo
from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from gantry.model.topic import TopicConfig
from services.gateway.errors import BROKER_UNAVAILABLE, NOT_STORED, UNKNOWN_QUEUE, ProblemError
from services.gateway.schemas.outgoing import Item

NOT_REGISTERED: Final = "is not registered just now"


class Topics(Protocol):
    """Distinguishes a topic that does not exist from a topic whose brokers are away (usecases/configs/presence.py)."""

    async def absence(self, name: str) -> ProblemError:
        """Return the problem of a topic without a route: 404 or 503."""
        ...

    async def find_away(self, name: str, brokers: Collection[str]) -> Collection[str]:
        """Return those of the brokers that may hold the topic and are away. Raises ProblemError (503)."""
        ...

    async def observed_homes(self, name: str) -> Mapping[str, TopicConfig]:
        """Return the topic's last known configuration on each broker that should hold it; empty without Postgres."""
        ...


class UnknownQueues:
    """The search of one call for the queues that the known route does not have.

    Concurrency: one task.
    """

    def __init__(
        self, items: Collection[Item], refresh: Callable[[], Awaitable[PublishInfo]], *, topic: str, topics: Topics
    ) -> None:
        """Make a search.

        Args:
            items: The messages of the call.
            refresh: Returns a newer route. Raises ProblemError.
            topic: The topic of the messages.
            topics: Finds brokers that are away.
        """
        self._items = items
        self._refresh = refresh
        self._topic = topic
        self._topics = topics
        self._known: Collection[MessageQueue] | None = None
        self._away: Collection[str] = ()
        self._failure: ProblemError | None = None

    async def require(self, queue: MessageQueue, at: str) -> None:
        """Raise ProblemError unless the newer route of the topic has the queue.

        Args:
            queue: The queue that a message names.
            at: JSON pointer of that message.

        Raises:
            ProblemError: 404: there is no such queue. 503: the queue's broker is away, or the search failed.
        """
        if self._known is None:
            await self._search()
        failure = self._failure
        if failure is not None:
            # Raise a new error for each message: a shared error would collect the tracebacks of all of them.
            raise ProblemError(failure.kind, failure.detail, field=failure.field, outcome=NOT_STORED)
        if queue in (self._known or ()):
            return
        broker = queue.broker_name
        if broker in self._away:
            detail = f"broker: {broker} {NOT_REGISTERED}"
            raise ProblemError(BROKER_UNAVAILABLE, detail, field="broker", outcome=NOT_STORED)
        detail = f"{at}/queue: {broker!r} has no queue {queue.queue_id} of topic {self._topic} to write to"
        raise ProblemError(UNKNOWN_QUEUE, detail, field=f"{at}/queue", outcome=NOT_STORED)

    async def _search(self) -> None:
        self._known = ()
        try:
            self._known = known = (await self._refresh()).ordering_queues
            named = {
                item.queue.broker for item in self._items if not isinstance(item, InvalidValueError) and item.queue
            }
            missing = named - {queue.broker_name for queue in known}
            if missing:
                self._away = await self._topics.find_away(self._topic, missing)
        except ProblemError as problem:
            self._failure = problem
