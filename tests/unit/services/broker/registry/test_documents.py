"""The config files: written as RocketMQ writes them, read whatever their age."""

import json

import pytest

from gantry.model.group import SubscriptionGroup
from gantry.model.topic import DataVersion, TopicConfig
from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem
from services.broker.registry import documents
from services.broker.registry.configfile import encode_config, read_config, write_config
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


def test_maps_with_integer_keys_are_not_broken_into_lines() -> None:
    document = documents.offsets_document(VERSION, {"T@g": {0: 250, 1: 250}, "%RETRY%g@g": {0: 1}})
    assert encode_config(document).decode() == (
        '{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},\n'
        '\t"groupTopicMap":{\n\t\t"g":["T","%RETRY%g"]\n\t},\n'
        '\t"offsetTable":{\n\t\t"T@g":{0:250,1:250\n\t\t},\n\t\t"%RETRY%g@g":{0:1\n\t\t}\n\t}\n}'
    )
    assert encode_config({"a": {}, "b": []}) == b'{\n\t"a":{},\n\t"b":[]\n}'


def test_topics_come_back_as_they_were(files: MemFileSystem) -> None:
    table = {"T": TopicConfig("T", 3, 5, 2, order=True, topic_sys_flag=1, attributes={"message.type": "FIFO"})}
    data = encode_config(documents.topics_document(VERSION, table))
    write_config(files, documents.config_path("s", documents.TOPICS_FILE), data)
    loaded = TopicTable()
    documents.load_topics(files, "s", loaded)
    assert loaded.all() == table
    assert loaded.version == VERSION


def test_groups_come_back_as_they_were(files: MemFileSystem) -> None:
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2}}
    group = SubscriptionGroup("g", consume_enable=False, retry_max_times=2, group_retry_policy=policy, broker_id=1)
    document = documents.groups_document(VERSION, {"g": group}, {"g": {"T": 4}})
    write_config(files, documents.config_path("s", documents.GROUPS_FILE), encode_config(document))
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
    assert documents.load_delay_offsets(files, "s").offset_table == {3: 10, 4: 2}


def test_colons_and_digits_in_texts_are_left_alone(files: MemFileSystem) -> None:
    put(files, "x.json", '{"a\\"1:":"{5:6, \\"7:8}", 9 : 1}')
    assert read_config(files, "s/config/x.json", dict[str, object]) == {'a"1:': '{5:6, "7:8}', "9": 1}


@pytest.mark.parametrize("broken", ["", "\0\0\0", '{"offsetTable":{"T@g":{0:', "[]", '{"offsetTable":5}'])
def test_a_broken_file_is_read_from_its_backup(files: MemFileSystem, broken: str) -> None:
    put(files, documents.OFFSETS_FILE, broken)
    put(files, documents.OFFSETS_FILE, '{"offsetTable":{"T@g":{0:4}}}', backup=True)
    offsets = OffsetTable()
    documents.load_offsets(files, "s", offsets)
    assert offsets.find("T", "g", 0) == 4


def test_nothing_readable_refuses_the_start_and_names_both_files(files: MemFileSystem) -> None:
    put(files, documents.OFFSETS_FILE, '{"offsetTable":{"T@g":{0:"x"}}}')
    put(files, documents.OFFSETS_FILE, "{", backup=True)
    with pytest.raises(
        StartupError, match=r"s/config/consumerOffset\.json: .*consumerOffset\.json\.bak: .*move it away"
    ):
        documents.load_offsets(files, "s", OffsetTable())


def test_no_files_or_empty_ones_are_a_new_store(files: MemFileSystem) -> None:
    documents.load_topics(files, "s", TopicTable())
    put(files, documents.TOPICS_FILE, "")
    documents.load_topics(files, "s", TopicTable())
    assert documents.load_kept_settings(files, "s").settings == {}


def test_the_old_content_is_kept_beside_the_new(files: MemFileSystem) -> None:
    path = documents.config_path("s", "x.json")
    write_config(files, path, b'{"a":1}')
    write_config(files, path, b'{"a":2}')
    assert files.read(path) == b'{"a":2}'
    assert files.read(path + ".bak") == b'{"a":1}'


def test_kept_settings_come_back(files: MemFileSystem) -> None:
    document = documents.settings_document(VERSION, {"default_topic_queue_nums": "4"})
    write_config(files, documents.config_path("s", documents.SETTINGS_FILE), encode_config(document))
    kept = documents.load_kept_settings(files, "s")
    assert kept.settings == {"default_topic_queue_nums": "4"}
    assert kept.data_version.to_model() == VERSION
    assert json.loads(encode_config(document))["settings"] == kept.settings
