"""Plain lists and tables: the bodies of 28, 38, 103 (reply), 206, 219, 224, 300 and 304."""

import msgspec

from gantry.remoting.bodies.fastjson import JsonBody


class KVTable(JsonBody, kw_only=True):
    """Texts by name."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class TopicList(JsonBody, kw_only=True):
    """Topic names; 304 and 343 add a broker's address."""

    broker_addr: str | None = None
    topic_list: list[str] = msgspec.field(default_factory=list)

    def encode(self) -> bytes:
        """Return the body; an absent address is left out."""
        return super().encode() if self.broker_addr is not None else _Topics(topic_list=self.topic_list).encode()


class _Topics(JsonBody, kw_only=True):
    topic_list: list[str]


class GroupList(JsonBody, kw_only=True):
    """Group names."""

    group_list: list[str] = msgspec.field(default_factory=list)


class ConsumerIdList(JsonBody, kw_only=True):
    """The client ids of a group's instances, byte for byte as their heart-beats said them."""

    consumer_id_list: list[str] = msgspec.field(default_factory=list)
