"""The registration of a broker: the body of 103, plain and compressed.

Format, plain: `{"filterServerList":[],"topicConfigSerializeWrapper":{…}}`.

Format, compressed: one zlib stream (level 9) of, big-endian,
    int32 size + JSON of the DataVersion
    int32 topic count, then for each topic int32 size + `name read write perm filterType attributesJson`
    int32 size + JSON array of filter servers
    from version 413 on: int32 count of queue mappings, then for each mapping int32 size + JSON
The compressed form does not contain the sys flag and the order of a topic.

Source: RocketMQ RegisterBrokerBody.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self, cast

import msgspec

from gantry.model.topic import DataVersion, TopicConfig
from gantry.remoting.bodies.beans import TopicConfigBean
from gantry.remoting.bodies.config import (
    TopicConfigSerializeWrapper,
    TopicTableBean,
    decode_data_version,
    encode_data_version,
)
from gantry.remoting.bodies.fastjson import JsonBody, decode_json, encode_json
from gantry.remoting.codes import ANNOUNCED_VERSION, VERSION_QUEUE_MAPPING_IN_REGISTRATION
from gantry.remoting.errors import BodyError

# A hundred thousand topics need 10 MiB. The limit is for malicious frames: 16 MiB could inflate to 16 GiB of zeros.
INFLATED_BYTES_MAX = 64 * 1024 * 1024

_KIND = "RegisterBrokerBody"
_INT32 = struct.Struct(">i")
_LEVEL = 9


class _RegisterBrokerBean(JsonBody, kw_only=True):
    filter_server_list: list[str] | None = None
    topic_config_serialize_wrapper: TopicTableBean | None = None


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody:
    """The topics and filter servers of a broker."""

    topics: TopicConfigSerializeWrapper = field(default_factory=TopicConfigSerializeWrapper)
    filter_servers: tuple[str, ...] = ()

    def encode(self, *, compressed: bool = False) -> bytes:
        """Return the encoded body. `compressed` must be the same as in the header."""
        if compressed:
            return zlib.compress(self.encode_uncompressed(), _LEVEL)
        return encode_json(
            _RegisterBrokerBean(
                filter_server_list=list(self.filter_servers), topic_config_serialize_wrapper=self.topics.to_bean()
            )
        )

    @staticmethod
    def encode_topic(config: TopicConfig) -> msgspec.Raw:
        """Return the part of one topic in the plain form, for `join`."""
        return msgspec.Raw(encode_json(TopicConfigBean.of(config)))

    @staticmethod
    def join(version: DataVersion, topics: dict[str, msgspec.Raw]) -> bytes:
        """Return the plain form of a table with encoded topics. This is ten times as fast as `encode`."""
        bean = TopicConfigSerializeWrapper(data_version=version).to_bean()
        bean.topic_config_table = cast("dict[str, TopicConfigBean]", topics)
        return encode_json(_RegisterBrokerBean(filter_server_list=[], topic_config_serialize_wrapper=bean))

    def encode_uncompressed(self) -> bytes:
        """Return the data of the compressed form before zlib compresses it."""
        parts = [_sized(encode_data_version(self.topics.data_version))]
        table = self.topics.topic_config_table
        parts.append(_INT32.pack(len(table)))
        parts += [_sized(encode_topic_line(config).encode()) for config in table.values()]
        parts.append(_sized(encode_json(list(self.filter_servers))))
        parts.append(_INT32.pack(0))  # No queue mappings: Gantry does not support static topics.
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, *, compressed: bool = False, version: int = ANNOUNCED_VERSION) -> Self:
        """Decode a body.

        Args:
            data: The body. It is empty if the broker sends no topics.
            compressed: The value from the header.
            version: The version that the command announces. It decides whether the compressed form has queue mappings.

        Raises:
            BodyError: The data does not have this form.
        """
        if not data:
            return cls()
        if compressed:
            return cls._decode_inflated(_inflate(data), version)
        bean = decode_json(_RegisterBrokerBean, data)
        wrapper = bean.topic_config_serialize_wrapper
        return cls(
            topics=TopicConfigSerializeWrapper() if wrapper is None else TopicConfigSerializeWrapper.of_bean(wrapper),
            filter_servers=tuple(bean.filter_server_list or ()),
        )

    @classmethod
    def _decode_inflated(cls, data: bytes, version: int) -> Self:
        reader = _Reader(data)
        data_version: DataVersion = decode_data_version(reader.block())
        configs = [decode_topic_line(_text(reader.block())) for _ in reader.counted()]
        filter_servers = tuple(decode_json(list[str], reader.block()))
        if version >= VERSION_QUEUE_MAPPING_IN_REGISTRATION:
            for _ in reader.counted():
                reader.block()
        return cls(
            topics=TopicConfigSerializeWrapper(
                topic_config_table={config.topic_name: config for config in configs}, data_version=data_version
            ),
            filter_servers=filter_servers,
        )


def encode_topic_line(config: TopicConfig) -> str:
    """Return a topic in the format of the compressed form."""
    attributes = encode_json(dict(config.attributes)).decode()
    return (
        f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} {int(config.perm)}"
        f" {config.topic_filter_type} {attributes}"
    )


def decode_topic_line(line: str) -> TopicConfig:
    """Decode a topic in the format of the compressed form. Releases before 5.0 write no attributes.

    Raises:
        BodyError: A part is missing or is not a number.
    """
    parts = line.split(" ", 5)
    if len(parts) < 5 or not parts[0]:
        raise BodyError(_KIND, "topic", f"{line[:200]!r} has less than five parts")
    try:
        read, write, perm = int(parts[1]), int(parts[2]), int(parts[3])
        attributes = msgspec.json.decode(parts[5], type=dict[str, str]) if len(parts) > 5 and parts[5] else {}
    except ValueError as error:
        raise BodyError(_KIND, "topic", f"{line[:200]!r}: {error}") from None
    return TopicConfig(parts[0], read, write, perm, topic_filter_type=parts[4], attributes=attributes)


class _Reader:
    """A reader of blocks with a size word. It never reads past the end."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def block(self) -> bytes:
        size = self._int32()
        if not 0 <= size <= len(self._data) - self._at:
            raise BodyError(_KIND, "", f"block of {size} bytes at {self._at} of {len(self._data)}")
        block = self._data[self._at : self._at + size]
        self._at += size
        return block

    def counted(self) -> Iterator[int]:
        count = self._int32()
        # Each block has at least its size word. A forged count can't cause a long loop.
        if not 0 <= count <= (len(self._data) - self._at) // _INT32.size:
            raise BodyError(_KIND, "", f"{count} blocks at {self._at} of {len(self._data)}")
        return iter(range(count))

    def _int32(self) -> int:
        try:
            (value,) = _INT32.unpack_from(self._data, self._at)
        except struct.error:
            raise BodyError(_KIND, "", f"ends at {len(self._data)} within a number") from None
        self._at += _INT32.size
        return int(value)


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise BodyError(_KIND, "", f"{len(data)} bytes are no zlib stream: {error}") from None
    if not inflater.eof:
        reason = "inflates to more" if inflater.unconsumed_tail else "ends before its stream does"
        raise BodyError(_KIND, "", f"{len(data)} bytes: {reason}; at most {INFLATED_BYTES_MAX} are read")
    return inflated


def _sized(block: bytes) -> bytes:
    return _INT32.pack(len(block)) + block


def _text(block: bytes) -> str:
    try:
        return str(block, "utf-8")
    except UnicodeDecodeError as error:
        raise BodyError(_KIND, "topic", str(error)) from None
