"""The job of a shrink: a change of the topic that comes in between is not undone."""

from types import SimpleNamespace
from typing import Any

import pytest

from gantry.remoting.bodies.shrinking import Shrinking
from services.gateway.db.repositories import Expectation
from services.gateway.errors import VERSION_CONFLICT, ProblemError
from services.gateway.usecases.cluster.brokers import BrokerAnswers
from services.gateway.usecases.operations.shrinking import ShrinkJob


class Topics:
    """A topic with four read queues."""

    def __init__(self) -> None:
        self.read_queues, self.version = 4, 7

    async def get(self, name: str) -> Any:
        settings = SimpleNamespace(read_queues=self.read_queues, write_queues=1)
        return SimpleNamespace(settings=settings, version=self.version)

    async def put(self, name: str, change: Any, expect: Expectation, actor: Any) -> None:
        if expect.version is not None and expect.version != self.version:
            raise ProblemError(VERSION_CONFLICT, "changed")
        self.read_queues, self.version = change.read_queues, self.version + 1


class Shrinker:
    """Brokers that have closed the queues. While they are asked, another job lowers the read queues to one."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def ask(self, topic: str, queues: int, *, dry_run: bool) -> BrokerAnswers[Shrinking]:
        self._topics.read_queues, self._topics.version = 1, 8
        closed = Shrinking(blocks=[], read_queue_nums=1, write_queue_nums=1)
        return BrokerAnswers({"broker-a": closed}, {}, {"broker-a"})


class Work:
    job = SimpleNamespace(arguments={"topic": "T", "queues": 2}, created_by="key")

    async def save(self, state: Any, *, done: int, total: int) -> None:
        pass


async def test_a_shrink_does_not_open_queues_that_another_one_has_closed() -> None:
    topics = Topics()
    job = ShrinkJob(Shrinker(topics), topics)  # type: ignore[arg-type]
    with pytest.raises(ProblemError) as caught:
        await job.run(Work())  # type: ignore[arg-type]
    assert (caught.value.retryable, topics.read_queues) == (True, 1)
    await job.run(Work())  # type: ignore[arg-type]
    assert topics.read_queues == 1
