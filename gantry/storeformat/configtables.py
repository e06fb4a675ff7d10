"""The tables of `config/*.json`: the member that each file must have, and the valid values of its entries.

A file without its table's member is broken, not empty: all releases of RocketMQ's broker write the member even for an
empty table (`{"offsetTable":{}}`). One wrong entry makes the file broken, too. A broker that read the other entries
would lose the wrong one with its next save. Members that are not listed here are ignored, because later releases of
RocketMQ add some.

Source: docs/formats/config.md.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from gantry.storeformat.configjson import parse_config

_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1
_SHOWN_CHARS_MAX: Final = 80

# RocketMQ's JSON library reads a string of digits as a number, and so does the broker.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")


class _Kind(NamedTuple):
    """The values that a member may have."""

    expected: str
    takes: Callable[[Any], bool]


def _integers(low: int, high: int) -> _Kind:
    def takes(value: Any) -> bool:
        if type(value) is int:
            return low <= value <= high
        return isinstance(value, str) and _INTEGER.fullmatch(value) is not None and low <= int(value) <= high

    return _Kind(f"an integer from {low} to {high}", takes)


def _objects_of(kind: _Kind, expected: str) -> _Kind:
    return _Kind(expected, lambda value: isinstance(value, dict) and all(map(kind.takes, value.values())))


def _nullable(kind: _Kind) -> _Kind:
    return _Kind(kind.expected, lambda value: value is None or kind.takes(value))


_COUNT: Final = _integers(0, _INT32_MAX)
_INT32: Final = _integers(-_INT32_MAX - 1, _INT32_MAX)
_INT64: Final = _integers(-_INT64_MAX - 1, _INT64_MAX)
_FLAG: Final = _Kind("true or false", lambda value: isinstance(value, bool))
_TEXT: Final = _Kind("a text", lambda value: isinstance(value, str))
_OBJECT: Final = _Kind("an object", lambda value: isinstance(value, dict))
_TEXTS: Final = _objects_of(_TEXT, "an object of texts")
_VERSION: Final = _nullable(_objects_of(_INT64, "an object of integers"))


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry that is an object.

    Attributes:
        members: The members that a broker reads.
        required: Members that every release of RocketMQ writes, and whose defaults would change the entry's meaning.
        name: The member that repeats the entry's key.
    """

    members: Mapping[str, _Kind]
    required: tuple[str, ...]
    name: str

    def problem(self, key: str, value: Any) -> str | None:
        if not isinstance(value, dict):
            return f"is {_describe(value)}, not an object"
        for member in self.required:
            if member not in value:
                return f": {_missing_member(member, value)}"
        for member, kind in self.members.items():
            if member in value and not kind.takes(value[member]):
                return f": {member} is {_describe(value[member])}, not {kind.expected}"
        if value.get(self.name) not in (None, "", key):
            return f": {self.name} is {_describe(value[self.name])}, not the name in its key"
        return None


@dataclass(frozen=True, slots=True)
class _Queues:
    """An entry of committed offsets: queue id → offset."""

    def problem(self, key: str, value: Any) -> str | None:
        if not isinstance(value, dict):
            return f"is {_describe(value)}, not an object"
        for queue_id, offset in value.items():
            if not _INT32.takes(queue_id):
                return f": {_describe(queue_id)} is no queue id"
            if not _INT64.takes(offset):
                return f": queue {queue_id} is {_describe(offset)}, not {_INT64.expected}"
        return None


@dataclass(frozen=True, slots=True)
class _Value:
    """An entry that is a single value."""

    kind: _Kind
    key_kind: _Kind | None = None

    def problem(self, key: str, value: Any) -> str | None:
        if self.key_kind is not None and not self.key_kind.takes(key):
            return f"is no {self.key_kind.expected}"
        return None if self.kind.takes(value) else f"is {_describe(value)}, not {self.kind.expected}"


@dataclass(frozen=True, slots=True)
class _Table:
    """A file: the member that holds its table, the table's entries, and the other members that a broker reads."""

    member: str
    entry: _Entry | _Queues | _Value
    others: Mapping[str, _Kind] = field(default_factory=dict)


_TOPIC: Final = _Entry(
    {
        "attributes": _nullable(_TEXTS),
        "order": _FLAG,
        "perm": _COUNT,
        "readQueueNums": _COUNT,
        "topicFilterType": _TEXT,
        "topicName": _nullable(_TEXT),
        "topicSysFlag": _INT32,
        "writeQueueNums": _COUNT,
    },
    required=("perm", "readQueueNums", "writeQueueNums"),
    name="topicName",
)
_GROUP: Final = _Entry(
    {
        "attributes": _nullable(_TEXTS),
        "brokerId": _INT64,
        "consumeBroadcastEnable": _FLAG,
        "consumeEnable": _FLAG,
        "consumeFromMinEnable": _FLAG,
        "consumeMessageOrderly": _FLAG,
        "consumeTimeoutMinute": _INT32,
        "groupName": _nullable(_TEXT),
        "groupRetryPolicy": _nullable(_OBJECT),
        "groupSysFlag": _INT32,
        "notifyConsumerIdsChangedEnable": _FLAG,
        "retryMaxTimes": _INT32,
        "retryQueueNums": _INT32,
        "whichBrokerWhenConsumeSlowly": _INT64,
    },
    required=("consumeBroadcastEnable", "consumeEnable", "retryMaxTimes", "retryQueueNums"),
    name="groupName",
)
_FORBIDDEN: Final = _objects_of(_objects_of(_INT32, ""), "an object of objects of integers")
_TABLES: Final = {
    "topics.json": _Table("topicConfigTable", _TOPIC, {"dataVersion": _VERSION}),
    "subscriptionGroup.json": _Table(
        "subscriptionGroupTable", _GROUP, {"dataVersion": _VERSION, "forbiddenTable": _nullable(_FORBIDDEN)}
    ),
    "consumerOffset.json": _Table("offsetTable", _Queues(), {"dataVersion": _VERSION}),
    "delayOffset.json": _Table(
        "offsetTable", _Value(_INT64, _Kind("delay level", _INT32.takes)), {"dataVersion": _VERSION}
    ),
    "consumerOrderInfo.json": _Table("table", _Value(_OBJECT)),
    "messageRequestMode.json": _Table("messageRequestModeMap", _Value(_OBJECT)),
    "gantry-settings.json": _Table("settings", _Value(_TEXT), {"data_version": _VERSION}),
    "gantry-resets.json": _Table("resets", _Value(_OBJECT)),
    "gantry-deletions.json": _Table("topics", _Value(_OBJECT)),
}


def parse_table(name: str, data: bytes) -> dict[str, Any]:
    """Return the content of a file of `config/`.

    Args:
        name: The file's name; for a backup, the name of the main file.
        data: The file's bytes.

    Raises:
        ValueError: The data is not JSON, or a broker rejects it; the message names the first wrong member.
    """
    content: Any = parse_config(data)
    if not isinstance(content, dict):
        raise ValueError(f"holds {_describe(content)} and not an object")  # noqa: TRY004 - about the file's content.
    table = _TABLES.get(name)
    if table is not None:
        _check(table, content)
    return content


def _check(table: _Table, content: dict[str, Any]) -> None:
    member, entry = table.member, table.entry
    if member not in content:
        raise ValueError(_missing_member(member, content))
    entries = content[member]
    if not isinstance(entries, dict):
        raise ValueError(f"{member} is {_describe(entries)}, not an object")  # noqa: TRY004 - about the file's content.
    for key, value in entries.items():
        problem = entry.problem(key, value)
        if problem is not None:
            raise ValueError(f"{member}: {_describe(key)}{problem if problem[0] == ':' else f' {problem}'}")
    for other, kind in table.others.items():
        if other in content and not kind.takes(content[other]):
            raise ValueError(f"{other} is {_describe(content[other])}, not {kind.expected}")


def _missing_member(member: str, found: Mapping[str, Any]) -> str:
    similar = get_close_matches(member, found, n=1)
    return f'has no "{member}"' + (f", but it has {_describe(similar[0])}" if similar else "")


def _describe(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
