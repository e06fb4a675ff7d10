"""The JSON form of the producers of a topic."""

from typing import Any

from gantry.remoting.codes import version_name
from services.gateway.schemas.times import format_time
from services.gateway.usecases.operations.producers import Producer, ProducerReport


def producers_view(report: ProducerReport) -> dict[str, Any]:
    """Return the producers of a topic in the contract's form."""
    return {
        "items": [_producer_view(producer) for producer in report.producers],
        "missing": list(report.missing),
        "truncated": report.is_truncated,
    }


def _producer_view(producer: Producer) -> dict[str, Any]:
    return {
        "group": producer.group,
        "client_id": producer.client_id,
        "kind": "gateway" if producer.is_gateway else "client",
        "address": producer.address,
        "language": producer.language,
        "version": version_name(producer.version),
        "brokers": list(producer.brokers),
        "last_sent_at": format_time(producer.sent_at_ms),
    }
