"""Topics and groups created and deleted again under load: each change that was answered survives."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from gantry.client.admin import Admin
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError, Outcome, SendError
from gantry.client.producer import Producer
from gantry.model.group import SubscriptionGroup
from gantry.model.message import Message, MessageQueue
from gantry.model.propertyname import PropertyName
from gantry.model.topic import TopicConfig
from gantry.runtime.rng import Rng
from tests.fault.history import History
from tests.fault.load import key_of

PAUSE_S = 0.05
CHURNED_MESSAGES_MAX = 30


@dataclass
class Made:
    """Names of topics and groups, with the moment at which their creation was answered."""

    topics: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)

    def missing(self, topics: Collection[str], groups: Collection[str], *, until: int) -> list[str]:
        """Return those names whose creation was answered before a moment and which are not in the given sets."""
        return [
            f"{kind} {name} was created and is gone"
            for kind, made, there in (("topic", self.topics, topics), ("group", self.groups, groups))
            for name, at in made.items()
            if at < until and name not in there
        ]


async def keep_creating(engine: ClientEngine, history: History, made: Made, life: int) -> None:
    """Create topics and groups one after the other, until cancelled or until the broker is gone."""
    admin = Admin(engine)
    for number in range(1 << 30):
        try:
            await admin.create_topic(TopicConfig(f"MADE_{life}_{number}", 1, 1))
            made.topics[f"MADE_{life}_{number}"] = history.now()
            await admin.put_group(SubscriptionGroup(f"GROUP_{life}_{number}"))
            made.groups[f"GROUP_{life}_{number}"] = history.now()
        except ClientError:
            return
        await asyncio.sleep(PAUSE_S)


async def keep_churning(engine: ClientEngine, history: History, rng: Rng, queue: MessageQueue) -> None:
    """Create a topic, send to it and delete it, in a loop, until cancelled or until the broker is gone."""
    admin, producer = Admin(engine), Producer(engine, "FAULT_CHURN")
    while True:
        try:
            await admin.create_topic(TopicConfig(queue.topic, 1, 1))
            for _ in range(rng.below(CHURNED_MESSAGES_MAX)):
                await _send(engine, producer, history, rng, queue)
            await asyncio.sleep(rng.below(50) / 1000)
            history.forget(queue.topic)
            await admin.delete_topic(queue.topic)
        except ClientError:
            return


async def _send(engine: ClientEngine, producer: Producer, history: History, rng: Rng, queue: MessageQueue) -> None:
    key = engine.unique_keys.make()
    send = history.begin(key, queue, rng.bytes(1 + rng.below(500)))
    try:
        properties = {PropertyName.UNIQ_KEY: key, PropertyName.KEYS: key_of(key)}
        result = await producer.send(Message(queue.topic, send.body, properties), queue=queue)
    except SendError as error:
        history.failed(send, error.outcome)
        if error.outcome is Outcome.UNKNOWN:
            raise
    else:
        history.stored(send, result.queue, result.queue_offset)
