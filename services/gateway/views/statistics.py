"""The JSON form of the traffic of topics and groups."""

from typing import Any, Final

from services.gateway.usecases.operations.statistics import Traffic, TrafficReport


def traffic_view(report: TrafficReport) -> dict[str, Any]:
    """Return statistics in the contract's form."""
    return {
        "items": [_traffic_view(row) for row in report.brokers],
        "sums": None if report.sums is None else [_traffic_view(row) for row in report.sums],
        "missing": list(report.missing),
        "truncated": report.is_truncated,
    }


def _traffic_view(row: Traffic) -> dict[str, Any]:
    windows = {
        window: {
            "messages": amount.messages,
            "bytes": amount.size_bytes if row.kind in _KINDS_WITH_BYTES else None,
            "messages_per_s": amount.messages_per_s,
            "bytes_per_s": amount.bytes_per_s if row.kind in _KINDS_WITH_BYTES else None,
        }
        for window, amount in row.amounts.items()
    }
    return {"kind": row.kind, "topic": row.topic, "group": row.group, "broker": row.broker, **windows}


# Brokers count messages that come back without their sizes.
_KINDS_WITH_BYTES: Final = ("stored", "delivered")
