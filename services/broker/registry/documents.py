"""The shapes of config/*.json, and which table each of them keeps (docs/formats/config.md).

    topics.json              TopicTable     on change
    subscriptionGroup.json   GroupTable     on change
    consumerOffset.json      OffsetTable    every 5 s
    delayOffset.json         read only here: what a store from elsewhere has, answered to request 45
    gantry-settings.json     what request 25 changed; Gantry's own

4.9 writes less (no stateVersion, no attributes, no forbiddenTable, no dataVersion of offsets); such a member takes its
default. The table itself is in the files of all releases (gantry.storeformat.configtables). `groupTopicMap` is derived
and not read.
"""

from collections.abc import Callable, Mapping

import msgspec

from gantry.model.topic import DataVersion
from gantry.remoting.bodies import DelayOffsetWrapper
from gantry.remoting.bodies.beans import DataVersionBean, SubscriptionGroupBean, TopicConfigBean
from gantry.runtime.files import FileSystem
from gantry.runtime.telemetry import logger
from services.broker.registry.configfile import ConfigFile
from services.broker.registry.configtext import ConfigText, EntryTexts
from services.broker.registry.groups import GroupTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import TopicTable

log = logger("broker.config")

CONFIG_DIR = "config"
TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
OFFSETS_FILE = "consumerOffset.json"
DELAY_OFFSETS_FILE = "delayOffset.json"
SETTINGS_FILE = "gantry-settings.json"

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


class KeptSettings(msgspec.Struct):
    """gantry-settings.json: texts by the settings' names, as request 25 brought them."""

    data_version: DataVersionBean = msgspec.field(default_factory=DataVersionBean)
    settings: dict[str, str] = {}


def config_path(root_dir: str, name: str) -> str:
    """Return where a config file lies in a store."""
    return f"{root_dir}/{CONFIG_DIR}/{name}"


def load_topics(files: FileSystem, root_dir: str, table: TopicTable) -> ConfigFile:
    """Fill the table from its file, and return the file for the saves to come. Raises StartupError."""
    file = ConfigFile(files, config_path(root_dir, TOPICS_FILE))
    read = file.read(_Topics)
    if read is not None:
        configs = (bean.to_model(name) for name, bean in read.topic_config_table.items())
        table.load((read.data_version or _NO_VERSION).to_model(), configs)
    return file


def load_groups(files: FileSystem, root_dir: str, table: GroupTable) -> ConfigFile:
    """Fill the table from its file, and return the file for the saves to come. Raises StartupError."""
    file = ConfigFile(files, config_path(root_dir, GROUPS_FILE))
    read = file.read(_Groups)
    if read is not None:
        groups = (bean.to_model(name) for name, bean in read.subscription_group_table.items())
        table.load((read.data_version or _NO_VERSION).to_model(), groups, read.forbidden_table)
    return file


def load_offsets(files: FileSystem, root_dir: str, table: OffsetTable) -> ConfigFile:
    """Fill the table from its file, and return the file for the saves to come. Raises StartupError."""
    file = ConfigFile(files, config_path(root_dir, OFFSETS_FILE))
    read = file.read(_Offsets)
    if read is not None:
        table.load((read.data_version or _NO_VERSION).to_model(), _committed(read.offset_table))
    return file


def _committed(table: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """Leave out negative offsets: RocketMQ keeps whatever a client commits, and says -1 where it has nothing."""
    negative = sum(offset < 0 for queues in table.values() for offset in queues.values())
    if not negative:
        return table
    log.warning("negative committed offsets count as none", file=OFFSETS_FILE, count=negative)
    return {
        key: {queue_id: offset for queue_id, offset in queues.items() if offset >= 0} for key, queues in table.items()
    }


def load_delay_offsets(files: FileSystem, root_dir: str) -> DelayOffsetWrapper:
    """Read what the store says of delay levels. Raises StartupError."""
    read = ConfigFile(files, config_path(root_dir, DELAY_OFFSETS_FILE)).read(_DelayOffsets)
    if read is None:
        return DelayOffsetWrapper({}, _NO_VERSION.to_model())
    return DelayOffsetWrapper(read.offset_table, (read.data_version or _NO_VERSION).to_model())


def load_kept_settings(files: FileSystem, root_dir: str) -> KeptSettings:
    """Read what request 25 changed. Raises StartupError."""
    return ConfigFile(files, config_path(root_dir, SETTINGS_FILE)).read(KeptSettings) or KeptSettings()


def topics_text(topics: TopicTable) -> ConfigText:
    """Return topics.json."""

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
    """Return subscriptionGroup.json."""

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
    """Return consumerOffset.json; `groupTopicMap` is what RocketMQ derives from the table."""
    return ConfigText(
        {
            "dataVersion": lambda: version_document(offsets.version),
            "groupTopicMap": EntryTexts(offsets.unsaved_groups, lambda group: offsets.topics_of(group) or None),
            "offsetTable": EntryTexts(offsets.unsaved, offsets.all().get),
        }
    )


def settings_text(version: Callable[[], DataVersion], settings: Callable[[], Mapping[str, str]]) -> ConfigText:
    """Return gantry-settings.json."""
    return ConfigText({"data_version": lambda: version_document(version()), "settings": lambda: dict(settings())})


def version_document(version: DataVersion) -> dict[str, int]:
    """Return a DataVersion as JSON holds it."""
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}
