"""Where groups are: a place for each group and queue, as one look at the brokers found it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gantry.client.engine import ClientEngine
from gantry.remoting.bodies.queuestates import QueueState
from spark.datasource.options import Options
from spark.datasource.partitions import Region
from spark.datasource.pushdown import Pushed
from spark.datasource.survey import BrokerView, Survey, look, pairs, read_numbers, routed_queues


@dataclass(frozen=True, slots=True)
class Place:
    """One group in one queue. With `error` the ends are None; `committed` may be known all the same."""

    group: str
    topic: str
    broker: str
    queue_id: int
    min_offset: int | None
    max_offset: int | None
    committed: int | None
    error: str | None = None

    @property
    def start(self) -> int | None:
        """The first offset that is there and not consumed; None where that is not known."""
        if self.committed is None or self.min_offset is None or self.max_offset is None:
            return None
        # A commit beyond the end: what the group has consumed is then anybody's guess.
        return None if self.committed > self.max_offset else max(self.committed, self.min_offset)

    @property
    def lag(self) -> int | None:
        """How many messages are there and not consumed; None where that is not known."""
        return None if self.start is None or self.max_offset is None else self.max_offset - self.start

    @property
    def region(self) -> Region:
        """What is there and not consumed, the same for all groups that wait at one offset; only where that is known."""
        assert self.start is not None, self
        assert self.max_offset is not None, self
        return Region(self.topic, self.broker, self.queue_id, self.start, self.max_offset)

    @property
    def remark(self) -> str | None:
        """What is wrong with the numbers or why they are missing; None where all is well."""
        if self.error is not None or self.committed is None or self.min_offset is None or self.max_offset is None:
            return self.error
        if self.committed > self.max_offset:
            return f"the committed offset {self.committed} is beyond the end of the queue, {self.max_offset}"
        if self.committed < self.min_offset:
            return (
                f"the committed offset {self.committed} is before the first one that can be read, {self.min_offset}:"
                f" {self.min_offset - self.committed} messages were deleted before the group consumed them"
            )
        return None


@dataclass(frozen=True, slots=True)
class Places:
    """All places, and the look they come from."""

    survey: Survey
    places: list[Place]


async def find_places(engine: ClientEngine, options: Options, pushed: Pushed, *, instances: bool = True) -> Places:
    """Look at all brokers and return every place that is asked for. Raises as `look`."""
    survey = await look(engine, options, pushed, instances=instances)
    consumed = pairs(survey, options, pushed)
    by_topic: dict[str, list[str]] = {}
    for group, topics in consumed.items():
        for topic in topics:
            by_topic.setdefault(topic, []).append(group)
    await read_numbers(engine, survey, by_topic, pushed)
    found: list[Place] = []
    for view in survey.views.values():
        if not pushed.passes("broker", view.name):
            continue
        for topic, groups in sorted(by_topic.items()):
            why_not = view.why_not(topic)
            if why_not is not None:
                count = view.topics.get(topic) or await routed_queues(engine, survey, view.name, topic)
                found += _unknown_places(view, topic, groups, count, why_not)
            elif topic in view.states:
                found += _known_places(view, topic, groups)
    return Places(survey, [place for place in found if pushed.passes("queue_id", place.queue_id)])


def _unknown_places(view: BrokerView, topic: str, groups: Iterable[str], count: int, error: str) -> Iterator[Place]:
    for group in groups:
        committed = view.committed.get(group, {}).get(topic, {})
        for queue_id in range(count):
            yield Place(group, topic, view.name, queue_id, None, None, committed.get(queue_id), error)


def _known_places(view: BrokerView, topic: str, groups: Iterable[str]) -> Iterator[Place]:
    states = view.states[topic]
    assert not isinstance(states, str), states
    for group in groups:
        committed = view.committed.get(group, {}).get(topic, {})
        for state in states:
            offset = committed.get(state.queue_id)
            if offset is not None or _is_read(view, topic, state):
                yield Place(group, topic, view.name, state.queue_id, state.min_offset, state.max_offset, offset)


def _is_read(view: BrokerView, topic: str, state: QueueState) -> bool:
    """Say whether consumers are given the queue; other brokers than ours don't say it of each queue."""
    return state.readable and state.queue_id < view.topics.get(topic, 0)
