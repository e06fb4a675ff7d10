"""The pop retry topics for letters of groups that take messages with receipts.

A broker makes such a topic when it gives a message back for the first time. A message of a group without retries dies
before that, so a redrive may have to make the topic.
"""

import asyncio
from typing import Final

from gantry.client.admin import Admin
from gantry.client.engine import ClientEngine
from gantry.client.errors import NoRouteError
from gantry.model.topic import Perm, TopicConfig

_ROUTE_TRIES: Final = 20
_ROUTE_PAUSE_S: Final = 0.25


class PopRetryTopics:
    """Makes pop retry topics that do not exist yet.

    Attributes:
        ready: Topics that exist, with the names of their brokers.
    """

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine
        self._admin = Admin(engine)
        self.ready: set[tuple[str, str]] = set()

    async def ensure(self, topic: str, broker: str) -> None:
        """Make a topic on a broker, and wait until a name server has its route. Raises ClientError."""
        if (topic, broker) in self.ready:
            return
        if await self._admin.topic_config(topic, broker) is None:
            config = TopicConfig(topic, 1, 1, int(Perm.READ | Perm.WRITE))
            await self._admin.create_topic(config, [broker])
        for left in reversed(range(_ROUTE_TRIES)):
            try:
                route = await self._engine.route(topic, refresh=True)
            except NoRouteError:
                if not left:
                    raise
            else:
                if any(data.broker_name == broker for data in route.queue_datas):
                    self.ready.add((topic, broker))
                    return
            await asyncio.sleep(_ROUTE_PAUSE_S)
        raise NoRouteError(topic)
