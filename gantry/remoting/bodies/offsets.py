"""The committed offsets and delay offsets of a whole broker: the responses to 43 and 45."""

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
    """43: `topic@group` → queue id → committed offset. group_topic_map: group → topics with offsets (5.x)."""

    offset_table: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    group_topic_map: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(
            _WrittenOffsets(
                data_version=DataVersionBean.of(self.data_version),
                group_topic_map={group: list(topics) for group, topics in self.group_topic_map.items()},
                offset_table={key: integer_keys(queues) for key, queues in self.offset_table.items()},
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not a table of offsets.
        """
        bean = decode_json(_ReadOffsets, data)
        return cls(
            offset_table=bean.offset_table or {},
            data_version=version_of(bean.data_version),
            group_topic_map={group: tuple(topics) for group, topics in (bean.group_topic_map or {}).items()},
        )


class OffsetsBody:
    """A builder for the body of 43 that adds one entry at a time, for a table that takes too long to encode at once."""

    __slots__ = ("_groups", "_offsets")

    def __init__(self) -> None:
        self._groups = _Members()
        self._offsets = _Members()

    def add_group(self, group: str, topics: list[str]) -> None:
        """Add the topics in which a group has offsets."""
        self._groups.add(b"%b:%b" % (encode_json(group), encode_json(topics)))

    def add_offsets(self, key: str, queues: Mapping[int, int]) -> None:
        """Add the offsets of a group in a topic. The key is `topic@group`."""
        self._offsets.add(b"%b:{%b}" % (encode_json(key), b",".join([b"%d:%d" % item for item in queues.items()])))

    def encode(self, version: DataVersion) -> bytes:
        """Return the encoded body."""
        head = b'{"dataVersion":%b,"groupTopicMap":{' % encode_json(DataVersionBean.of(version))
        return b"".join((head, *self._groups.take(), b'},"offsetTable":{', *self._offsets.take(), b"}}"))


class _Members:
    """The members of a JSON object. It joins some members at a time, so that the last step copies few large pieces."""

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
    """45: delay level → offset up to which the queue of the level is delivered."""

    offset_table: Mapping[int, int] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(
            _WrittenDelayOffsets(
                data_version=DataVersionBean.of(self.data_version), offset_table=integer_keys(self.offset_table)
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not a table of offsets.
        """
        bean = decode_json(_ReadDelayOffsets, data)
        return cls(offset_table=bean.offset_table or {}, data_version=version_of(bean.data_version))
