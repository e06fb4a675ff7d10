"""The response to request 900023, Gantry's own: the producers of a topic on a broker."""

from typing import Final

from gantry.remoting.bodies.fastjson import JsonBody

PRODUCERS_MAX: Final = 1_000
"""The maximum number of producers in a response."""


class TopicProducer(JsonBody, kw_only=True):
    """A producer group that has sent to the topic over a connection that is open.

    Attributes:
        address: Address from which it is connected, `host:port`.
        client_id: Id of the instance; None if no heart-beat of it has come yet.
        group: The producer group.
        language: Name of the LanguageCode.
        sent_at: Time (ms) at which the broker stored its last message.
        version: Number of its protocol version.
    """

    address: str
    client_id: str | None
    group: str
    language: str
    sent_at: int
    version: int


class TopicProducers(JsonBody, kw_only=True):
    """The producers, the one that sent last first, and whether there may be more."""

    is_truncated: bool
    producers: list[TopicProducer]
