"""Reads rows of the lag report for the page: values as numbers, and the reasons for unknown values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import msgspec

from gantry.model.lag import severity
from spark.page.formatting import count, moment, number

# The reasons for unknown values, if the row does not give one.
_REASONS: Final = {
    "lag_messages": "no offsets came from the broker",
    "lag_seconds": "the store time of its first waiting message is unknown",
    "oldest_unconsumed_at": "the store time of its first waiting message is unknown",
    "in_rate": "too few samples yet",
    "out_rate": "too few samples yet",
    "drain_eta_s": "the rates are not known yet",
    "retention_left_s": "the broker did not say when it deletes",
    "skew": "not every queue is known",
    "clients": "no broker could be asked who is connected",
    "behind_since": "there are no samples of the time in which it fell behind",
    "owners": "the clients did not say which queues they have",
}


ETA_MAX_S: Final = 2_592_000
"""The longest drain ETA (spark/transforms/lagsettings.py, drain_eta_max_s)."""
_RATES: Final = frozenset({"in_rate", "out_rate"})


@dataclass(frozen=True, slots=True)
class Owner:
    """A client that is connected for a group. `queues` is its number of a row's queues; None if unknown."""

    client_id: str
    host: str
    queues: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """A row of a queue, or of all queues of a topic. None means unknown (see `reason`)."""

    group: str
    topic: str
    broker: str | None
    queue_id: int | None
    as_of: datetime | None
    lag_messages: float | None
    lag_seconds: float | None
    oldest_unconsumed_at: datetime | None
    in_rate: float | None
    out_rate: float | None
    drain_eta_s: float | None
    drain_eta_low_s: float | None
    drain_eta_high_s: float | None
    retention_left_s: float | None
    skew: float | None
    clients: int | None
    top_tags: tuple[tuple[str, float | None], ...]
    verdict: str
    cause: str
    next_step: str
    evidence: Mapping[str, Any]
    behind_since: datetime | None
    owners: tuple[Owner, ...] | None

    @property
    def is_behind(self) -> bool:
        """Whether a problem is known: the row is judged, and not OK."""
        return self.verdict not in {"OK", "UNKNOWN", "IGNORED"}

    @property
    def is_ignored(self) -> bool:
        """Whether the group's objective says to ignore it."""
        return self.verdict == "IGNORED"

    @property
    def waits(self) -> bool:
        """Whether messages wait, as far as is known. Messages that the group's filter rejects do not wait."""
        return self.lag_messages != 0 and self.lag_seconds != 0

    @property
    def matters(self) -> bool:
        """Whether the drain forecast is of interest. A group that keeps up always has a few messages on their way."""
        return self.waits and (self.verdict != "OK" or self.drain_eta_s is not None)

    @property
    def drains(self) -> bool | None:
        """Whether the backlog shrinks; None if it is unknown."""
        if self.drain_eta_s is not None:
            return True
        if self.in_rate is None or self.out_rate is None:
            return None
        # After a move of offsets it takes a while until there are rates for a forecast.
        is_shrinking = self.out_rate > self.in_rate
        return None if is_shrinking and ("moved_s" in self.evidence or self._is_endless) else False

    @property
    def _is_endless(self) -> bool:
        """Whether the lag shrinks so slowly that the report gives no forecast."""
        lag, rate = self.lag_messages or 0, (self.out_rate or 0) - (self.in_rate or 0)
        return rate > 0 and lag / rate > ETA_MAX_S

    def reason(self, column: str) -> str:
        """Return the reason why a column is unknown."""
        if column == "drain_eta_s" and self.evidence.get("drain_unknown"):
            return str(self.evidence["drain_unknown"])
        if column == "clients":
            return str(self.evidence.get("clients_unknown") or _REASONS[column])
        # For rates, this is the reason only if offsets are missing, too. Otherwise there were too few samples.
        if column not in _RATES or self.lag_messages is None:
            if self.evidence.get("unknown"):
                return str(self.evidence["unknown"]) + self._at_least(column)
            if self.verdict == "UNKNOWN" and self.cause:
                return self.cause
        return _REASONS.get(column, "not known")

    def _at_least(self, column: str) -> str:
        known = number(self.evidence.get("known_lag_messages") if column == "lag_messages" else None)
        return f"; at least {count(known)} in the other queues" if known else ""


@dataclass(frozen=True, slots=True)
class LagTopic:
    """A topic that a group consumes: its own row, and its queues, the worst first."""

    row: LagRow
    queues: tuple[LagRow, ...]


@dataclass(frozen=True, slots=True)
class LagGroup:
    """A consumer group with its topics, the worst first."""

    name: str
    topics: tuple[LagTopic, ...]

    @property
    def worst(self) -> LagRow:
        """The row of its worst topic."""
        return self.topics[0].row


def worst_first(row: LagRow) -> tuple[int, float, float, str, str, str, int]:
    """Return the key that sorts rows: severity, then time and messages behind, then names."""
    behind = -(row.lag_seconds or 0), -(row.lag_messages or 0)
    return severity(row.verdict), *behind, row.group, row.topic, row.broker or "", row.queue_id or 0


def read_groups(rows: Iterable[Mapping[str, Any]]) -> list[LagGroup]:
    """Return the groups of a report, the worst first. Queues of a topic without its own row are left out."""
    topics: list[LagRow] = []
    queues: dict[tuple[str, str], list[LagRow]] = {}
    for row in rows:
        read = read_row(row)
        if row.get("level") == "queue":
            queues.setdefault((read.group, read.topic), []).append(read)
        else:
            topics.append(read)
    topics.sort(key=lambda row: row.group)
    groups = []
    for name, members in groupby(topics, key=lambda row: row.group):
        of_group = [
            LagTopic(row, tuple(sorted(queues.get((row.group, row.topic), ()), key=worst_first)))
            for row in sorted(members, key=worst_first)
        ]
        groups.append(LagGroup(name, tuple(of_group)))
    return sorted(groups, key=lambda group: worst_first(group.worst))


def read_row(row: Mapping[str, Any]) -> LagRow:
    """Read one row, in the form of the REST API, of Spark or of Postgres."""
    names = ("lag_messages", "lag_seconds", "in_rate", "out_rate", "drain_eta_s", "drain_eta_low_s", "drain_eta_high_s",
             "skew")  # fmt: skip
    numbers = {name: number(row.get(name)) for name in names}
    clients, queue_id = number(row.get("clients")), number(row.get("queue_id"))
    left = row.get("retention_left_s")
    return LagRow(
        group=str(row.get("group") or row.get("group_name") or ""),
        topic=str(row.get("topic") or ""),
        broker=None if row.get("broker") is None else str(row["broker"]),
        queue_id=None if queue_id is None else int(queue_id),
        as_of=moment(row.get("as_of")),
        oldest_unconsumed_at=moment(row.get("oldest_unconsumed_at")),
        # A negative time has passed already: the file may be deleted at any moment.
        retention_left_s=0.0 if isinstance(left, (int, float)) and left < 0 else number(left),
        clients=None if clients is None else int(clients),
        top_tags=_tags(_plain(row.get("top_tags"))),
        verdict=str(row.get("verdict") or "UNKNOWN"),
        cause=str(row.get("cause") or ""),
        next_step=str(row.get("next_step") or ""),
        evidence=_mapping(_plain(row.get("evidence"))),
        behind_since=moment(row.get("behind_since")),
        owners=_owners(_plain(row.get("owners"))),
        **numbers,
    )


def _plain(value: Any) -> Any:
    """Return the value of JSON text; return any other value unchanged."""
    if not isinstance(value, (str, bytes)):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return None


def _owners(value: Any) -> tuple[Owner, ...] | None:
    """Return the clients that own the queues; None if they are unknown, as in rows of older versions."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    owners = []
    for item in value:
        one = _mapping(item)
        queues = number(one.get("queues"))
        host, client_id = str(one.get("host") or "unknown"), str(one.get("client_id") or "unknown")
        owners.append(Owner(client_id, host, None if queues is None else int(queues)))
    return tuple(owners)


def _mapping(value: Any) -> Mapping[str, Any]:
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}


def _tags(value: Any) -> tuple[tuple[str, float | None], ...]:
    if isinstance(value, Mapping):
        return tuple((str(tag), number(messages)) for tag, messages in value.items())
    if not isinstance(value, Sequence) or isinstance(value, str):
        return ()
    return tuple(_tag(item) for item in value)


def _tag(item: Any) -> tuple[str, float | None]:
    if isinstance(item, Mapping):
        return str(item.get("tag") or ""), number(item.get("messages"))
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) == 2:
        return str(item[0] or ""), number(item[1])
    return str(item), None
