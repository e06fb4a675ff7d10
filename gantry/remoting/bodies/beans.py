"""The JSON shapes of model classes that several bodies use."""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from gantry.model.group import SubscriptionData, SubscriptionGroup
from gantry.model.route import BrokerData, QueueData
from gantry.model.topic import DataVersion, TopicConfig
from gantry.remoting.bodies.fastjson import JsonBody, integer_keys
from gantry.remoting.wireheader import Int32

UNSET = msgspec.UNSET
Unset = msgspec.UnsetType


class DataVersionBean(JsonBody, kw_only=True):
    """A DataVersion. Release 4.9 writes no stateVersion."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    @classmethod
    def of(cls, version: DataVersion) -> Self:
        """Return the JSON shape of a model object."""
        return cls(counter=version.counter, state_version=version.state_version, timestamp=version.timestamp)

    def to_model(self) -> DataVersion:
        """Return the model object."""
        return DataVersion(state_version=self.state_version, timestamp=self.timestamp, counter=self.counter)


def version_of(bean: DataVersionBean | None) -> DataVersion:
    """Return the model object, or the version of a table that was never changed if `bean` is None."""
    return DataVersion() if bean is None else bean.to_model()


class TopicConfigBean(JsonBody, kw_only=True):
    """A TopicConfig. Release 4.9 writes no attributes."""

    attributes: dict[str, str] | None = None
    order: bool = False
    perm: Int32 = 6
    read_queue_nums: Int32 = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str | None = None
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16

    @classmethod
    def of(cls, config: TopicConfig) -> Self:
        """Return the JSON shape of a model object."""
        return cls(
            attributes=dict(config.attributes),
            order=config.order,
            perm=int(config.perm),
            read_queue_nums=config.read_queue_nums,
            topic_filter_type=config.topic_filter_type,
            topic_name=config.topic_name,
            topic_sys_flag=config.topic_sys_flag,
            write_queue_nums=config.write_queue_nums,
        )

    def to_model(self, name: str | None = None) -> TopicConfig:
        """Return the model object. `name` is its key in the table; some peers do not repeat the name in the value."""
        return TopicConfig(
            topic_name=self.topic_name or name or "",
            read_queue_nums=self.read_queue_nums,
            write_queue_nums=self.write_queue_nums,
            perm=self.perm,
            order=self.order,
            topic_filter_type=self.topic_filter_type,
            topic_sys_flag=self.topic_sys_flag,
            attributes=self.attributes or {},
        )


class SubscriptionGroupBean(JsonBody, kw_only=True):
    """A SubscriptionGroupConfig. Release 4.9 writes five members fewer."""

    attributes: dict[str, str] | None = None
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: Int32 = 15
    group_name: str | None = None
    group_retry_policy: dict[str, Any] | None = None
    group_sys_flag: Int32 = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int32 = 16
    retry_queue_nums: Int32 = 1
    which_broker_when_consume_slowly: int = 1

    @classmethod
    def of(cls, group: SubscriptionGroup) -> Self:
        """Return the JSON shape of a model object."""
        return cls(
            attributes=dict(group.attributes),
            broker_id=group.broker_id,
            consume_broadcast_enable=group.consume_broadcast_enable,
            consume_enable=group.consume_enable,
            consume_from_min_enable=group.consume_from_min_enable,
            consume_message_orderly=group.consume_message_orderly,
            consume_timeout_minute=group.consume_timeout_minute,
            group_name=group.group_name,
            group_retry_policy=dict(group.group_retry_policy),
            group_sys_flag=group.group_sys_flag,
            notify_consumer_ids_changed_enable=group.notify_consumer_ids_changed_enable,
            retry_max_times=group.retry_max_times,
            retry_queue_nums=group.retry_queue_nums,
            which_broker_when_consume_slowly=group.which_broker_when_consume_slowly,
        )

    def to_model(self, name: str | None = None) -> SubscriptionGroup:
        """Return the model object. `name` is its key in the table."""
        return SubscriptionGroup(
            group_name=self.group_name or name or "",
            consume_enable=self.consume_enable,
            consume_from_min_enable=self.consume_from_min_enable,
            consume_broadcast_enable=self.consume_broadcast_enable,
            consume_message_orderly=self.consume_message_orderly,
            retry_queue_nums=self.retry_queue_nums,
            retry_max_times=self.retry_max_times,
            group_retry_policy=self.group_retry_policy or {"type": "CUSTOMIZED"},
            broker_id=self.broker_id,
            which_broker_when_consume_slowly=self.which_broker_when_consume_slowly,
            notify_consumer_ids_changed_enable=self.notify_consumer_ids_changed_enable,
            group_sys_flag=self.group_sys_flag,
            consume_timeout_minute=self.consume_timeout_minute,
            attributes=self.attributes or {},
        )


class SubscriptionDataBean(JsonBody, kw_only=True):
    """A SubscriptionData. Clients in other languages than Java omit some members."""

    class_filter_mode: bool = False
    code_set: list[int] | None = None
    expression_type: str | None = "TAG"
    sub_string: str | None = "*"
    sub_version: int = 0
    tags_set: list[str] | None = None
    topic: str

    @classmethod
    def of(cls, subscription: SubscriptionData) -> Self:
        """Return the JSON shape of a model object."""
        return cls(
            class_filter_mode=subscription.class_filter_mode,
            code_set=sorted(subscription.code_set),
            expression_type=subscription.expression_type,
            sub_string=subscription.sub_string,
            sub_version=subscription.sub_version,
            tags_set=sorted(subscription.tags_set),
            topic=subscription.topic,
        )

    def to_model(self) -> SubscriptionData:
        """Return the model object."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.sub_string or "*",
            tags_set=frozenset(self.tags_set or ()),
            code_set=frozenset(self.code_set or ()),
            sub_version=self.sub_version,
            expression_type=self.expression_type or "TAG",
            class_filter_mode=self.class_filter_mode,
        )


class BrokerDataBean(JsonBody, kw_only=True):
    """A BrokerData for decoding. `written_broker_data` gives the shape for encoding."""

    broker_addrs: dict[int, str] | None = None
    broker_name: str
    cluster: str | None = ""
    enable_acting_master: bool = False
    zone_name: str | None = None

    def to_model(self) -> BrokerData:
        """Return the model object."""
        return BrokerData(
            cluster=self.cluster or "",
            broker_name=self.broker_name,
            broker_addrs=self.broker_addrs or {},
            zone_name=self.zone_name,
            enable_acting_master=self.enable_acting_master,
        )


class _WrittenBrokerData(JsonBody, kw_only=True):
    broker_addrs: msgspec.Raw | dict[str, str]
    broker_name: str
    cluster: str
    enable_acting_master: bool
    zone_name: str | Unset


def written_broker_data(data: BrokerData, *, standard_json: bool) -> JsonBody:
    """Return the shape to encode for a BrokerData: broker ids with quotes (`standard_json`) or without quotes."""
    return _WrittenBrokerData(
        broker_addrs=_broker_addrs(data.broker_addrs, standard_json=standard_json),
        broker_name=data.broker_name,
        cluster=data.cluster,
        enable_acting_master=data.enable_acting_master,
        zone_name=UNSET if data.zone_name is None else data.zone_name,
    )


def _broker_addrs(addrs: Mapping[int, str], *, standard_json: bool) -> msgspec.Raw | dict[str, str]:
    ordered = {broker_id: addrs[broker_id] for broker_id in sorted(addrs)}
    return {str(key): value for key, value in ordered.items()} if standard_json else integer_keys(ordered)


class QueueDataBean(JsonBody, kw_only=True):
    """A QueueData. Releases before 4.9 write `topicSynFlag` instead of `topicSysFlag`."""

    broker_name: str
    perm: Int32 = 6
    read_queue_nums: Int32
    topic_syn_flag: Int32 | Unset = UNSET
    topic_sys_flag: Int32 | Unset = UNSET
    write_queue_nums: Int32

    @classmethod
    def of(cls, data: QueueData) -> Self:
        """Return the JSON shape of a model object."""
        return cls(
            broker_name=data.broker_name,
            perm=int(data.perm),
            read_queue_nums=data.read_queue_nums,
            topic_sys_flag=data.topic_sys_flag,
            write_queue_nums=data.write_queue_nums,
        )

    def to_model(self) -> QueueData:
        """Return the model object."""
        flag = self.topic_syn_flag if self.topic_sys_flag is UNSET else self.topic_sys_flag
        return QueueData(
            broker_name=self.broker_name,
            read_queue_nums=self.read_queue_nums,
            write_queue_nums=self.write_queue_nums,
            perm=self.perm,
            topic_sys_flag=0 if flag is UNSET else flag,
        )
