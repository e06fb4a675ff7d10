"""The configuration of topics and groups: the bodies of 18, 21, 200, 201, 225, 322, 351 and 352."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from gantry.model.group import SubscriptionGroup
from gantry.model.topic import DataVersion, TopicConfig
from gantry.remoting.bodies.beans import DataVersionBean, SubscriptionGroupBean, TopicConfigBean, version_of
from gantry.remoting.bodies.fastjson import JsonBody, decode_json, encode_json
from gantry.remoting.errors import BodyError


def encode_data_version(version: DataVersion) -> bytes:
    """Return a DataVersion as JSON: the body of 322 and of its response, and a header field of the response to 26."""
    return encode_json(DataVersionBean.of(version))


def decode_data_version(data: bytes) -> DataVersion:
    """Decode a DataVersion.

    Raises:
        BodyError: The data is not a DataVersion.
    """
    return DataVersionBean.decode(data).to_model()


def encode_topic_config(config: TopicConfig) -> bytes:
    """Return a TopicConfig as JSON: the body of the response to 351."""
    return encode_json(TopicConfigBean.of(config))


def decode_topic_config(data: bytes) -> TopicConfig:
    """Decode a TopicConfig.

    Raises:
        BodyError: The data is not a TopicConfig, or it has no name.
    """
    return _named(TopicConfigBean.decode(data).to_model())


def encode_subscription_group(group: SubscriptionGroup) -> bytes:
    """Return the configuration of a group as JSON: the body of 200 and of the response to 352."""
    return encode_json(SubscriptionGroupBean.of(group))


def decode_subscription_group(data: bytes) -> SubscriptionGroup:
    """Decode the configuration of a group.

    Raises:
        BodyError: The data is not the configuration of a group, or it has no name.
    """
    return _named_group(SubscriptionGroupBean.decode(data).to_model())


class _TopicConfigListBean(JsonBody, kw_only=True):
    topic_config_list: list[TopicConfigBean]


def encode_topic_configs(configs: Iterable[TopicConfig]) -> bytes:
    """Return several TopicConfigs as JSON: the body of 18."""
    return encode_json(_TopicConfigListBean(topic_config_list=[TopicConfigBean.of(config) for config in configs]))


def decode_topic_configs(data: bytes) -> list[TopicConfig]:
    """Decode the body of 18.

    Raises:
        BodyError: The data is not a list of configurations, or a configuration has no name.
    """
    return [_named(bean.to_model()) for bean in _TopicConfigListBean.decode(data).topic_config_list]


class _GroupConfigListBean(JsonBody, kw_only=True):
    group_config_list: list[SubscriptionGroupBean]


def encode_subscription_groups(groups: Iterable[SubscriptionGroup]) -> bytes:
    """Return the configurations of several groups as JSON: the body of 225."""
    return encode_json(_GroupConfigListBean(group_config_list=[SubscriptionGroupBean.of(group) for group in groups]))


def decode_subscription_groups(data: bytes) -> list[SubscriptionGroup]:
    """Decode the body of 225.

    Raises:
        BodyError: The data is not a list of configurations, or a configuration has no name.
    """
    return [_named_group(bean.to_model()) for bean in _GroupConfigListBean.decode(data).group_config_list]


class TopicTableBean(JsonBody, kw_only=True):
    """The JSON shape of TopicConfigSerializeWrapper. The mapping members belong to static topics and stay empty."""

    data_version: DataVersionBean | None = None
    mapping_data_version: DataVersionBean | None = None
    topic_config_table: dict[str, TopicConfigBean] | None = None
    topic_queue_mapping_detail_map: dict[str, object] | None = None
    topic_queue_mapping_info_map: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class TopicConfigSerializeWrapper:
    """The topics of a broker: the response to 21, and a part of the body of 103."""

    topic_config_table: Mapping[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)

    def to_bean(self) -> TopicTableBean:
        """Return the JSON shape."""
        return TopicTableBean(
            data_version=DataVersionBean.of(self.data_version),
            mapping_data_version=DataVersionBean.of(self.mapping_data_version),
            topic_config_table={name: TopicConfigBean.of(config) for name, config in self.topic_config_table.items()},
            topic_queue_mapping_detail_map={},
            topic_queue_mapping_info_map={},
        )

    @classmethod
    def of_bean(cls, bean: TopicTableBean) -> Self:
        """Return the topics that a JSON shape contains."""
        table = bean.topic_config_table or {}
        return cls(
            topic_config_table={name: config.to_model(name) for name, config in table.items()},
            data_version=version_of(bean.data_version),
            mapping_data_version=version_of(bean.mapping_data_version),
        )

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(self.to_bean())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not a table of topics.
        """
        return cls.of_bean(TopicTableBean.decode(data))


class _GroupTableBean(JsonBody, kw_only=True):
    data_version: DataVersionBean | None = None
    forbidden_table: dict[str, dict[str, int]] | None = None
    subscription_group_table: dict[str, SubscriptionGroupBean] | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionGroupWrapper:
    """The groups of a broker: the response to 201. forbidden_table: group → topic → bits (bit 0: may not read)."""

    subscription_group_table: Mapping[str, SubscriptionGroup] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(
            _GroupTableBean(
                data_version=DataVersionBean.of(self.data_version),
                forbidden_table={group: dict(topics) for group, topics in self.forbidden_table.items()},
                subscription_group_table={
                    name: SubscriptionGroupBean.of(group) for name, group in self.subscription_group_table.items()
                },
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not a table of groups.
        """
        bean = decode_json(_GroupTableBean, data)
        table = bean.subscription_group_table or {}
        return cls(
            subscription_group_table={name: group.to_model(name) for name, group in table.items()},
            data_version=version_of(bean.data_version),
            forbidden_table=bean.forbidden_table or {},
        )


def _named(config: TopicConfig) -> TopicConfig:
    if not config.topic_name:
        raise BodyError("TopicConfig", "topicName", "is missing")
    return config


def _named_group(group: SubscriptionGroup) -> SubscriptionGroup:
    if not group.group_name:
        raise BodyError("SubscriptionGroupConfig", "groupName", "is missing")
    return group
