"""Committed and delay offsets of a whole broker: the answers to 43 and 45."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import msgspec

from gantry.model.topic import DataVersion
from gantry.remoting.bodies.beans import DataVersionBean, version_of
from gantry.remoting.bodies.fastjson import JsonBody, decode_json, encode_json, integer_keys


class _ReadOffsets(JsonBody, kw_only=True):
    data_version: DataVersionBean | None = None
    group_topic_map: dict[str, list[str]] | None = None
    offset_table: dict[str, dict[int, int]] | None = None


class _WrittenOffsets(JsonBody, kw_only=True):
    data_version: DataVersionBean
    group_topic_map: dict[str, list[str]]
    offset_table: dict[str, msgspec.Raw]


_JOINED_COUNT = 512


@dataclass(frozen=True, slots=True)
class ConsumerOffsetWrapper:
    """43: `topic@group` → queue id → committed offset. group_topic_map: the topics each group has offsets of (5.x)."""

    offset_table: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    group_topic_map: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the body."""
        return encode_json(
            _WrittenOffsets(
                data_version=DataVersionBean.of(self.data_version),
                group_topic_map={group: list(topics) for group, topics in self.group_topic_map.items()},
                offset_table={key: integer_keys(queues) for key, queues in self.offset_table.items()},
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body.

        Raises:
            BodyError: It is no table of offsets.
        """
        bean = decode_json(_ReadOffsets, data)
        return cls(
            offset_table=bean.offset_table or {},
            data_version=version_of(bean.data_version),
            group_topic_map={group: tuple(topics) for group, topics in (bean.group_topic_map or {}).items()},
        )


class OffsetsBody:
    """The body of 43 put together entry by entry, for a table that takes long to encode at once."""

    __slots__ = ("_groups", "_offsets")

    def __init__(self) -> None:
        self._groups = _Members()
        self._offsets = _Members()

    def add_group(self, group: str, topics: list[str]) -> None:
        """Add the topics that a group has offsets of."""
        self._groups.add(b"%b:%b" % (encode_json(group), encode_json(topics)))

    def add_offsets(self, key: str, queues: Mapping[int, int]) -> None:
        """Add a pair's offsets; the key is `topic@group`."""
        self._offsets.add(b"%b:{%b}" % (encode_json(key), b",".join([b"%d:%d" % item for item in queues.items()])))

    def encode(self, version: DataVersion) -> bytes:
        """Return the body."""
        head = b'{"dataVersion":%b,"groupTopicMap":{' % encode_json(DataVersionBean.of(version))
        return b"".join((head, *self._groups.take(), b'},"offsetTable":{', *self._offsets.take(), b"}}"))


class _Members:
    """Members of an object, joined some at a time, so that the last step is a copy of few large pieces."""

    __slots__ = ("_pieces", "_some")

    def __init__(self) -> None:
        self._some: list[bytes] = []
        self._pieces: list[bytes] = []

    def add(self, member: bytes) -> None:
        self._some.append(member)
        if len(self._some) == _JOINED_COUNT:
            self._join()

    def take(self) -> list[bytes]:
        self._join()
        return self._pieces

    def _join(self) -> None:
        if self._some:
            separator = b"," if self._pieces else b""
            self._pieces.append(separator + b",".join(self._some))
            self._some.clear()


class _ReadDelayOffsets(JsonBody, kw_only=True):
    data_version: DataVersionBean | None = None
    offset_table: dict[int, int] | None = None


class _WrittenDelayOffsets(JsonBody, kw_only=True):
    data_version: DataVersionBean
    offset_table: msgspec.Raw


@dataclass(frozen=True, slots=True)
class DelayOffsetWrapper:
    """45: delay level → how far its queue has been delivered."""

    offset_table: Mapping[int, int] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)

    def encode(self) -> bytes:
        """Return the body."""
        return encode_json(
            _WrittenDelayOffsets(
                data_version=DataVersionBean.of(self.data_version), offset_table=integer_keys(self.offset_table)
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body.

        Raises:
            BodyError: It is no table of offsets.
        """
        bean = decode_json(_ReadDelayOffsets, data)
        return cls(offset_table=bean.offset_table or {}, data_version=version_of(bean.data_version))
