"""Surveys all brokers at once: which groups consume which queues, how far they are, and which clients are connected.

The survey uses bulk requests only, in two steps. *Names first*: it asks each broker for all committed offsets (43),
topics (21) and groups (201), and once for each group for its instances (203). *Numbers last*: it asks all brokers at
once for the committed offsets again and, directly after them, once for each topic for its queues (900000; brokers other
than ours: 202). So the numbers of a broker are of one moment, `read_at_ms`, however long the names took. Committed
offsets are read before the ends of the queues. Otherwise a commit made in between could seem to be past the end.

If a broker, or a topic or group on it, can't be read, the rows whose numbers are missing get the error. If no broker
answers at all, there are no rows that could get the error, so the whole survey fails.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gantry.client.answers import read_body
from gantry.client.backlog import Backlog, FirstUnconsumedQuery
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, NoAnswerError
from gantry.model.group import SubscriptionData, SubscriptionGroup
from gantry.model.names import is_system_group, is_system_topic
from gantry.model.route import BrokerData
from gantry.remoting.bodies.config import SubscriptionGroupWrapper, TopicConfigSerializeWrapper
from gantry.remoting.bodies.connections import ConsumerConnection
from gantry.remoting.bodies.queuestates import QueueState
from gantry.remoting.bodies.resets import MadeReset
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.client import GetConsumerConnectionListHeader
from spark.datasource.brokers.metadata import Metadata, read_metadata
from spark.datasource.filters import GroupFilter
from spark.datasource.options import Options
from spark.datasource.pushdown import Pushed

REQUESTS_MAX: Final = 64
"""The limit for requests in flight to one broker: enough to keep it busy, and far below its limit for a client."""

RESETS_MS: Final = 3_600_000
"""The age of the resets that a survey reads: a report looks back no further."""
NO_CONNECTIONS: Final = ConsumerConnection()
# No message is at or after this offset. So the broker has nothing to search for, and only reports its time.
_BEYOND: Final = 2**62
_NO_INSTANCES = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)

K = TypeVar("K")
T = TypeVar("T")


class SurveyError(Exception):
    """Raised if no broker answers, because there are no rows that could report the errors."""


@dataclass(slots=True)
class BrokerView:
    """The answers of one broker set. With `error`, all other fields may be empty."""

    name: str
    address: str | None
    cluster: str
    error: str | None = None
    committed: Mapping[str, Mapping[str, Mapping[int, int]]] = field(default_factory=dict)
    """Group → topic → queue id → committed offset."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """Topic → number of read queues."""
    groups: Mapping[str, SubscriptionGroup] = field(default_factory=dict)
    instances: dict[str, ConsumerConnection | str] = field(default_factory=dict)
    """Group → its connected clients, or why they are unknown. Groups that were not asked about are missing."""
    states: dict[str, list[QueueState] | str] = field(default_factory=dict)
    """Topic → its queues, or why they are unknown."""
    read_at_ms: int | None = None
    """The time at which the last number arrived, by the reader's clock in wall ms; None if numbers did not arrive."""
    resets: dict[tuple[str, str, int], tuple[int, int | None]] = field(default_factory=dict)
    """Group, topic and queue id → the epoch of the latest reset within RESETS_MS, and by how many messages it moved."""
    clock_skew_ms: int | None = None
    """The least difference by which the broker's clock is ahead of the reader's (negative: behind). It is 0 if the time
    that the answer took explains the difference, and None if the broker did not report its time."""

    def unknown_reason(self, topic: str) -> str | None:
        """Return why the numbers of a topic on this broker are unknown; None if they are known."""
        states = self.states.get(topic)
        return self.error or (states if isinstance(states, str) else None)


@dataclass(slots=True)
class Survey:
    """The answers of all brokers, and the data that Postgres stores."""

    views: dict[str, BrokerView]
    metadata: Metadata
    groups: list[str]
    """The requested groups that exist, sorted."""

    @property
    def is_complete(self) -> bool:
        """Whether every broker answered."""
        return all(view.error is None for view in self.views.values())

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the newest subscription of a group's live instances to a topic; None if there is none."""
        found = [
            connection.subscriptions[topic]
            for view in self.views.values()
            if isinstance(connection := view.instances.get(group), ConsumerConnection)
            and topic in connection.subscriptions
        ]
        return max(found, key=lambda one: one.sub_version, default=None)

    def live_topics(self, group: str) -> set[str]:
        """Return the topics that live instances of a group subscribe to."""
        connections = (view.instances.get(group) for view in self.views.values())
        return {
            topic
            for connection in connections
            if isinstance(connection, ConsumerConnection)
            for topic in connection.subscriptions
        }

    def filter(self, group: str, topic: str) -> GroupFilter | None:
        """Return a group's filter on a topic; None if it is unknown.

        It is the filter of the live instances or, without them, the one that Postgres stored last. If brokers or
        Postgres could not be asked, the filter's `error` says so.
        """
        subscription = self.subscription(group, topic)
        if subscription is not None:
            return GroupFilter.of_subscription(subscription)
        last_seen = self.metadata.filters.get(group, {}).get(topic)
        if last_seen is not None:
            return last_seen
        reasons = [view.instances[group] for view in self.views.values() if isinstance(view.instances.get(group), str)]
        reason = self.metadata.error or (reasons[0] if reasons else None)
        return None if reason is None else GroupFilter("", error=f"the group's filter is unknown: {reason}")


async def survey_brokers(engine: ClientEngine, options: Options, pushed: Pushed, *, instances: bool = True) -> Survey:
    """Ask all brokers.

    Args:
        engine: A running engine.
        options: The groups and topics to read, and the address of Postgres.
        pushed: The filters on groups and topics that Spark pushed down.
        instances: Whether to also read the connected clients, and the data that Postgres stores.

    Raises:
        SurveyError: No broker answers, or none is registered.
        ClientError: No name server answers.
    """
    registered = (await engine.cluster_info()).broker_addr_table
    metadata = Metadata()
    if instances and options.database is not None:
        metadata = await engine.in_thread(read_metadata, options.database)
    views = {name: _view(name, data) for name, data in sorted(registered.items())}
    for name in {broker for brokers in metadata.queues.values() for broker in brokers} - registered.keys():
        views[name] = BrokerView(name, None, "", error=f"broker {name}: no name server knows it just now")
    backlog = Backlog(engine)
    await asyncio.gather(*(_fetch_tables(engine, backlog, view) for view in views.values()))
    errors = [view.error for view in views.values() if view.error is not None]
    if len(errors) == len(views):
        raise SurveyError("; ".join(errors) or "no broker is registered with the name servers")
    survey = Survey(views, metadata, [])
    survey.groups = _groups(survey, options, pushed)
    if instances:
        await asyncio.gather(*(_fetch_clients(engine, view, survey.groups) for view in views.values()))
    return survey


def consumed_topics(survey: Survey, options: Options, pushed: Pushed) -> dict[str, set[str]]:
    """Return group → the requested and existing topics that it has committed to or subscribes to.

    If a group has no live instances, its subscriptions in Postgres count.
    """
    exist = {topic for view in survey.views.values() for topic in view.topics}
    if not survey.is_complete:
        # The topics that only a missing broker holds.
        exist |= survey.metadata.queues.keys()
    wanted = {topic for topic in exist if _is_wanted_topic(survey, options, pushed, topic)}
    found: dict[str, set[str]] = {}
    for group in survey.groups:
        topics = {topic for view in survey.views.values() for topic in view.committed.get(group, ())}
        topics |= survey.live_topics(group) or survey.metadata.filters.get(group, {}).keys()
        if topics & wanted:
            found[group] = topics & wanted
    return found


async def read_numbers(engine: ClientEngine, survey: Survey, topics: Iterable[str], pushed: Pushed) -> None:
    """Read committed offsets and the ends of topics' queues, on all brokers that pass the pushed filters, all at once.

    Sets `committed`, `states`, `read_at_ms` and `clock_skew_ms` of the brokers.
    """
    backlog = Backlog(engine)
    wanted = sorted(set(topics))

    async def ask(view: BrokerView) -> None:
        here = [topic for topic in wanted if topic in view.topics]
        address = view.address
        if view.error is not None or address is None or not pushed.passes("broker", view.name):
            return
        try:
            table = await backlog.offset_table(view.name)
            view.committed = table.offsets
            if table.reset_epoch_end is not None:
                # Epochs are near the broker's wall time.
                after = engine.clock.now_ms() - RESETS_MS
                view.resets = resets_of(await backlog.resets(view.name, after=after, until=table.reset_epoch_end))
        except ClientError as error:
            view.error = f"broker {view.name}: {error}"
            return
        view.states.update(await _each(view, here, lambda topic: backlog.queue_states_at(address, topic)))
        if view.error is None:
            view.read_at_ms = engine.clock.now_ms()
            if here:
                view.clock_skew_ms = await _measure_clock_skew(engine, backlog, view.name, here[0])

    await asyncio.gather(*(ask(view) for view in survey.views.values()))


def resets_of(made: Iterable[MadeReset]) -> dict[tuple[str, str, int], tuple[int, int | None]]:
    """Return the epoch of each queue's latest reset, and by how many messages it moved; None if that is unknown."""
    return {
        (reset.group, reset.topic, queue.queue_id): (
            reset.epoch,
            None if queue.offset is None or queue.from_offset is None else queue.offset - queue.from_offset,
        )
        for reset in made
        for queue in reset.queues
    }


def skew_of(broker_ms: int, *, asked_ms: int, answered_ms: int) -> int:
    """Return the least difference by which a broker's clock is ahead (negative: behind). A slow answer is no skew.

    Args:
        broker_ms: The broker's time, taken at some moment between the other two.
        asked_ms: The time of the request, by the reader's clock.
        answered_ms: The time of the answer, by the reader's clock.
    """
    if broker_ms > answered_ms:
        return broker_ms - answered_ms
    return min(0, broker_ms - asked_ms)


async def routed_queues(engine: ClientEngine, survey: Survey, broker: str, topic: str) -> int:
    """Return how many queues a topic should have on a broker that does not answer; 0 if that is unknown."""
    try:
        route = await engine.route(topic)
    except ClientError:
        pass
    else:
        for data in route.queue_datas:
            if data.broker_name == broker:
                return data.read_queue_nums
    return survey.metadata.queues.get(topic, {}).get(broker, 0)


def _view(name: str, data: BrokerData) -> BrokerView:
    address = data.master_address
    error = None if address is not None else f"broker {name}: no master of it is registered just now"
    return BrokerView(name, address, data.cluster, error=error)


async def _fetch_tables(engine: ClientEngine, backlog: Backlog, view: BrokerView) -> None:
    if view.error is not None or view.address is None:
        return
    try:
        view.committed = await backlog.committed_offsets(view.name)
        topics = await engine.call(view.address, RequestCode.GET_ALL_TOPIC_CONFIG)
        table = read_body(TopicConfigSerializeWrapper.decode, topics, view.address).topic_config_table
        view.topics = {name: config.read_queue_nums for name, config in table.items()}
        groups = await engine.call(view.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        view.groups = read_body(SubscriptionGroupWrapper.decode, groups, view.address).subscription_group_table
    except ClientError as error:
        view.error = f"broker {view.name}: {error}"


async def _measure_clock_skew(engine: ClientEngine, backlog: Backlog, broker: str, topic: str) -> int | None:
    """Return a broker's skew; None if the request fails or is unknown to the broker. No other number depends on it."""
    asked_ms = engine.clock.now_ms()
    try:
        (head,) = await backlog.first_unconsumed(broker, [FirstUnconsumedQuery(topic, 0, _BEYOND)])
    except ClientError:
        return None
    return skew_of(head.now_ms, asked_ms=asked_ms, answered_ms=engine.clock.now_ms())


async def _fetch_clients(engine: ClientEngine, view: BrokerView, groups: Iterable[str]) -> None:
    address = view.address
    if view.error is not None or address is None:
        return

    async def ask(group: str) -> ConsumerConnection:
        header = GetConsumerConnectionListHeader(consumer_group=group)
        try:
            response = await engine.call(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        except BrokerError as error:
            if error.code in _NO_INSTANCES:
                return NO_CONNECTIONS
            raise
        return read_body(ConsumerConnection.decode, response, address)

    view.instances.update(await _each(view, list(groups), ask))


async def _each(view: BrokerView, keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> dict[K, T | str]:
    """Ask a broker about each key, REQUESTS_MAX keys at a time. Stop once the broker does not answer."""
    answers: dict[K, T | str] = {}
    waiting = iter(keys)

    async def work() -> None:
        for key in waiting:
            if view.error is not None:
                answers[key] = view.error
                continue
            try:
                answers[key] = await ask(key)
            except NoAnswerError as error:
                view.error = answers[key] = f"broker {view.name}: {error}"
            except ClientError as error:
                answers[key] = f"broker {view.name}: {error}"

    await asyncio.gather(*(work() for _ in range(REQUESTS_MAX)))
    return answers


def _groups(survey: Survey, options: Options, pushed: Pushed) -> list[str]:
    names: set[str] = set()
    for view in survey.views.values():
        names |= view.committed.keys() | view.groups.keys()
    if not survey.is_complete:
        names |= survey.metadata.groups
    if options.groups is not None:
        names &= set(options.groups)
    return sorted(
        name
        for name in names
        if pushed.passes("group", name)
        and (options.include_system or not is_system_group(name) or name in (options.groups or ()))
    )


def _is_wanted_topic(survey: Survey, options: Options, pushed: Pushed, topic: str) -> bool:
    if not pushed.passes("topic", topic):
        return False
    if options.topics is not None:
        return topic in options.topics
    return options.include_system or not any(
        is_system_topic(topic, view.cluster, view.name) for view in survey.views.values()
    )
