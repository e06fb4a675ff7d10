"""The traffic of topics and groups over the last minute, hour and day, as brokers count it (request 900033).

Brokers count from their start, so a window may cover less time than its name says. If a broker does not answer, the sums
over all brokers are unknown; `missing` has the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gantry.client.answers import read_body
from gantry.client.engine import ClientEngine
from gantry.remoting.bodies.statistics import FlowRow, FlowRows
from gantry.remoting.codes import RequestCode
from gantry.remoting.headers.broker import StatisticsHeader
from services.gateway.usecases.cluster.brokers import Brokers

WINDOWS: Final = ("minute", "hour", "day")


@dataclass(frozen=True, slots=True)
class Amount:
    """The messages and bytes of a window, and how many there were in a second."""

    messages: int
    size_bytes: int
    messages_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """One flow of messages on one broker.

    Attributes:
        kind: `stored`, `delivered`, `sent_back` or `dead`.
        topic: The topic.
        group: The group; None for `stored`.
        broker: Name of the broker set; None for the sum of all.
        amounts: Amount of each of WINDOWS.
    """

    kind: str
    topic: str
    group: str | None
    broker: str | None
    amounts: Mapping[str, Amount]


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """The flows of a topic or a group.

    Attributes:
        brokers: One row for each flow on each broker.
        sums: One row for each flow; None if a broker is missing.
        missing: Reasons why brokers did not answer.
        is_truncated: Whether a broker has more flows than it tells.
    """

    brokers: Sequence[Traffic]
    sums: Sequence[Traffic] | None
    missing: Sequence[str]
    is_truncated: bool


class Statistics:
    """Reads statistics. The caller checks the rights, and that the topic or the group exists."""

    def __init__(self, engine: ClientEngine, brokers: Brokers) -> None:
        self._engine = engine
        self._brokers = brokers

    async def read(self, *, topic: str | None, group: str | None) -> TrafficReport:
        """Return the traffic of a topic, of a group, or of a group in a topic.

        Raises:
            ProblemError: 503: no broker answers.
        """

        async def ask(address: str) -> FlowRows:
            header = StatisticsHeader(topic=topic, consumer_group=group)
            response = await self._engine.call(address, RequestCode.GANTRY_STATISTICS, header)
            return read_body(FlowRows.decode, response, address)

        asked = await self._brokers.ask(ask)
        asked.require_answer()
        rows = [_traffic(broker, row) for broker, answer in asked.answers.items() for row in answer.rows]
        return TrafficReport(
            brokers=rows,
            sums=None if asked.failures else add_up(rows),
            missing=[asked.failures[name] for name in sorted(asked.failures)],
            is_truncated=any(answer.is_truncated for answer in asked.answers.values()),
        )


def add_up(rows: Sequence[Traffic]) -> list[Traffic]:
    """Return the sums over all brokers, sorted; pure."""
    parts: dict[tuple[str, str, str], list[Traffic]] = {}
    for row in rows:
        parts.setdefault((row.topic, row.group or "", row.kind), []).append(row)
    return [
        Traffic(kind, topic, group or None, None, {window: _sum_of(some, window) for window in WINDOWS})
        for (topic, group, kind), some in sorted(parts.items())
    ]


def _sum_of(rows: Sequence[Traffic], window: str) -> Amount:
    amounts = [row.amounts[window] for row in rows]
    return Amount(
        sum(amount.messages for amount in amounts),
        sum(amount.size_bytes for amount in amounts),
        sum(amount.messages_per_s for amount in amounts),
        sum(amount.bytes_per_s for amount in amounts),
    )


def _traffic(broker: str, row: FlowRow) -> Traffic:
    windows = zip(WINDOWS, (row.minute, row.hour, row.day), strict=True)
    amounts = {
        name: Amount(
            window.messages,
            window.bytes,
            _per_s(window.messages, window.elapsed_ms),
            _per_s(window.bytes, window.elapsed_ms),
        )
        for name, window in windows
    }
    return Traffic(row.kind.lower(), row.topic, row.group, broker, amounts)


def _per_s(amount: int, elapsed_ms: int) -> float:
    return round(amount * 1_000 / elapsed_ms, 3) if elapsed_ms > 0 else 0.0
