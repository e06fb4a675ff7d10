"""The positions of groups in their queues, all found by one survey of the brokers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gantry.client.engine import ClientEngine
from gantry.remoting.bodies.queuestates import QueueState
from spark.datasource.brokers.survey import (
    BrokerView,
    Survey,
    consumed_topics,
    read_numbers,
    routed_queues,
    survey_brokers,
)
from spark.datasource.options import Options
from spark.datasource.partitions import Region
from spark.datasource.pushdown import Pushed


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """The position of one group in one queue. With `error`, the ends are None, but `committed` may be known."""

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
        """The offset of the first unconsumed message that still exists; None if it is unknown."""
        if self.committed is None or self.min_offset is None or self.max_offset is None:
            return None
        # If the commit is past the end of the queue, the consumed position of the group is unknown.
        return None if self.committed > self.max_offset else max(self.committed, self.min_offset)

    @property
    def lag(self) -> int | None:
        """The number of unconsumed messages that still exist; None if it is unknown."""
        return None if self.start is None or self.max_offset is None else self.max_offset - self.start

    @property
    def region(self) -> Region:
        """The unconsumed offsets, which must be known; equal for all groups that wait at the same offset."""
        assert self.start is not None, self
        assert self.max_offset is not None, self
        return Region(self.topic, self.broker, self.queue_id, self.start, self.max_offset)

    @property
    def remark(self) -> str | None:
        """The problem with the numbers, or the reason why they are missing; None if there is no problem."""
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
class SurveyedPositions:
    """All positions, and the survey that found them."""

    survey: Survey
    positions: list[GroupPosition]


async def find_positions(
    engine: ClientEngine, options: Options, pushed: Pushed, *, instances: bool = True
) -> SurveyedPositions:
    """Survey all brokers and return every requested position. Raises the same errors as `survey_brokers`."""
    survey = await survey_brokers(engine, options, pushed, instances=instances)
    consumed = consumed_topics(survey, options, pushed)
    by_topic: dict[str, list[str]] = {}
    for group, topics in consumed.items():
        for topic in topics:
            by_topic.setdefault(topic, []).append(group)
    await read_numbers(engine, survey, by_topic, pushed)
    found: list[GroupPosition] = []
    for view in survey.views.values():
        if not pushed.passes("broker", view.name):
            continue
        for topic, groups in sorted(by_topic.items()):
            unknown_reason = view.unknown_reason(topic)
            if unknown_reason is not None:
                count = view.topics.get(topic) or await routed_queues(engine, survey, view.name, topic)
                found += _unknown_positions(view, topic, groups, count, unknown_reason)
            elif topic in view.states:
                found += _known_positions(view, topic, groups)
    return SurveyedPositions(survey, [position for position in found if pushed.passes("queue_id", position.queue_id)])


def _unknown_positions(
    view: BrokerView, topic: str, groups: Iterable[str], count: int, error: str
) -> Iterator[GroupPosition]:
    for group in groups:
        committed = view.committed.get(group, {}).get(topic, {})
        for queue_id in range(count):
            yield GroupPosition(group, topic, view.name, queue_id, None, None, committed.get(queue_id), error)


def _known_positions(view: BrokerView, topic: str, groups: Iterable[str]) -> Iterator[GroupPosition]:
    states = view.states[topic]
    assert not isinstance(states, str), states
    for group in groups:
        committed = view.committed.get(group, {}).get(topic, {})
        for state in states:
            offset = committed.get(state.queue_id)
            if offset is not None or _is_read(view, topic, state):
                yield GroupPosition(group, topic, view.name, state.queue_id, state.min_offset, state.max_offset, offset)


def _is_read(view: BrokerView, topic: str, state: QueueState) -> bool:
    """Return whether consumers get the queue. Only our brokers report `readable` for each queue."""
    return state.readable and state.queue_id < view.topics.get(topic, 0)
