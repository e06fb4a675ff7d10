"""The timer's files and recall handles, byte for byte as Apache's broker wrote them."""

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gantry.model.javahash import java_hash
from gantry.model.recallhandle import RecallHandle, decode_recall_handle, encode_recall_handle
from gantry.storeformat.timerfiles import (
    CHECK_FILE_BYTES,
    SECOND_MS,
    SLOT_BYTES,
    UNIT_BYTES,
    WHEEL_SLOTS,
    TimerUnit,
    decode_slot,
    decode_timer_check,
    decode_timer_metrics,
    encode_slot,
    encode_timer_check,
    encode_timer_metrics,
    encode_timer_unit,
    find_timer_unit,
    slot_index,
)

GOLDEN = Path(__file__).parent / "golden"
VECTORS: dict[str, Any] = json.loads((GOLDEN / "vectors.json").read_text())


@pytest.fixture(params=["clean", "crashed"])
def store(request: pytest.FixtureRequest) -> dict[str, bytes]:
    """Return the timer's files of a golden store."""
    found = {}
    with tarfile.open(GOLDEN / f"store-{request.param}.tar.gz") as archive:
        for member in archive:
            if "timer" in member.name and "consumequeue" not in member.name and member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                found[member.name.removeprefix("store/")] = content.read()
    return found


def units(store: dict[str, bytes]) -> dict[int, TimerUnit]:
    log, found, at = store["timerlog/00000000000000000000"], {}, 0
    while (unit := find_timer_unit(log, at)) is not None:
        found[at] = unit
        at += UNIT_BYTES
    assert not any(log[at:])
    return found


def test_units_of_the_timer_log_are_encoded_to_the_same_bytes(store: dict[str, bytes]) -> None:
    found = units(store)
    assert len(found) >= 64
    assert {unit.flags for unit in found.values()} == {1, 3, 5}
    assert {unit.topic_hash for unit in found.values()} >= {java_hash("GoldenTimer")}
    for at, unit in found.items():
        assert encode_timer_unit(unit) == store["timerlog/00000000000000000000"][at : at + UNIT_BYTES]


def test_slots_of_the_wheel_name_the_units_of_their_second(store: dict[str, bytes]) -> None:
    wheel, found = store["timerwheel"], units(store)
    assert len(wheel) == WHEEL_SLOTS * SLOT_BYTES
    seen = 0
    for index in range(WHEEL_SLOTS):
        data = wheel[index * SLOT_BYTES : (index + 1) * SLOT_BYTES]
        if not any(data):
            continue
        slot = decode_slot(data)
        assert slot_index(slot.second) == index
        assert encode_slot(slot) == data
        chain, at = [], slot.last
        while at >= 0:
            chain.append(found[at])
            first, at = at, found[at].previous
        assert first == slot.first
        assert {unit.slot_ms for unit in chain} == {slot.second * SECOND_MS}
        assert slot.waiting == sum(-1 if unit.is_deletion else 1 for unit in chain)
        seen += len(chain)
    assert seen == len(found)


def test_check_point_and_metrics_are_encoded_to_the_same_bytes(store: dict[str, bytes]) -> None:
    data = store["config/timercheck"]
    check = decode_timer_check(data)
    assert len(data) == CHECK_FILE_BYTES
    assert encode_timer_check(check).ljust(CHECK_FILE_BYTES, b"\0") == data
    assert check.log_flushed == len(units(store)) * UNIT_BYTES
    assert check.queue_offset == check.master_queue_offset == len(units(store))
    metrics = store["config/timermetrics"]
    assert encode_timer_metrics(*decode_timer_metrics(metrics)) == metrics


def test_the_vector_of_a_unit_and_of_a_slot() -> None:
    data = bytes.fromhex(VECTORS["timer"]["unit_hex"])
    unit = find_timer_unit(data)
    assert unit is not None
    assert encode_timer_unit(unit) == data
    case = VECTORS["timer"]["slot_index"]
    assert slot_index(case["timeMs"] // case["precision"], slots=2 * case["slotsTotal"]) == case["index"]


def test_the_vector_of_a_recall_handle() -> None:
    case = VECTORS["recall_handle"]
    _, topic, broker, at_ms, key = case["fields"]
    handle = RecallHandle(topic, broker, int(at_ms), key)
    assert encode_recall_handle(handle) == case["handle"]
    assert decode_recall_handle(case["handle"]) == handle


def test_handles_in_replies_are_encoded_to_the_same_text() -> None:
    handles = set()
    with gzip.open(GOLDEN / "frames.jsonl.gz", "rt") as lines:
        for line in lines:
            fields = json.loads(line)["header"].get("extFields") or {}
            if "recallHandle" in fields:
                handles.add(fields["recallHandle"])
    assert len(handles) >= 5
    for text in handles:
        handle = decode_recall_handle(text)
        assert encode_recall_handle(handle) == text
        assert handle.at_ms % SECOND_MS == 1
