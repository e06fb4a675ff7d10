"""The two kinds of configuration that brokers hold, topics and groups, behind one interface.

Use cases and the reconciler treat topics and groups alike. This module has the differences: the requests to brokers,
the error texts, the reserved names, and the updates that name servers and routes need.

`settings` are desired, and kept in a row of Postgres. `present` is the configuration that a broker has now. A broker is
named by its brokerName; requests go to an address, host:port. The homes of a name are the brokers that hold it, or
should hold it (reconciling.homes_of). Errors of name servers are only logged, and their effects repaired later.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError
from gantry.model import names
from gantry.model.group import SubscriptionGroup
from gantry.model.route import BrokerData
from gantry.model.topic import TopicConfig
from gantry.remoting.bodies.config import (
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
    decode_subscription_group,
    decode_topic_config,
    encode_subscription_group,
)
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.group import DeleteSubscriptionGroupHeader, GetSubscriptionGroupConfigHeader
from gantry.remoting.headers.topic import CreateTopicHeader, DeleteTopicHeader, GetTopicConfigHeader
from services.gateway.db.models import Group, Topic
from services.gateway.db.objectives import ObjectiveRepository
from services.gateway.db.repositories import Actor, ConfigRepository, GroupRepository, TopicRepository
from services.gateway.errors import UNKNOWN_GROUP, UNKNOWN_TOPIC, ProblemError, topic_hint
from services.gateway.schemas import configs
from services.gateway.usecases.cluster.brokers import BrokerAnswers
from services.gateway.usecases.configs.hiddenmessages import HiddenMessageCheck
from services.gateway.usecases.configs.namesrvtopics import NameServerTopics
from services.gateway.usecases.configs.reconciling import Settings

ObservedState = TypeVar("ObservedState")
ConfigRow = Topic | Group


class DesiredSettings(Settings[ObservedState], Protocol[ObservedState]):
    """Settings that can also be written to a broker."""

    def applied_to(self, name: str, present: ObservedState | None) -> ObservedState:
        """Return the configuration to write to a broker: `present`, or a new one if None, with these settings."""
        ...

    def kept_as(self, present: ObservedState) -> ObservedState:
        """Return the configuration to write to a broker that has the name but is not one of its homes."""
        ...

    def check(self) -> None:
        """Raise InvalidValueError for values that the types allow and the settings do not."""
        ...


class Change(Protocol[ObservedState]):
    """A change of settings; the settings that it does not name stay as they are."""

    def over(self, base: Any) -> DesiredSettings[ObservedState]:
        """Return the settings after the change; `base` is None if there are none yet."""
        ...


class Kind(Protocol[ObservedState]):
    """Topics or groups; `name` is `topic` or `group`."""

    name: str

    def repository(self, session: AsyncSession) -> ConfigRepository[Any]:
        """Return the repository of the rows."""
        ...

    def read_settings(self, config: Mapping[str, Any]) -> DesiredSettings[ObservedState]:
        """Return the settings of a row."""
        ...

    def observed_column(self, present: Mapping[str, ObservedState]) -> dict[str, Any]:
        """Return the configurations of brokers as a row stores them, by broker."""
        ...

    def adopted(
        self, present: Mapping[str, ObservedState], all_brokers: frozenset[str]
    ) -> DesiredSettings[ObservedState]:
        """Return the settings to import a name that only brokers have; `all_brokers` are all registered ones."""
        ...

    def check_name(self, name: str) -> None:
        """Raise InvalidNameError if the name is not valid."""
        ...

    def is_system(self, name: str, sets: Mapping[str, BrokerData]) -> bool:
        """Return whether the name is reserved for the system. `sets` has all broker sets by brokerName."""
        ...

    async def table(self, address: str) -> Mapping[str, ObservedState]:
        """Return all configurations of a broker, by name. Raises ClientError, BodyError."""
        ...

    async def find(self, address: str, name: str) -> ObservedState | None:
        """Return a broker's configuration of the name, or None if it has none. Raises ClientError, BodyError."""
        ...

    async def put(self, address: str, config: ObservedState) -> None:
        """Write a configuration to a broker. Raises ClientError."""
        ...

    async def drop(self, address: str, name: str) -> None:
        """Delete a configuration from a broker. Raises ClientError."""
        ...

    async def check_hidden_messages(
        self,
        name: str,
        change: Change[ObservedState],
        base: Any,
        asked: BrokerAnswers[ObservedState],
        *,
        held: Collection[str],
    ) -> None:
        """Raise ProblemError if a change would make existing or future messages unreadable.

        Args:
            name: Name of the topic or group.
            change: The change.
            base: Settings before the change; None if there are none.
            asked: Configurations that brokers have under the name now.
            held: Brokers that had the name when they were last observed, registered now or not.
        """
        ...

    def declare(self, name: str, settings: DesiredSettings[ObservedState], homes: Sequence[str]) -> None:
        """Record the homes of the name in this gateway's routes. Called at start and after each reconciler round."""
        ...

    def known_broker_sets(self, name: str) -> frozenset[str]:
        """Return the brokers that this gateway's routes have for the name, even if the routes are old."""
        ...

    def unknown_problem(self, name: str) -> ProblemError:
        """Return the problem (404) for a name that does not exist."""
        ...

    async def after_put(self, name: str, settings: DesiredSettings[ObservedState], homes: Sequence[str]) -> None:
        """Tell routes and name servers that the homes have the name now."""
        ...

    async def after_round(self, desired: Mapping[str, tuple[DesiredSettings[ObservedState], Sequence[str]]]) -> None:
        """Repair name servers after a round of the reconciler; `desired` has settings and homes of all names."""
        ...

    async def delete_parts(self, session: AsyncSession, name: str, actor: Actor) -> None:
        """Delete the rows of other tables that belong to the name, in the transaction that marks it as deleted."""
        ...

    async def after_drop(self, name: str) -> None:
        """Tell routes and name servers that brokers no longer have the name."""
        ...


class TopicKind:
    """Topics."""

    name = "topic"

    def __init__(self, engine: ClientEngine, *, on_change: Callable[[str], None] = lambda topic: None) -> None:
        """Make it; `on_change` is called with the name of a topic that this gateway has changed."""
        self._engine = engine
        self._on_change = on_change
        self._hidden_messages = HiddenMessageCheck(engine)
        self._name_servers = NameServerTopics(engine)

    def repository(self, session: AsyncSession) -> ConfigRepository[Any]:
        """Return the repository of the rows."""
        return TopicRepository(session)

    def read_settings(self, config: Mapping[str, Any]) -> configs.TopicSettings:
        """Return the settings of a row."""
        return configs.read_settings(configs.TopicSettings, config)

    def observed_column(self, present: Mapping[str, TopicConfig]) -> dict[str, Any]:
        """Return the configurations of brokers as a row stores them, by broker."""
        return {broker: configs.observed_topic(config) for broker, config in present.items()}

    def adopted(self, present: Mapping[str, TopicConfig], all_brokers: frozenset[str]) -> configs.TopicSettings:
        """Return the settings with which a topic that only brokers have is imported."""
        return configs.adopted_topic(present, all_brokers)

    def check_name(self, name: str) -> None:
        """Raise InvalidNameError; `%RETRY%` topics may be longer than others."""
        names.check_topic(name, length_max=names.RETRY_TOPIC_LENGTH_MAX if name.startswith("%") else 127)

    def is_system(self, name: str, sets: Mapping[str, BrokerData]) -> bool:
        """Return whether the name is reserved: for the system, or because a broker or a cluster has this name."""
        if names.is_system_topic(name) or names.is_retry_topic(name) or names.is_dlq_topic(name):
            return True
        return any(names.is_system_topic(name, broker.cluster, broker.broker_name) for broker in sets.values())

    async def table(self, address: str) -> Mapping[str, TopicConfig]:
        """Return all topics of a broker."""
        response = await self._engine.call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return TopicConfigSerializeWrapper.decode(response.body_bytes).topic_config_table

    async def find(self, address: str, name: str) -> TopicConfig | None:
        """Return a broker's configuration of the topic."""
        header = GetTopicConfigHeader(topic=name)
        body = await _found(self._engine, address, RequestCode.GET_TOPIC_CONFIG, header, ResponseCode.TOPIC_NOT_EXIST)
        return None if body is None else decode_topic_config(body)

    async def put(self, address: str, config: TopicConfig) -> None:
        """Create or change a topic on a broker."""
        header = CreateTopicHeader(
            topic=config.topic_name,
            default_topic=names.AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=configs.attribute_changes(config),
        )
        await self._engine.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def drop(self, address: str, name: str) -> None:
        """Delete a topic on a broker."""
        await self._engine.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader(topic=name))

    async def check_hidden_messages(
        self,
        name: str,
        change: Change[TopicConfig],
        base: Any,
        asked: BrokerAnswers[TopicConfig],
        *,
        held: Collection[str],
    ) -> None:
        """Raise ProblemError: 409: the change hides messages; 503: a broker that may hold messages does not answer."""
        assert isinstance(change, configs.TopicChange)
        if not change.allow_hiding:
            await self._hidden_messages.check(name, change, base, asked, held=held)

    def known_broker_sets(self, name: str) -> frozenset[str]:
        """Return the brokers that routes and declarations name for a topic."""
        return self._engine.known_broker_sets(name)

    def unknown_problem(self, name: str) -> ProblemError:
        """Return the problem (404) for a topic that does not exist."""
        return ProblemError(UNKNOWN_TOPIC, topic_hint(name), field="topic")

    def declare(self, name: str, settings: DesiredSettings[TopicConfig], homes: Sequence[str]) -> None:
        """Set the queues that the producers' routes use for ordering keys."""
        self._engine.set_desired_queues(name, _write_queues(name, settings, homes))

    async def after_put(self, name: str, settings: DesiredSettings[TopicConfig], homes: Sequence[str]) -> None:
        """Set the queues for ordering keys, and update the list of ordered topics on name servers."""
        self._on_change(name)
        self.declare(name, settings, homes)
        if settings.applied_to(name, None).order:
            await self._name_servers.put_order(name, _write_queues(name, settings, homes))
        else:
            await self._name_servers.delete_order(name)

    async def after_round(self, desired: Mapping[str, tuple[DesiredSettings[TopicConfig], Sequence[str]]]) -> None:
        """Repair the list of ordered topics on name servers that missed a change."""
        await self._name_servers.repair_orders(
            {
                name: _write_queues(name, settings, homes)
                for name, (settings, homes) in desired.items()
                if settings.applied_to(name, None).order
            }
        )

    async def delete_parts(self, session: AsyncSession, name: str, actor: Actor) -> None:
        """Do nothing: no other rows belong to a topic. An objective for a topic belongs to its group."""

    async def after_drop(self, name: str) -> None:
        """Delete the topic from name servers and from this gateway's routes."""
        self._engine.forget_topic(name)
        await self._name_servers.delete_topic(name)


class GroupKind:
    """Consumer groups."""

    name = "group"

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine

    def repository(self, session: AsyncSession) -> ConfigRepository[Any]:
        """Return the repository of the rows."""
        return GroupRepository(session)

    def read_settings(self, config: Mapping[str, Any]) -> configs.GroupSettings:
        """Return the settings of a row."""
        return configs.read_settings(configs.GroupSettings, config)

    def observed_column(self, present: Mapping[str, SubscriptionGroup]) -> dict[str, Any]:
        """Return the configurations of brokers as a row stores them, by broker."""
        return {broker: configs.observed_group(config) for broker, config in present.items()}

    def adopted(self, present: Mapping[str, SubscriptionGroup], all_brokers: frozenset[str]) -> configs.GroupSettings:
        """Return the settings with which a group that only brokers have is imported."""
        return configs.adopted_group(present, all_brokers)

    def check_name(self, name: str) -> None:
        """Raise InvalidNameError if the name is not valid."""
        names.check_group(name)

    def is_system(self, name: str, sets: Mapping[str, BrokerData]) -> bool:
        """Return whether the name is reserved for the system."""
        return names.is_system_group(name)

    async def table(self, address: str) -> Mapping[str, SubscriptionGroup]:
        """Return all groups of a broker."""
        response = await self._engine.call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return SubscriptionGroupWrapper.decode(response.body_bytes).subscription_group_table

    async def find(self, address: str, name: str) -> SubscriptionGroup | None:
        """Return a broker's configuration of the group."""
        header = GetSubscriptionGroupConfigHeader(group=name)
        code, missing = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        body = await _found(self._engine, address, code, header, missing)
        return None if body is None else decode_subscription_group(body)

    async def put(self, address: str, config: SubscriptionGroup) -> None:
        """Create or change a group on a broker."""
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._engine.call(address, code, body=encode_subscription_group(config))

    async def drop(self, address: str, name: str) -> None:
        """Delete a group and its offsets on a broker."""
        header = DeleteSubscriptionGroupHeader(group_name=name, clean_offset=True)
        await self._engine.call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def check_hidden_messages(
        self,
        name: str,
        change: Change[SubscriptionGroup],
        base: Any,
        asked: BrokerAnswers[SubscriptionGroup],
        *,
        held: Collection[str],
    ) -> None:
        """Do nothing: a group holds no messages."""

    def known_broker_sets(self, name: str) -> frozenset[str]:
        """Return an empty set: no route names a group."""
        return frozenset()

    def unknown_problem(self, name: str) -> ProblemError:
        """Return the problem (404) for a group that does not exist."""
        path = f"/v1/groups/{name.replace('%', '%25')}"
        detail = f"group: {name!r} does not exist; PUT {path} or its first consumer creates it"
        return ProblemError(UNKNOWN_GROUP, detail, field="group")

    def declare(self, name: str, settings: DesiredSettings[SubscriptionGroup], homes: Sequence[str]) -> None:
        """Do nothing: a group has no queues."""

    async def after_put(self, name: str, settings: DesiredSettings[SubscriptionGroup], homes: Sequence[str]) -> None:
        """Do nothing: name servers and routes do not know groups."""

    async def after_round(
        self, desired: Mapping[str, tuple[DesiredSettings[SubscriptionGroup], Sequence[str]]]
    ) -> None:
        """Do nothing: name servers do not know groups."""

    async def delete_parts(self, session: AsyncSession, name: str, actor: Actor) -> None:
        """Delete the group's objectives; otherwise they would apply to a later group of the same name."""
        await ObjectiveRepository(session).delete_all(name, actor=actor)

    async def after_drop(self, name: str) -> None:
        """Do nothing: name servers and routes do not know groups."""


def _write_queues(name: str, settings: DesiredSettings[TopicConfig], homes: Sequence[str]) -> dict[str, int]:
    """Return the number of write queues that a topic should have on each of its homes."""
    return dict.fromkeys(homes, settings.applied_to(name, None).write_queue_nums)


async def _found(engine: ClientEngine, address: str, code: int, header: Any, missing: ResponseCode) -> bytes | None:
    """Return the body of the answer, or None if the broker answers with the code `missing`. Raises ClientError."""
    try:
        response = await engine.call(address, code, header)
    except BrokerError as error:
        if error.code == missing:
            return None
        raise
    return bytes(response.body_bytes)
