"""Results of the call that lists the producers of a topic."""

import msgspec


class TopicProducer(msgspec.Struct, frozen=True):
    """A connected producer that has sent to a topic.

    Attributes:
        client_id: None if the brokers do not know it.
        kind: `client`, or `gateway` for a gateway, which sends for HTTP clients.
        address: Address from which it is connected to the first of `brokers`.
    """

    group: str
    client_id: str | None
    kind: str
    address: str
    language: str
    version: str
    brokers: list[str]
    last_sent_at: str


class TopicProducers(msgspec.Struct, frozen=True):
    """The producers of a topic, the one that sent last first.

    Attributes:
        missing: Reasons why brokers did not answer.
        truncated: Whether there may be more producers.
    """

    items: list[TopicProducer]
    missing: list[str]
    truncated: bool
