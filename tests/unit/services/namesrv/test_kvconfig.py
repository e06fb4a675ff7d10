"""Key-value pairs, and the file that stores them."""

import asyncio
import json

import pytest

from gantry.runtime.errors import StartupError
from services.namesrv.errors import NoConfigError, RefusedError
from services.namesrv.kvconfig import KvConfig, load_table
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock


class Saved:
    """Keeps saved contents, and can be slow or fail."""

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self.error: OSError | None = None

    async def __call__(self, data: bytes) -> None:
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        self.files.append(data)


async def test_values_are_saved_in_the_format_of_rocketmq():
    saved = Saved()
    kv = KvConfig({}, saved)
    await kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4")
    assert kv.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4;broker-b:4"
    assert saved.files == [b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"}}}']


async def test_missing_ones_are_named():
    kv = KvConfig({"NS": {"a": "b"}}, Saved())
    with pytest.raises(NoConfigError, match="No config item, Namespace: NS Key: zz"):
        kv.get("NS", "zz")
    with pytest.raises(NoConfigError, match="No config item, Namespace: NONE"):
        kv.get_namespace("NONE")
    assert kv.get_namespace("NS") == {"a": "b"}


async def test_deleting_the_last_key_deletes_its_namespace():
    saved = Saved()
    kv = KvConfig({"NS": {"a": "1", "b": "2"}}, saved)
    await kv.delete("NS", "a")
    await kv.delete("NS", "nothing")
    await kv.delete("NS", "b")
    assert [json.loads(data) for data in saved.files] == [{"configTable": {"NS": {"b": "2"}}}, {"configTable": {}}]


async def test_concurrent_changes_lose_none():
    saved = Saved()
    kv = KvConfig({}, saved)
    await asyncio.gather(*(kv.put("NS", str(number), "v") for number in range(20)))
    assert len(kv.get_namespace("NS")) == len(json.loads(saved.files[-1])["configTable"]["NS"]) == 20


async def test_a_value_that_can_not_be_saved_is_not_visible():
    saved = Saved()
    kv = KvConfig({"NS": {"a": "old"}}, saved)
    saved.error = OSError("disk is full")
    with pytest.raises(OSError, match="disk is full"):
        await kv.put("NS", "a", "new")
    with pytest.raises(OSError, match="disk is full"):
        await kv.delete("NS", "a")
    assert kv.get("NS", "a") == "old"


@pytest.mark.parametrize(("namespace", "key", "field"), [("", "k", "namespace"), ("n", "", "key")])
async def test_empty_names_are_refused(namespace: str, key: str, field: str):
    with pytest.raises(RefusedError, match=field):
        await KvConfig({}, Saved()).put(namespace, key, "v")


@pytest.mark.parametrize(
    "value",
    ["", "a", "a:", "a:0", ":4", "a:x", "a:4;;b:4", "a:-1", "a:2147483648", "a:" + "9" * 5_000],
)
async def test_an_order_configuration_that_no_client_can_read_is_refused(value: str):
    with pytest.raises(RefusedError, match="no order configuration"):
        await KvConfig({}, Saved()).put("ORDER_TOPIC_CONFIG", "T", value)


async def test_a_trailing_separator_of_tools_is_accepted():
    kv = KvConfig({}, Saved())
    await kv.put("ORDER_TOPIC_CONFIG", "T", "a:4;")
    assert kv.get("ORDER_TOPIC_CONFIG", "T") == "a:4;"


async def test_the_largest_number_of_queues_is_accepted():
    kv = KvConfig({}, Saved())
    await kv.put("ORDER_TOPIC_CONFIG", "T", "a:2147483647")
    assert kv.get("ORDER_TOPIC_CONFIG", "T") == "a:2147483647"


async def test_the_size_of_the_file_is_limited():
    kv = KvConfig({}, Saved(), bytes_max=60)
    await kv.put("NS", "k", "short")
    with pytest.raises(RefusedError, match="at most 60 are kept"):
        await kv.put("NS", "k", "x" * 60)


def test_a_file_is_loaded_a_missing_one_is_empty_a_broken_one_stops_the_start():
    files = MemFileSystem(FakeClock())
    files.make_dirs("/d")
    assert load_table(files, "/d/kv.json") == {}
    files.write("/d/kv.json", b'{"configTable":{"NS":{"k1":"v1 \xc3\xa9"}}}')
    assert load_table(files, "/d/kv.json") == {"NS": {"k1": "v1 é"}}
    for broken in (b'{"configTable":{"NS":', b'{"configTable":{"NS":{"k1":"\xff"}}}'):
        files.write("/d/kv.json", broken)
        with pytest.raises(StartupError, match=r"/d/kv\.json: can't be read"):
            load_table(files, "/d/kv.json")
