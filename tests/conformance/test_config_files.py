"""The tables of `config/`: every form that RocketMQ writes is read, and an incomplete table never reads as empty.

The broker, `gantry store verify` and the Spark data source share one check. So no table is accepted by one of them and
rejected by another.
"""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.configjson import BACKUP_SUFFIX
from gantry.storeformat.configtables import parse_table
from services.broker.registry import documents
from services.broker.registry.configfile import ConfigFile
from services.broker.registry.delayoffsets import DelayOffsetTable
from services.broker.registry.groups import GroupTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import TopicTable
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock

GOLDEN = Path(__file__).parent / "golden"
TOPIC = '{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
TOPIC += '"writeQueueNums":4}'
GROUP = '{"consumeBroadcastEnable":true,"consumeEnable":true,"groupName":"g","retryMaxTimes":16,"retryQueueNums":1}'


def topics(files: FileSystem, root: str) -> tuple[ConfigFile, set[str]]:
    table = TopicTable()
    return documents.load_topics(files, root, table), set(table.all())


def groups(files: FileSystem, root: str) -> tuple[ConfigFile, set[str]]:
    table = GroupTable()
    return documents.load_groups(files, root, table), {group.group_name for group in table.snapshot()[1].values()}


def offsets(files: FileSystem, root: str) -> tuple[ConfigFile, set[str]]:
    table = OffsetTable()
    return documents.load_offsets(files, root, table), set(table.all())


def delay_offsets(files: FileSystem, root: str) -> tuple[ConfigFile, set[str]]:
    table = DelayOffsetTable()
    return documents.load_delay_offsets(files, root, table), {str(level) for level in table.offsets}


def settings(files: FileSystem, root: str) -> tuple[None, set[str]]:
    return None, set(documents.load_kept_settings(files, root).settings)


LOADERS: dict[str, tuple[str, Callable[[FileSystem, str], tuple[ConfigFile | None, set[str]]]]] = {
    "topics.json": ("topicConfigTable", topics),
    "subscriptionGroup.json": ("subscriptionGroupTable", groups),
    "consumerOffset.json": ("offsetTable", offsets),
    "delayOffset.json": ("offsetTable", delay_offsets),
    "gantry-settings.json": ("settings", settings),
}
GOOD = {
    "topics.json": f'{{"topicConfigTable":{{"T":{TOPIC}}}}}',
    "subscriptionGroup.json": f'{{"subscriptionGroupTable":{{"g":{GROUP}}}}}',
    "consumerOffset.json": '{"offsetTable":{"T@g":{0:4}}}',
    "delayOffset.json": '{"offsetTable":{3:10}}',
    "gantry-settings.json": '{"data_version":{},"settings":{"default_topic_queue_nums":"4"}}',
}


def edited(old: str, new: str, name: str = "topics.json") -> tuple[str, str]:
    assert old in GOOD[name]
    return name, GOOD[name].replace(old, new)


WRONG = {
    "perm-text": (*edited('"perm":6', '"perm":"abc"'), 'perm is "abc"'),
    "queues-text": (*edited('"readQueueNums":4', '"readQueueNums":"abc"'), '"T": readQueueNums is "abc"'),
    "queues-negative": (*edited('"writeQueueNums":4', '"writeQueueNums":-1'), "writeQueueNums is -1"),
    "queues-large": (*edited('"readQueueNums":4', '"readQueueNums":2147483648'), "readQueueNums is 2147483648"),
    "queues-null": (*edited('"readQueueNums":4', '"readQueueNums":null'), "readQueueNums is null"),
    "queues-flag": (*edited('"readQueueNums":4', '"readQueueNums":true'), "readQueueNums is true"),
    "order-text": (*edited('"order":false', '"order":"often"'), 'order is "often"'),
    "attributes": (*edited('"order":false', '"attributes":{"a":1}'), "attributes is"),
    "other-name": (*edited('"topicName":"T"', '"topicName":"U"'), 'topicName is "U"'),
    "topic-null": (*edited(TOPIC, "null"), '"T" is null'),
    "topic-twice": (*edited('"T":', '"T":{},"T":'), 'has "T" twice'),
    "table-twice": (*edited('"topicConfigTable":', '"topicConfigTable":{},"topicConfigTable":'), "twice"),
    "version": (*edited('{"topicC', '{"dataVersion":5,"topicC'), "dataVersion is 5"),
    "not-utf-8": (*edited('"T":', '"\\ud800":'), "is no text"),
    "nan": (*edited('"perm":6', '"perm":NaN'), "is not JSON"),
    "topic-misspelt": (
        *edited("readQueueNums", "readQueueNum"),
        '"T": has no "readQueueNums", but it has "readQueueNum"',
    ),
    "group-number": (*edited(GROUP, "5", "subscriptionGroup.json"), '"g" is 5'),
    "group-retries": (*edited("16", '"x"', "subscriptionGroup.json"), 'retryMaxTimes is "x"'),
    "group-name": (*edited('"groupName":"g"', '"groupName":"h"', "subscriptionGroup.json"), 'groupName is "h"'),
    "group-misspelt": (*edited("consumeEnable", "consumEnable", "subscriptionGroup.json"), 'has no "consumeEnable"'),
    "forbidden": (*edited('{"sub', '{"forbiddenTable":[],"sub', "subscriptionGroup.json"), "forbiddenTable is []"),
    "offset-text": (*edited("0:4", '0:"x"', "consumerOffset.json"), '"T@g": queue 0 is "x"'),
    "offset-large": (*edited("0:4", "0:9223372036854775808", "consumerOffset.json"), "is 9223372036854775808"),
    "offset-float": (*edited("0:4", "0:1.5", "consumerOffset.json"), "is 1.5"),
    "offset-twice": (*edited("0:4", '0:4,"0":5', "consumerOffset.json"), 'has "0" twice'),
    "queue-text": (*edited("0:4", '"a":4', "consumerOffset.json"), '"a" is no queue id'),
    "queue-zeros": (*edited("0:4", '"00":4', "consumerOffset.json"), '"00" is no queue id'),
    "pair-list": (*edited("{0:4}", "[4]", "consumerOffset.json"), '"T@g" is [4]'),
    "delay-text": (*edited("10", '"x"', "delayOffset.json"), '"3" is "x"'),
    "delay-level": (*edited("3:", '"x":', "delayOffset.json"), '"x" is no delay level'),
    "setting-number": (*edited('"4"', "4", "gantry-settings.json"), '"default_topic_queue_nums" is 4'),
}
for each, (member, _) in LOADERS.items():
    WRONG[f"{each}-empty"] = (each, "{}", f'has no "{member}"')
    WRONG[f"{each}-misspelt"] = (each, f'{{"{member}x":{{}}}}', f'has no "{member}", but it has "{member}x"')
    for value in ("null", "[]", "5", '"x"', "true"):
        WRONG[f"{each}-{value}"] = (each, f'{{"{member}":{value}}}', f"{member} is {value}, not an object")
    WRONG[f"{each}-list"] = (each, "[]", "holds [] and not an object")


@pytest.fixture
def files() -> MemFileSystem:
    files = MemFileSystem(FakeClock())
    files.make_dirs("s/config")
    return files


def put(files: FileSystem, name: str, text: str) -> None:
    files.write(f"s/config/{name}", text.encode(), durable=True)


@pytest.mark.parametrize(("name", "text", "reason"), WRONG.values(), ids=WRONG)
def test_a_table_with_an_error_is_broken_as_a_whole(files: MemFileSystem, name: str, text: str, reason: str) -> None:
    """A misspelt key used to read as an empty table; the next save overwrote the file, and the one after it the backup."""
    with pytest.raises(ValueError) as refused:
        parse_table(name, text.encode())
    assert reason in str(refused.value)

    _, load = LOADERS[name]
    put(files, name, text)
    with pytest.raises(StartupError) as failed:
        load(files, "s")
    for word in (f"s/config/{name}", reason, "no backup"):
        assert word in str(failed.value)

    put(files, name + BACKUP_SUFFIX, GOOD[name])
    file, names = load(files, "s")
    assert len(names) == 1
    if file is not None:
        file.write([GOOD[name].encode()])
        assert files.read(f"s/config/{name}.broken") == text.encode()
        assert files.read(f"s/config/{name}.bak") == GOOD[name].encode()


@pytest.mark.parametrize("name", LOADERS)
def test_empty_tables_of_rocketmq_are_read(files: MemFileSystem, name: str) -> None:
    """RocketMQ creates the maps with their object, so they are never null. Its JSON library omits nulls and keeps empty
    maps.
    """
    member, load = LOADERS[name]
    for text in (f'{{"{member}":{{}}}}', f'{{"dataVersion":{{"counter":0,"timestamp":5}},"{member}":{{}},"later":1}}'):
        put(files, name, text)
        assert load(files, "s")[1] == set()
        assert parse_table(name, text.encode())[member] == {}
    put(files, name, GOOD[name])
    assert len(load(files, "s")[1]) == 1


def test_negative_offsets_mean_that_nothing_is_committed(files: MemFileSystem) -> None:
    """RocketMQ stores any offset that a client commits, and answers -1 if it has none."""
    put(files, "consumerOffset.json", '{"offsetTable":{"T@g":{0:-1,1:7,2:"8"}}}')
    table = OffsetTable()
    documents.load_offsets(files, "s", table)
    assert table.queues("T", "g") == {1: 7, 2: 8}


@pytest.mark.parametrize("store", ["clean", "crashed", "torn"])
def test_every_file_of_a_golden_store_is_read(tmp_path: Path, store: str) -> None:
    with tarfile.open(GOLDEN / f"store-{store}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    files, root = OsFileSystem(), tmp_path / "store"
    read: list[str] = []
    for path in sorted((root / "config").glob("*.json*")):
        content: dict[str, Any] = parse_table(path.name.removesuffix(BACKUP_SUFFIX), path.read_bytes())
        read.append(path.name)
        if path.name in LOADERS:
            member, load = LOADERS[path.name]
            assert load(files, str(root))[1] == set(content[member]) != set()
            assert json.dumps(content), "plain values"
    assert {"topics.json", "subscriptionGroup.json.bak", "consumerFilter.json", "messageRequestMode.json"} <= set(read)
