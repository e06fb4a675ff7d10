"""Whether a topic has a duplicate window. A message with a key then goes to the queue that belongs to the key.

A window belongs to a broker, so every send of a message must reach the same one. The brokers of the topic say whether it
has a window; the gateway asks them again every REFRESH_MS, and only if messages with keys are sent. A broker that does
not answer has the window that it had before. If nothing is known, the topic counts as having one: that costs no more than
the choice of the broker.

Concurrency: the event loop's thread. All sends that wait for the same topic share one question.
"""

import asyncio
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError
from gantry.client.routecache import PublishInfo
from gantry.model.topic import DUPLICATE_WINDOW
from gantry.remoting.bodies.config import decode_topic_config
from gantry.remoting.codes import RequestCode
from gantry.remoting.errors import BodyError
from gantry.remoting.headers.topic import GetTopicConfigHeader

REFRESH_MS: Final = 5_000
TOPICS_MAX: Final = 4_096


class TopicWindows:
    """The topics that keys were sent to, and whether they have a window."""

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine
        # Topic → the brokers with a window, and when they were asked (monotonic ms).
        self._known: dict[str, tuple[frozenset[str], int]] = {}
        self._questions: dict[str, asyncio.Task[None]] = {}

    def is_known_on(self, topic: str) -> bool:
        """Return whether the topic had a window when it was last asked for."""
        return bool(self._known.get(topic, _NOTHING)[0])

    async def is_on(self, info: PublishInfo) -> bool:
        """Return whether a topic has a window. Only the first call for a topic waits for the brokers."""
        topic = info.topic
        known = self._known.get(topic)
        if known is None:
            await asyncio.wait({self._ask(info)})
        elif self._engine.clock.monotonic_ms() - known[1] >= REFRESH_MS:
            self._ask(info)
        return self.is_known_on(topic)

    def forget(self, topic: str) -> None:
        """Ask again at the next send: the topic has changed."""
        self._known.pop(topic, None)

    def _ask(self, info: PublishInfo) -> asyncio.Task[None]:
        question = self._questions.get(info.topic)
        if question is None:
            question = self._questions[info.topic] = self._engine.tasks.spawn(self._find(info))
            question.add_done_callback(lambda _: self._questions.pop(info.topic))
        return question

    async def _find(self, info: PublishInfo) -> None:
        topic, before = info.topic, self._known.get(info.topic)
        brokers = sorted({queue.broker_name for queue in info.ordering_queues} | info.masters.keys())
        answers = await asyncio.gather(*(self._has_window(info, broker) for broker in brokers))
        on = set()
        for broker, answer in zip(brokers, answers, strict=True):
            is_on = answer
            if is_on is None:
                is_on = before is None or broker in before[0]
            if is_on:
                on.add(broker)
        if len(self._known) >= TOPICS_MAX and before is None:
            self._known.clear()
        self._known[topic] = (frozenset(on), self._engine.clock.monotonic_ms())

    async def _has_window(self, info: PublishInfo, broker: str) -> bool | None:
        """Return whether the topic has a window on a broker; None if the broker does not say."""
        address = info.masters.get(broker)
        if address is None:
            return None
        try:
            header = GetTopicConfigHeader(topic=info.topic)
            response = await self._engine.call(address, RequestCode.GET_TOPIC_CONFIG, header)
            return DUPLICATE_WINDOW in decode_topic_config(response.body_bytes).attributes
        except BrokerError:
            return False  # The broker does not have the topic, or is an old one that does not know the request.
        except (ClientError, BodyError):
            return None


_NOTHING: Final[tuple[frozenset[str], int]] = (frozenset(), 0)
