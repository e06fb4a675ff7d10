"""Plain lists and tables: the bodies of the responses to 28, 38, 103, 206, 219, 224, 300 and 304."""

import msgspec

from gantry.remoting.bodies.fastjson import JsonBody


class KVTable(JsonBody, kw_only=True):
    """A table of strings by name."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class TopicList(JsonBody, kw_only=True):
    """A list of topic names. The responses to 304 and 343 also have the address of a broker."""

    broker_addr: str | None = None
    topic_list: list[str] = msgspec.field(default_factory=list)

    def encode(self) -> bytes:
        """Return the encoded body. An address that is None is omitted."""
        return super().encode() if self.broker_addr is not None else _Topics(topic_list=self.topic_list).encode()


class _Topics(JsonBody, kw_only=True):
    topic_list: list[str]


class GroupList(JsonBody, kw_only=True):
    """A list of group names."""

    group_list: list[str] = msgspec.field(default_factory=list)


class ConsumerIdList(JsonBody, kw_only=True):
    """The client ids of the instances of a group, with exactly the text from their heartbeats."""

    consumer_id_list: list[str] = msgspec.field(default_factory=list)
