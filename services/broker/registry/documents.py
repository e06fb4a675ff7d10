"""The shapes of config/*.json, and which table each of them keeps (docs/formats/config.md).

    topics.json              TopicTable     on change
    subscriptionGroup.json   GroupTable     on change
    consumerOffset.json      OffsetTable    every 5 s
    delayOffset.json         read only here: what a store from elsewhere has, answered to request 45
    gantry-settings.json     what request 25 changed; Gantry's own

4.9 writes less (no stateVersion, no attributes, no forbiddenTable, no dataVersion of offsets); what is missing takes
its default. `groupTopicMap` is derived and not read.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gantry.model.group import SubscriptionGroup
from gantry.model.topic import DataVersion, TopicConfig
from gantry.remoting.bodies import DelayOffsetWrapper
from gantry.remoting.bodies.beans import DataVersionBean, SubscriptionGroupBean, TopicConfigBean
from gantry.runtime.files import FileSystem
from services.broker.registry.configfile import read_config
from services.broker.registry.groups import GroupTable
from services.broker.registry.offsets import OffsetTable, topics_by_group
from services.broker.registry.topics import TopicTable

CONFIG_DIR = "config"
TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
OFFSETS_FILE = "consumerOffset.json"
DELAY_OFFSETS_FILE = "delayOffset.json"
SETTINGS_FILE = "gantry-settings.json"

_NO_VERSION = DataVersionBean()


class _Topics(msgspec.Struct, rename="camel"):
    data_version: DataVersionBean | None = None
    topic_config_table: dict[str, TopicConfigBean] | None = None


class _Groups(msgspec.Struct, rename="camel"):
    data_version: DataVersionBean | None = None
    forbidden_table: dict[str, dict[str, int]] | None = None
    subscription_group_table: dict[str, SubscriptionGroupBean] | None = None


class _Offsets(msgspec.Struct, rename="camel"):
    data_version: DataVersionBean | None = None
    offset_table: dict[str, dict[int, int]] | None = None


class _DelayOffsets(msgspec.Struct, rename="camel"):
    data_version: DataVersionBean | None = None
    offset_table: dict[int, int] | None = None


class KeptSettings(msgspec.Struct):
    """gantry-settings.json: texts by the settings' names, as request 25 brought them."""

    data_version: DataVersionBean = msgspec.field(default_factory=DataVersionBean)
    settings: dict[str, str] = {}


def config_path(root_dir: str, name: str) -> str:
    """Return where a config file lies in a store."""
    return f"{root_dir}/{CONFIG_DIR}/{name}"


def load_topics(files: FileSystem, root_dir: str, table: TopicTable) -> None:
    """Fill the table from its file. Raises StartupError."""
    read = read_config(files, config_path(root_dir, TOPICS_FILE), _Topics)
    if read is not None:
        configs = (bean.to_model(name) for name, bean in (read.topic_config_table or {}).items())
        table.load((read.data_version or _NO_VERSION).to_model(), configs)


def load_groups(files: FileSystem, root_dir: str, table: GroupTable) -> None:
    """Fill the table from its file. Raises StartupError."""
    read = read_config(files, config_path(root_dir, GROUPS_FILE), _Groups)
    if read is not None:
        groups = (bean.to_model(name) for name, bean in (read.subscription_group_table or {}).items())
        table.load((read.data_version or _NO_VERSION).to_model(), groups, read.forbidden_table)


def load_offsets(files: FileSystem, root_dir: str, table: OffsetTable) -> None:
    """Fill the table from its file. Raises StartupError."""
    read = read_config(files, config_path(root_dir, OFFSETS_FILE), _Offsets)
    if read is not None:
        table.load((read.data_version or _NO_VERSION).to_model(), read.offset_table or {})


def load_delay_offsets(files: FileSystem, root_dir: str) -> DelayOffsetWrapper:
    """Read what the store says of delay levels. Raises StartupError."""
    read = read_config(files, config_path(root_dir, DELAY_OFFSETS_FILE), _DelayOffsets) or _DelayOffsets()
    return DelayOffsetWrapper(read.offset_table or {}, (read.data_version or _NO_VERSION).to_model())


def load_kept_settings(files: FileSystem, root_dir: str) -> KeptSettings:
    """Read what request 25 changed. Raises StartupError."""
    return read_config(files, config_path(root_dir, SETTINGS_FILE), KeptSettings) or KeptSettings()


def topics_document(version: DataVersion, table: Mapping[str, TopicConfig]) -> dict[str, Any]:
    """Return topics.json."""
    return {
        "dataVersion": version_document(version),
        "topicConfigTable": {name: msgspec.to_builtins(TopicConfigBean.of(config)) for name, config in table.items()},
    }


def groups_document(
    version: DataVersion, table: Mapping[str, SubscriptionGroup], forbidden: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    """Return subscriptionGroup.json."""
    return {
        "dataVersion": version_document(version),
        "forbiddenTable": forbidden,
        "subscriptionGroupTable": {
            name: msgspec.to_builtins(SubscriptionGroupBean.of(group)) for name, group in table.items()
        },
    }


def offsets_document(version: DataVersion, table: Mapping[str, Mapping[int, int]]) -> dict[str, Any]:
    """Return consumerOffset.json; `groupTopicMap` is what RocketMQ derives from the table."""
    return {
        "dataVersion": version_document(version),
        "groupTopicMap": topics_by_group(table),
        "offsetTable": table,
    }


def settings_document(version: DataVersion, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return gantry-settings.json."""
    return {"data_version": version_document(version), "settings": dict(settings)}


def version_document(version: DataVersion) -> dict[str, int]:
    """Return a DataVersion as JSON holds it."""
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}
