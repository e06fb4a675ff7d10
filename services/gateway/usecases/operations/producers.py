"""The connected producers of a topic, merged from all brokers (request 900023).

An instance sends to a broker over a connection of its own, so each broker knows the same instance by another address, and
the time of the last message that it stored itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gantry.client.answers import read_body
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError
from gantry.remoting.bodies.producers import TopicProducer, TopicProducers
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.client import TopicProducersHeader
from services.gateway.usecases.cluster.brokers import Brokers

PRODUCERS_MAX: Final = 1_000
"""The maximum number of producers in an answer."""


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer that is connected and has sent to the topic.

    Attributes:
        group: Its producer group.
        client_id: Id of the instance; None if a broker does not know it yet.
        is_gateway: Whether it is a gateway, which sends for its HTTP clients.
        address: Address from which it is connected to the first of its brokers, `host:port`.
        language: Language of its client, as brokers report it: `JAVA`, `PYTHON`, ….
        version: Number of its protocol version.
        brokers: Names of the broker sets to which it has sent, sorted.
        sent_at_ms: Wall time at which a broker stored its last message.
    """

    group: str
    client_id: str | None
    is_gateway: bool
    address: str
    language: str
    version: int
    brokers: Sequence[str]
    sent_at_ms: int


@dataclass(frozen=True, slots=True)
class ProducerReport:
    """The producers, reasons why brokers did not answer, and whether there may be more producers."""

    producers: Sequence[Producer]
    missing: Sequence[str]
    is_truncated: bool


class Producers:
    """Asks the brokers. The caller checks the right to the topic, and that it exists."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, *, gateway_group: str) -> None:
        """Make it; `gateway_group` is the producer group of all gateways."""
        self._engine = engine
        self._brokers = brokers
        self._gateway_group = gateway_group

    async def of(self, topic: str) -> ProducerReport:
        """Return the producers of a topic. Raises ProblemError (503) if no broker answers."""

        async def ask(address: str) -> TopicProducers:
            header = TopicProducersHeader(topic=topic)
            try:
                answer = await self._engine.call(address, RequestCode.GANTRY_TOPIC_PRODUCERS, header)
            except BrokerError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    return TopicProducers(is_truncated=False, producers=[])
                raise
            return read_body(TopicProducers.decode, answer, address)

        asked = await self._brokers.ask(ask)
        asked.require_answer()
        found = merge(asked.answers, gateway_group=self._gateway_group)
        return ProducerReport(
            found[:PRODUCERS_MAX],
            missing=[asked.failures[name] for name in sorted(asked.failures)],
            is_truncated=len(found) > PRODUCERS_MAX or any(answer.is_truncated for answer in asked.answers.values()),
        )


def merge(answers: Mapping[str, TopicProducers], *, gateway_group: str) -> list[Producer]:
    """Return the producers of all brokers, each instance once, the one that sent last first; pure.

    Rows of an unknown instance can't be told from each other by an id, so each of their connections is a producer.
    """
    rows: dict[tuple[str, str], tuple[TopicProducer, dict[str, None], int]] = {}
    for broker in sorted(answers):
        for row in answers[broker].producers:
            instance = f"{broker} {row.address}" if row.client_id is None else row.client_id
            first, brokers, sent_at = rows.get((row.group, instance), (row, {}, 0))
            brokers[broker] = None
            rows[row.group, instance] = (first, brokers, max(sent_at, row.sent_at))
    found = [
        Producer(
            group=row.group,
            client_id=row.client_id,
            is_gateway=row.group == gateway_group,
            address=row.address,
            language=row.language,
            version=row.version,
            brokers=list(brokers),
            sent_at_ms=sent_at,
        )
        for row, brokers, sent_at in rows.values()
    ]
    return sorted(found, key=lambda one: (-one.sent_at_ms, one.group, one.client_id or one.address))
