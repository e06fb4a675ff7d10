"""The model and the file layouts against vectors.json, value by value."""

import json
import zlib
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from gantry.model.address import Address, pack_host, pack_ip
from gantry.model.batch import decode_batch, encode_batch
from gantry.model.compression import Compression, decompress
from gantry.model.delaylevel import DELAY_LEVELS_MS
from gantry.model.javahash import index_key_hash, java_hash, tags_code
from gantry.model.message import CrcState, decode_properties, encode_properties
from gantry.model.messageid import decode_stored_id, encode_stored_id
from gantry.model.record import (
    BLANK_MAGIC,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    crc32,
    decode_record,
    encode_blank,
    encode_message,
    record_crc_property,
)
from gantry.model.sysflag import PullSysFlag
from gantry.model.uniqkey import UniqueKeyGenerator, decode_unique_key, encode_unique_key
from gantry.storeformat import layout

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "vectors.json").read_text())


@pytest.mark.parametrize("case", VECTORS["java_string_hash"], ids=lambda case: repr(case["s"]))
def test_java_string_hash(case: dict[str, Any]) -> None:
    assert java_hash(case["s"]) == case["hash"]
    assert tags_code(case["s"]) & 0xFFFF_FFFF_FFFF_FFFF == int(case["tagsCode_i64_hex"], 16)
    topic, separator, key = case["s"].partition("#")
    if separator:
        assert index_key_hash(topic, key) == case["indexKeyHash"]
        assert index_key_hash(topic, key) % layout.HASH_SLOTS == case["slot_5000000"]
    assert abs(case["hash"]) % (1 << 31) == case["indexKeyHash"]


@pytest.mark.parametrize("name", ["message_v1", "message_v1_ipv6"])
def test_message(name: str) -> None:
    case = VECTORS[name]
    data = bytes.fromhex(case["hex"])
    message = decode_record(data)
    assert message.crc is CrcState.BODY_ONLY
    assert message.size_bytes == case["totalSize"] == len(data)
    assert (message.topic, message.body) == (case["topic"], case["body_utf8"].encode())
    assert message.properties == case["properties"]
    assert (message.queue_id, message.flag, message.sys_flag) == (case["queueId"], case["flag"], case["sysFlag"])
    assert (message.queue_offset, message.physical_offset) == (case["queueOffset"], case["physicalOffset"])
    assert (message.born_at_ms, message.stored_at_ms) == (case["bornTimestamp"], case["storeTimestamp"])
    assert (str(message.born_host), str(message.store_host)) == (case["bornHost"], case["storeHost"])
    assert message.reconsume_times == case["reconsumeTimes"]
    assert message.prepared_transaction_offset == case["preparedTransactionOffset"]
    assert message.body_crc == case.get("bodyCRC", message.body_crc)
    assert message.stored_id == case["offsetMsgId"]
    assert encode_message(message, whole_record_crc=False) == data


def test_message_v2() -> None:
    data = bytes.fromhex(VECTORS["message_v2"]["hex"])
    message = decode_record(data)
    assert (message.version, message.topic, message.body, message.size_bytes) == (2, "T", b"x", 94)
    assert encode_message(message, whole_record_crc=False) == data


def test_magic() -> None:
    for name, magic in (("message_v1", RECORD_MAGIC_V1), ("message_v2", RECORD_MAGIC_V2), ("blank", BLANK_MAGIC)):
        assert f"{magic:08x}" == VECTORS["magic"][name]["hex"]
        assert magic - (1 << 32) == VECTORS["magic"][name]["i32"]


def test_commitlog_blank() -> None:
    case = VECTORS["commitlog_blank"]
    assert encode_blank(case["maxBlank"]).hex() == case["first8_hex"]


def test_properties() -> None:
    written, read = VECTORS["properties"]
    assert encode_properties(written["map"]).hex() == written["string_5x_hex"]
    for name in ("string_5x_hex", "string_4_9_hex"):
        assert decode_properties(bytes.fromhex(written[name])) == written["map"]
    assert decode_properties(bytes.fromhex(read["decode_of_hex"])) == read["result"]


@pytest.mark.parametrize("case", VECTORS["crc32"], ids=lambda case: repr(case["utf8"]))
def test_crc32(case: dict[str, Any]) -> None:
    assert crc32(case["utf8"].encode()) & 0x7FFF_FFFF == case["crc32_and_7fffffff"]


def test_append_prop_crc() -> None:
    case = VECTORS["append_prop_crc"]
    assert record_crc_property(case["crc"]).hex() == case["full_hex"]
    assert record_crc_property(case["crc"])[9:19].decode() == case["digits_written"]


@pytest.mark.parametrize("case", VECTORS["offsetMsgId"], ids=lambda case: case["ip"])
def test_offset_message_id(case: dict[str, Any]) -> None:
    address = Address(case["ip"], case["port"])
    assert encode_stored_id(address, case["offset"]) == case["id"]
    assert decode_stored_id(case["id"]) == (address, case["offset"])


@pytest.mark.parametrize("case", VECTORS["uniqKey"], ids=lambda case: case["ip"])
def test_unique_key(case: dict[str, Any]) -> None:
    salt = int(case["classLoaderHash_hex"], 16)
    key = encode_unique_key(pack_ip(case["ip"]), case["pid"], salt, case["diff"], case["counter"])
    assert key == case["id"]
    assert decode_unique_key(key).time_ms == case["diff"]


def test_unique_key_maker() -> None:
    case = VECTORS["uniqKey"][0]

    class SetClock:
        def now_ms(self) -> int:
            now_ms: int = case["nowMs"]
            return now_ms

    # The vector's base is the start of a month in a time zone eight hours ahead of UTC.
    zone = timezone(timedelta(hours=8))
    keys = UniqueKeyGenerator(SetClock(), case["ip"], case["pid"], int(case["classLoaderHash_hex"], 16), tz=zone)
    keys.make()
    assert keys.make() == case["id"]


def test_batch_body() -> None:
    case = VECTORS["batch_body"]
    items = [(item["flag"], item["body"].encode(), encode_properties(item["props"])) for item in case["messages"]]
    assert encode_batch(items).hex() == case["hex"]
    assert [tuple(item) for item in decode_batch(bytes.fromhex(case["hex"]))] == items


def test_zlib_body() -> None:
    case = VECTORS["zlib_body"]
    data = bytes.fromhex(case["python_zlib_hex"])
    assert Compression.ZLIB.sys_flag == case["sysFlag_5x_zlib"]
    for name in ("sysFlag_5x_zlib", "sysFlag_4x"):
        assert decompress(data, case[name]) == b"A" * 5000
    assert zlib.decompress(data) == b"A" * 5000


def test_delay_levels() -> None:
    assert list(DELAY_LEVELS_MS) == VECTORS["delay_levels_ms"]


@pytest.mark.parametrize("case", VECTORS["pull_sysflag"], ids=lambda case: str(case["value"]))
def test_pull_sysflag(case: dict[str, Any]) -> None:
    flag = PullSysFlag.build(
        commit_offset=bool(case["commit"]),
        suspend=bool(case["suspend"]),
        subscription=bool(case["subscription"]),
        class_filter=bool(case["classFilter"]),
        lite_pull=bool(case["lite"]),
    )
    assert flag == case["value"]


@pytest.mark.parametrize("case", VECTORS["consumequeue_unit"], ids=lambda case: case["hex"])
def test_consumequeue_unit(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    unit = layout.decode_unit(data)
    assert layout.encode_unit(*unit) == data
    if case.get("note") == "pre-blank":
        assert data == layout.FILLER_UNIT
        assert unit.is_filler
    else:
        assert unit == (case["offset"], case["size"], case["tagsCode"])
        assert not unit.is_filler
        if "tag" in case:
            assert tags_code(case["tag"]) == case["tagsCode"]


def test_index() -> None:
    case = VECTORS["index"]
    slots = layout.HASH_SLOTS
    assert layout.index_file_bytes(slots, layout.INDEX_ENTRIES) == case["file_size_default"]
    key_hash = index_key_hash(*case["key"].split("#"))
    assert (key_hash, key_hash % slots) == (case["hash"], case["slot"])
    assert layout.index_slot_position(case["slot"]) == case["slot_pos"]
    assert layout.index_entry_position(slots, case["first_entry_no"]) == case["first_entry_pos"]
    second, header = case["second_entry_same_slot"], case["header_after_two"]
    assert layout.INDEX_ENTRY.pack(key_hash, header["beginPhy"], 0, 0).hex() == case["first_entry_hex"]
    assert layout.index_entry_position(slots, 2) == second["pos"]
    diff = layout.index_time_diff_s(header["endTs"], header["beginTs"])
    assert diff == second["timeDiffSeconds"]
    assert layout.INDEX_ENTRY.pack(key_hash, second["phyOffset"], diff, second["prev"]).hex() == second["hex"]
    names = ("beginTs", "endTs", "beginPhy", "endPhy", "hashSlotCount", "indexCount")
    expected = layout.IndexHeader(*(header[name] for name in names))
    assert layout.INDEX_HEADER.pack(*expected).hex() == header["hex"]


def test_checkpoint() -> None:
    case = VECTORS["checkpoint_first40_hex"]
    names = ("physic", "logics", "index", "masterFlushed", "confirmPhy")
    checkpoint = layout.Checkpoint(*(case[name] for name in names))
    data = layout.encode_checkpoint(checkpoint)
    assert data[:40].hex() == case["hex"]
    assert len(data) == case["file_size"]
    assert layout.decode_checkpoint(data) == checkpoint


@pytest.mark.parametrize("case", VECTORS["file_names"], ids=lambda case: case["name"])
def test_file_names(case: dict[str, Any]) -> None:
    assert layout.file_name(case["offset"]) == case["name"]
    assert layout.parse_file_name(case["name"]) == case["offset"]


def test_hosts_of_the_vectors_pack() -> None:
    for name in ("message_v1", "message_v1_ipv6"):
        for field in ("bornHost", "storeHost"):
            assert pack_host(Address.parse(VECTORS[name][field])).hex() in VECTORS[name]["hex"]
