"""Alerts of a lag report: reads the states of groups on topics, and writes new states and events.

This happens in the transaction that makes the report visible, so a crash neither loses an event nor writes it twice.
The module gantry.model.alert makes the decisions.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid5

from gantry.model.alert import GONE, GONE_AFTER, AlertEvent, AlertSettings, AlertState, decide_alert
from spark.postgres import Connection

CAUSE_CHARACTERS_MAX: Final = 2_000

_STATE_COLUMNS: Final = "alert_id, verdict, opened_at, since, pending, pending_since"
_UPSERT_STATE: Final = (
    f"INSERT INTO alert_states (group_name, topic, {_STATE_COLUMNS}, seen_at, seen_verdict, lag_messages, lag_seconds, run_id)"  # noqa: S608
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (group_name, topic) DO UPDATE SET"
    " alert_id = excluded.alert_id, verdict = excluded.verdict, opened_at = excluded.opened_at, since = excluded.since,"
    " pending = excluded.pending, pending_since = excluded.pending_since, seen_at = excluded.seen_at,"
    " seen_verdict = excluded.seen_verdict, lag_messages = excluded.lag_messages, lag_seconds = excluded.lag_seconds,"
    " run_id = excluded.run_id"
)
_INSERT_EVENT: Final = (
    "INSERT INTO alert_events (at, alert_id, kind, group_name, topic, old_verdict, new_verdict, since, lag_messages,"
    " lag_seconds, cause, run_id) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ReportedVerdict:
    """A report's verdict on a group and a topic, with its numbers."""

    verdict: str
    at: datetime
    lag_messages: int | None = None
    lag_seconds: float | None = None
    cause: str | None = None


def collect_verdicts(
    rows: Iterable[Mapping[str, Any]], seen: dict[Pair, ReportedVerdict]
) -> Iterator[Mapping[str, Any]]:
    """Yield a lag report's rows unchanged, and add the verdict of each group on a topic to `seen`.

    The caller reads all rows for another reason, and this saves a second pass over them.
    """
    for row in rows:
        if row["level"] == "topic":
            seen[row["group"], row["topic"]] = ReportedVerdict(
                row["verdict"], row["as_of"], row.get("lag_messages"), row.get("lag_seconds"), row.get("cause")
            )
        yield row


def evaluate(
    connection: Connection,
    noted: Mapping[Pair, ReportedVerdict],
    *,
    run_id: UUID,
    settings: AlertSettings,
    began_at: datetime | None = None,
) -> list[AlertEvent]:
    """Decide how a lag report changes alerts, and write the changes.

    Args:
        connection: A connection in the transaction that ends the run.
        noted: The verdicts of the report; see collect_verdicts.
        run_id: The run of the report.
        settings: The times for which verdicts must hold.
        began_at: The time when the run began. It is the time of a report without rows, which means that no group is
            left. If it is None, such a report changes nothing.

    Returns:
        The events that were written.

    Raises:
        psycopg.Error: A statement failed; the caller must roll back the transaction.
    """
    seen = dict(noted)
    at = max((one.at for one in seen.values()), default=began_at)
    if at is None:
        return []
    kept = _read_states(connection)
    seen.update(
        {
            pair: ReportedVerdict(GONE, at)
            for pair, (_, last) in kept.items()
            if pair not in seen and at - last >= GONE_AFTER
        }
    )
    states: list[tuple[Any, ...]] = []
    done: list[Pair] = []
    events: list[tuple[Pair, ReportedVerdict, AlertEvent]] = []
    for pair, one in seen.items():
        state = kept[pair][0] if pair in kept else None
        decision = decide_alert(state, one.verdict, one.at, alert_id=uuid5(run_id, "/".join(pair)), settings=settings)
        if decision.event is not None:
            events.append((pair, one, decision.event))
        if decision.state is not None:
            states.append((*pair, *_columns(decision.state), one.at, one.verdict, *_lag(one), run_id))
        elif state is not None:
            done.append(pair)
    with connection.cursor() as cursor:
        cursor.executemany("DELETE FROM alert_states WHERE group_name = %s AND topic = %s", done)
        cursor.executemany(_UPSERT_STATE, states)
        cursor.executemany(_INSERT_EVENT, [_event_values(*event, run_id) for event in events])
    return [event for _, _, event in events]


def _read_states(connection: Connection) -> dict[Pair, tuple[AlertState, datetime]]:
    """Return the state of each pair, and the time of the last report that contained the pair."""
    query = f"SELECT group_name, topic, seen_at, {_STATE_COLUMNS} FROM alert_states"  # noqa: S608 - constants of this module.
    return {(row[0], row[1]): (AlertState(*row[3:]), row[2]) for row in connection.execute(query).fetchall()}


def _columns(state: AlertState) -> tuple[Any, ...]:
    return state.alert_id, state.verdict, state.opened_at, state.since, state.pending, state.pending_since


def _lag(seen: ReportedVerdict) -> tuple[int | None, float | None]:
    return seen.lag_messages, seen.lag_seconds


def _event_values(pair: Pair, seen: ReportedVerdict, event: AlertEvent, run_id: UUID) -> tuple[Any, ...]:
    # A cause may quote a filter or a broker's error. Texts in Postgres can't contain NUL.
    cause = seen.cause and seen.cause[:CAUSE_CHARACTERS_MAX].replace("\0", "\N{SYMBOL FOR NULL}")
    verdicts = event.old_verdict, event.new_verdict
    return seen.at, event.alert_id, event.kind, *pair, *verdicts, event.since, *_lag(seen), cause, run_id
