"""The shapes of config/*.json, and the table that each file keeps (docs/formats/config.md).

    topics.json              TopicTable         saved on change
    subscriptionGroup.json   GroupTable         saved on change
    consumerOffset.json      OffsetTable        saved every 5 s
    delayOffset.json         DelayOffsetTable   saved every 10 s
    gantry-settings.json     changes by request 25; Gantry's own file
    gantry-resets.json       ResetTable         saved on change; Gantry's own file

RocketMQ 4.9 writes fewer members (no stateVersion, no attributes, no forbiddenTable, no dataVersion of offsets). A
missing member takes its default. The files of all releases have the table itself (gantry.storeformat.configtables).
`groupTopicMap` is derived from the table and not read.
"""

from collections.abc import Callable, Mapping

import msgspec

from gantry.model.topic import DataVersion
from gantry.remoting.bodies.beans import DataVersionBean, SubscriptionGroupBean, TopicConfigBean
from gantry.runtime.files import FileSystem
from gantry.runtime.telemetry import logger
from services.broker.registry.configfile import ConfigFile
from services.broker.registry.configtext import ConfigText, EntryTexts
from services.broker.registry.delayoffsets import DelayOffsetTable
from services.broker.registry.groups import GroupTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.resets import Reset, ResetTable
from services.broker.registry.topics import TopicTable

log = logger("broker.config")

CONFIG_DIR = "config"
TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
OFFSETS_FILE = "consumerOffset.json"
DELAY_OFFSETS_FILE = "delayOffset.json"
SETTINGS_FILE = "gantry-settings.json"
RESETS_FILE = "gantry-resets.json"

_NO_VERSION = DataVersionBean()


class _Topics(msgspec.Struct, kw_only=True, rename="camel"):
    data_version: DataVersionBean | None = None
    topic_config_table: dict[str, TopicConfigBean]


class _Groups(msgspec.Struct, kw_only=True, rename="camel"):
    data_version: DataVersionBean | None = None
    forbidden_table: dict[str, dict[str, int]] | None = None
    subscription_group_table: dict[str, SubscriptionGroupBean]


class _Offsets(msgspec.Struct, kw_only=True, rename="camel"):
    data_version: DataVersionBean | None = None
    offset_table: dict[str, dict[int, int]]


class _DelayOffsets(msgspec.Struct, kw_only=True, rename="camel"):
    data_version: DataVersionBean | None = None
    offset_table: dict[int, int]


class _Resets(msgspec.Struct):
    resets: dict[str, dict[int, Reset]]


class KeptSettings(msgspec.Struct):
    """The content of gantry-settings.json: texts by names of settings, as request 25 gave them."""

    data_version: DataVersionBean = msgspec.field(default_factory=DataVersionBean)
    settings: dict[str, str] = {}


def config_path(root_dir: str, name: str) -> str:
    """Return the path of a config file in a store."""
    return f"{root_dir}/{CONFIG_DIR}/{name}"


def load_topics(files: FileSystem, root_dir: str, table: TopicTable) -> ConfigFile:
    """Fill the table from its file. Return the file for later saves. Raises StartupError."""
    file = ConfigFile(files, config_path(root_dir, TOPICS_FILE))
    read = file.read(_Topics)
    if read is not None:
        configs = (bean.to_model(name) for name, bean in read.topic_config_table.items())
        table.load((read.data_version or _NO_VERSION).to_model(), configs)
    return file


def load_groups(files: FileSystem, root_dir: str, table: GroupTable) -> ConfigFile:
    """Fill the table from its file. Return the file for later saves. Raises StartupError."""
    file = ConfigFile(files, config_path(root_dir, GROUPS_FILE))
    read = file.read(_Groups)
    if read is not None:
        groups = (bean.to_model(name) for name, bean in read.subscription_group_table.items())
        table.load((read.data_version or _NO_VERSION).to_model(), groups, read.forbidden_table)
    return file


def load_offsets(files: FileSystem, root_dir: str, table: OffsetTable) -> ConfigFile:
    """Fill the table from its file. Return the file for later saves. Raises StartupError."""
    file = ConfigFile(files, config_path(root_dir, OFFSETS_FILE))
    read = file.read(_Offsets)
    if read is not None:
        table.load((read.data_version or _NO_VERSION).to_model(), _committed(read.offset_table))
    return file


def _committed(table: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """Remove negative offsets: RocketMQ stores every commit of a client, and -1 stands for no offset."""
    negative = sum(offset < 0 for queues in table.values() for offset in queues.values())
    if not negative:
        return table
    log.warning("negative committed offsets count as none", file=OFFSETS_FILE, count=negative)
    return {
        key: {queue_id: offset for queue_id, offset in queues.items() if offset >= 0} for key, queues in table.items()
    }


def load_delay_offsets(files: FileSystem, root_dir: str, table: DelayOffsetTable) -> ConfigFile:
    """Fill the table from its file. Return the file for later saves. Raises StartupError."""
    file = ConfigFile(files, config_path(root_dir, DELAY_OFFSETS_FILE))
    read = file.read(_DelayOffsets)
    if read is not None:
        table.load((read.data_version or _NO_VERSION).to_model(), read.offset_table)
    return file


def load_resets(files: FileSystem, root_dir: str, table: ResetTable) -> ConfigFile:
    """Fill the table from its file. Return the file for later saves. Raises StartupError."""
    file = ConfigFile(files, config_path(root_dir, RESETS_FILE))
    read = file.read(_Resets)
    if read is not None:
        table.load(read.resets)
    return file


def load_kept_settings(files: FileSystem, root_dir: str) -> KeptSettings:
    """Read the settings that request 25 has changed. Raises StartupError."""
    return ConfigFile(files, config_path(root_dir, SETTINGS_FILE)).read(KeptSettings) or KeptSettings()


def topics_text(topics: TopicTable) -> ConfigText:
    """Return the text of topics.json."""

    def find(name: str) -> TopicConfigBean | None:
        config = topics.find(name)
        return None if config is None else TopicConfigBean.of(config)

    return ConfigText(
        {
            "dataVersion": lambda: version_document(topics.version),
            "topicConfigTable": EntryTexts(topics.unsaved, find),
        }
    )


def groups_text(groups: GroupTable) -> ConfigText:
    """Return the text of subscriptionGroup.json."""

    def find(name: str) -> SubscriptionGroupBean | None:
        group = groups.find(name)
        return None if group is None else SubscriptionGroupBean.of(group)

    return ConfigText(
        {
            "dataVersion": lambda: version_document(groups.version),
            "forbiddenTable": lambda: groups.forbidden,
            "subscriptionGroupTable": EntryTexts(groups.unsaved, find),
        }
    )


def offsets_text(offsets: OffsetTable) -> ConfigText:
    """Return the text of consumerOffset.json. RocketMQ derives `groupTopicMap` from the table in the same way."""
    return ConfigText(
        {
            "dataVersion": lambda: version_document(offsets.version),
            "groupTopicMap": EntryTexts(offsets.unsaved_groups, lambda group: offsets.topics_of(group) or None),
            "offsetTable": EntryTexts(offsets.unsaved, offsets.all().get),
        }
    )


def delay_offsets_text(table: DelayOffsetTable) -> ConfigText:
    """Return the text of delayOffset.json."""
    return ConfigText(
        {
            "dataVersion": lambda: version_document(table.version),
            "offsetTable": lambda: dict(sorted(table.offsets.items())),
        }
    )


def resets_text(table: ResetTable) -> ConfigText:
    """Return the text of gantry-resets.json."""
    return ConfigText({"resets": EntryTexts(table.unsaved, table.rows)})


def settings_text(version: Callable[[], DataVersion], settings: Callable[[], Mapping[str, str]]) -> ConfigText:
    """Return the text of gantry-settings.json."""
    return ConfigText({"data_version": lambda: version_document(version()), "settings": lambda: dict(settings())})


def version_document(version: DataVersion) -> dict[str, int]:
    """Return a DataVersion in its JSON form."""
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}
