"""The lifecycle of an alert: the verdicts of lag reports open, change and resolve it. Pure functions.

A verdict is good (OK, IGNORED, GONE), unknown (UNKNOWN), or bad (all other verdicts, also those of a later version).

| open alert | verdict of the reports | result |
|---|---|---|
| none | bad, for `raise_after` | opened |
| with a bad verdict | another bad verdict, the same for `raise_after` | changed |
| with a bad verdict | good, for `clear_after`, or one report with IGNORED or GONE | resolved |
| any or none | unknown | no change, also to the pending verdict: UNKNOWN is neither good nor bad |

The time "for" starts with the first report with this verdict and ends with the report that decides. A report with a
different verdict in between restarts it, except in three cases. All good verdicts count as the same. UNKNOWN does not
count. While no alert is open, all bad verdicts count as the same.

IGNORED resolves an alert at once, because a person decided to ignore the group.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

OK: Final = "OK"
IGNORED: Final = "IGNORED"
UNKNOWN: Final = "UNKNOWN"
GONE: Final = "GONE"
"""The reports have not contained the group and topic for GONE_AFTER, so one of the two was deleted."""
GOOD: Final = frozenset({OK, IGNORED, GONE})
GONE_AFTER: Final = timedelta(hours=1)
"""While a broker is down, the groups that only this broker knows are missing in the reports. A restart takes less than
an hour."""

OPENED: Final = "opened"
CHANGED: Final = "changed"
RESOLVED: Final = "resolved"


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """The times for which a verdict must hold.

    Attributes:
        raise_after: The time before an alert is opened or changed. By default there is a report every 15 minutes, so
            the second report in a row opens the alert. With a report every minute, the sixth report opens it.
        clear_after: The time before an alert is resolved. It prevents many alerts for a group whose verdict changes
            often.
    """

    raise_after: timedelta = timedelta(minutes=5)
    clear_after: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class AlertState:
    """The state of a group on a topic between two reports. It is None if no alert is open or pending.

    Attributes:
        alert_id: The id of the open alert. This and the next three attributes are None if no alert is open.
        verdict: The verdict of the open alert.
        opened_at: The time when the alert was opened.
        since: The time of the first report with this verdict.
        pending: The verdict that has not held long enough yet, OK for any good verdict; None if there is none.
        pending_since: The time of the first report with the pending verdict.
    """

    alert_id: UUID | None = None
    verdict: str | None = None
    opened_at: datetime | None = None
    since: datetime | None = None
    pending: str | None = None
    pending_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """A change of an alert. `since` is the time of the first report with the new verdict."""

    kind: str
    alert_id: UUID
    old_verdict: str | None
    new_verdict: str
    since: datetime


@dataclass(frozen=True, slots=True)
class AlertDecision:
    """The new state, and the event if there is one."""

    state: AlertState | None
    event: AlertEvent | None = None


def decide_alert(
    state: AlertState | None, verdict: str, at: datetime, *, alert_id: UUID, settings: AlertSettings
) -> AlertDecision:
    """Return the new state and the event that a verdict causes.

    Args:
        state: The state after the last report.
        verdict: The verdict of the report, or GONE.
        at: The time of the report.
        alert_id: The id for a new alert, if this verdict opens one.
        settings: The times for which verdicts must hold.
    """
    if verdict == UNKNOWN:
        return AlertDecision(state)
    state = state or AlertState()
    new_verdict = None if verdict in GOOD else verdict
    if new_verdict == state.verdict:
        settled = replace(state, pending=None, pending_since=None)
        return AlertDecision(None if settled.verdict is None else settled)
    is_continued = state.pending is not None and (state.verdict is None or state.pending == (new_verdict or OK))
    since = state.pending_since if is_continued and state.pending_since is not None else at
    after = settings.raise_after if new_verdict is not None else settings.clear_after
    if at - since < after and verdict not in (IGNORED, GONE):
        return AlertDecision(replace(state, pending=new_verdict or OK, pending_since=since))
    if new_verdict is None:
        assert state.alert_id is not None
        return AlertDecision(None, AlertEvent(RESOLVED, state.alert_id, state.verdict, verdict, since))
    if state.verdict is None or state.alert_id is None:
        opened = AlertState(alert_id, new_verdict, opened_at=at, since=since)
        return AlertDecision(opened, AlertEvent(OPENED, alert_id, None, new_verdict, since))
    changed = AlertState(state.alert_id, new_verdict, opened_at=state.opened_at, since=since)
    return AlertDecision(changed, AlertEvent(CHANGED, state.alert_id, state.verdict, new_verdict, since))
