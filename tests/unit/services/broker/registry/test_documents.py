"""The config files: written in RocketMQ's format, and read in the format of every release."""

import json

import pytest

from gantry.model.group import SubscriptionGroup
from gantry.model.topic import DataVersion, TopicConfig
from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem
from services.broker.registry import documents
from services.broker.registry.configfile import ConfigFile
from services.broker.registry.configtext import ConfigText
from services.broker.registry.delayoffsets import DelayOffsetTable
from services.broker.registry.groups import GroupTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import TopicTable
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock

VERSION = DataVersion(0, 1_700_000_000_000, 3)


@pytest.fixture
def files() -> MemFileSystem:
    files = MemFileSystem(FakeClock())
    files.make_dirs("s/config")
    return files


def put(files: FileSystem, name: str, text: str, *, backup: bool = False) -> None:
    files.write(documents.config_path("s", name) + (".bak" if backup else ""), text.encode(), durable=True)


def save(files: FileSystem, name: str, text: ConfigText) -> None:
    for _ in text.refresh():
        pass
    ConfigFile(files, documents.config_path("s", name)).write(text.take())


def test_maps_with_integer_keys_are_not_broken_into_lines() -> None:
    offsets = OffsetTable()
    offsets.load(VERSION, {"T@g": {0: 250, 1: 250}, "%RETRY%g@g": {0: 1}})
    assert documents.offsets_text(offsets).encode().decode() == (
        '{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},\n'
        '\t"groupTopicMap":{\n\t\t"g":["T","%RETRY%g"]\n\t},\n'
        '\t"offsetTable":{\n\t\t"T@g":{0:250,1:250\n\t\t},\n\t\t"%RETRY%g@g":{0:1\n\t\t}\n\t}\n}'
    )
    assert ConfigText({"a": dict, "b": list}).encode() == b'{\n\t"a":{},\n\t"b":[]\n}'


def test_the_text_of_a_topic_and_a_group_is_that_of_rocketmq() -> None:
    topics, groups = TopicTable(), GroupTable()
    topics.load(DataVersion(), [TopicConfig("T", 1, 1, 6, attributes={"message.type": "FIFO"})])
    assert documents.topics_text(topics).encode().decode().partition('"topicConfigTable":')[2] == (
        '{\n\t\t"T":{\n\t\t\t"attributes":{\n\t\t\t\t"message.type":"FIFO"\n\t\t\t},\n\t\t\t"order":false,\n'
        '\t\t\t"perm":6,\n\t\t\t"readQueueNums":1,\n\t\t\t"topicFilterType":"SINGLE_TAG",\n'
        '\t\t\t"topicName":"T",\n\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":1\n\t\t}\n\t}\n}'
    )
    groups.load(DataVersion(), [], {"g": {"T": 4}})
    assert documents.groups_text(groups).encode().decode().partition('"forbiddenTable":')[2] == (
        '{\n\t\t"g":{\n\t\t\t"T":4\n\t\t}\n\t},\n\t"subscriptionGroupTable":{}\n}'
    )


def test_topics_round_trip(files: MemFileSystem) -> None:
    topics = TopicTable()
    config = TopicConfig("T", 3, 5, 2, order=True, topic_sys_flag=1, attributes={"message.type": "FIFO"})
    topics.load(VERSION, [config])
    save(files, documents.TOPICS_FILE, documents.topics_text(topics))
    loaded = TopicTable()
    documents.load_topics(files, "s", loaded)
    assert loaded.all() == {"T": config}
    assert loaded.version == VERSION


def test_groups_round_trip(files: MemFileSystem) -> None:
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2}}
    group = SubscriptionGroup("g", consume_enable=False, retry_max_times=2, group_retry_policy=policy, broker_id=1)
    groups = GroupTable()
    groups.load(VERSION, [group], {"g": {"T": 4}})
    save(files, documents.GROUPS_FILE, documents.groups_text(groups))
    loaded = GroupTable()
    documents.load_groups(files, "s", loaded)
    assert loaded.find("g") == group
    assert loaded.forbidden == {"g": {"T": 4}}


def test_files_of_4_9_are_read(files: MemFileSystem) -> None:
    put(
        files,
        documents.TOPICS_FILE,
        '{"dataVersion":{"counter":2,"timestamp":5},"topicConfigTable":{"T":{"order":false,"perm":6,'
        '"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}',
    )
    put(
        files,
        documents.GROUPS_FILE,
        '{"dataVersion":{"counter":1,"timestamp":5},"subscriptionGroupTable":{"g":{"brokerId":0,'
        '"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"g",'
        '"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}}}',
    )
    put(files, documents.OFFSETS_FILE, '{\n\t"offsetTable":{\n\t\t"T@g":{0:7, 1:8\n\t\t}\n\t}\n}')
    put(files, documents.DELAY_OFFSETS_FILE, '{\n\t"offsetTable":{3:10,4:2\n\t}\n}')
    topics, groups, offsets = TopicTable(), GroupTable(), OffsetTable()
    documents.load_topics(files, "s", topics)
    documents.load_groups(files, "s", groups)
    documents.load_offsets(files, "s", offsets)
    assert topics.find("T") == TopicConfig("T", 4, 4, 6)
    assert topics.version == DataVersion(0, 5, 2)
    assert groups.find("g") == SubscriptionGroup("g")
    assert offsets.queues("T", "g") == {0: 7, 1: 8}
    delay_offsets = DelayOffsetTable()
    documents.load_delay_offsets(files, "s", delay_offsets)
    assert delay_offsets.offsets == {3: 10, 4: 2}


def test_colons_and_digits_in_texts_are_unchanged(files: MemFileSystem) -> None:
    put(files, "x.json", '{"a\\"1:":"{5:6, \\"7:8}", 9 : 1}')
    assert ConfigFile(files, "s/config/x.json").read(dict[str, object]) == {'a"1:': '{5:6, "7:8}', "9": 1}


@pytest.mark.parametrize("broken", ["", "\0\0\0", '{"offsetTable":{"T@g":{0:', "[]", '{"offsetTable":5}'])
def test_a_broken_file_is_read_from_its_backup(files: MemFileSystem, broken: str) -> None:
    put(files, documents.OFFSETS_FILE, broken)
    put(files, documents.OFFSETS_FILE, '{"offsetTable":{"T@g":{0:4}}}', backup=True)
    offsets = OffsetTable()
    documents.load_offsets(files, "s", offsets)
    assert offsets.find("T", "g", 0) == 4


def test_if_neither_file_can_be_read_the_start_fails_and_names_both(files: MemFileSystem) -> None:
    put(files, documents.OFFSETS_FILE, '{"offsetTable":{"T@g":{0:"x"}}}')
    put(files, documents.OFFSETS_FILE, "{", backup=True)
    with pytest.raises(
        StartupError,
        match=r"s/config/consumerOffset\.json offsetTable: .*consumerOffset\.json\.bak is not JSON.*move both it and",
    ):
        documents.load_offsets(files, "s", OffsetTable())


def test_no_files_or_empty_ones_are_a_new_store(files: MemFileSystem) -> None:
    documents.load_topics(files, "s", TopicTable())
    put(files, documents.TOPICS_FILE, "")
    documents.load_topics(files, "s", TopicTable())
    assert documents.load_kept_settings(files, "s").settings == {}


def test_saved_settings_are_read(files: MemFileSystem) -> None:
    text = documents.settings_text(lambda: VERSION, lambda: {"default_topic_queue_nums": "4"})
    save(files, documents.SETTINGS_FILE, text)
    kept = documents.load_kept_settings(files, "s")
    assert kept.settings == {"default_topic_queue_nums": "4"}
    assert kept.data_version.to_model() == VERSION
    assert json.loads(text.encode())["settings"] == kept.settings
