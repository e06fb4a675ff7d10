"""The life of an alert: opened, changed and resolved by the verdicts of lag reports; pure.

A verdict is good (OK, IGNORED, GONE), unknown (UNKNOWN), or bad: all others, also those of a later version.

| open | a report says | then |
|---|---|---|
| nothing | bad, for `raise_after` | opened |
| a verdict | another bad one, the same for `raise_after` | changed |
| a verdict | good, for `clear_after`; at once where it is IGNORED, since somebody said so | resolved |
| anything | unknown | it stays, and so does what is about to come: an unknown moment is neither good nor bad |

"For" is from the first report that says so to the one that decides. A report that says otherwise in between begins it
anew; while nothing is open, one bad verdict may follow another one.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

OK: Final = "OK"
IGNORED: Final = "IGNORED"
UNKNOWN: Final = "UNKNOWN"
GONE: Final = "GONE"
"""The report has not had the group on this topic for GONE_AFTER: one of them was deleted."""
GOOD: Final = frozenset({OK, IGNORED, GONE})
GONE_AFTER: Final = timedelta(hours=1)
"""A broker that is away takes the groups that only it knows out of the report, and an hour is longer than its restart."""

OPENED: Final = "opened"
CHANGED: Final = "changed"
RESOLVED: Final = "resolved"


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """For how long a verdict must hold.

    Attributes:
        raise_after: Before an alert is opened or changed. With the default schedule, a report every 15 minutes, that is
            the second report in a row; one that runs each minute has to say it six times.
        clear_after: Before it is resolved, so that a group that swings opens one alert and not many.
    """

    raise_after: timedelta = timedelta(minutes=5)
    clear_after: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class AlertState:
    """The memory between two reports of a group on a topic; None instead of one where all is well.

    Attributes:
        alert_id: Of the open alert; it and the next three are None where none is open.
        verdict: For which it is open.
        opened_at: When.
        since: When the verdict was first said.
        pending: The verdict that it is about to have, OK where it is about to be resolved; None where neither.
        pending_since: When that was first said.
    """

    alert_id: UUID | None = None
    verdict: str | None = None
    opened_at: datetime | None = None
    since: datetime | None = None
    pending: str | None = None
    pending_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """A step in the life of an alert; `since` is when the new verdict was first said."""

    kind: str
    alert_id: UUID
    old_verdict: str | None
    new_verdict: str
    since: datetime


@dataclass(frozen=True, slots=True)
class AlertDecision:
    """The state to keep, and the event, where there is one."""

    state: AlertState | None
    event: AlertEvent | None = None


def decide_alert(
    state: AlertState | None, verdict: str, at: datetime, *, alert_id: UUID, settings: AlertSettings
) -> AlertDecision:
    """Say what a verdict does to an alert.

    Args:
        state: What was kept.
        verdict: What the report says, or GONE.
        at: The moment that it is about.
        alert_id: Of the alert, if one is opened now.
        settings: For how long verdicts must hold.
    """
    if verdict == UNKNOWN:
        return AlertDecision(state)
    state = state or AlertState()
    wanted = None if verdict in GOOD else verdict
    if wanted == state.verdict:
        calm = replace(state, pending=None, pending_since=None)
        return AlertDecision(None if calm.verdict is None else calm)
    goes_on = state.pending is not None and (state.verdict is None or state.pending == (wanted or OK))
    since = state.pending_since if goes_on and state.pending_since is not None else at
    after = settings.raise_after if wanted is not None else settings.clear_after
    if at - since < after and verdict not in (IGNORED, GONE):
        return AlertDecision(replace(state, pending=wanted or OK, pending_since=since))
    if wanted is None:
        assert state.alert_id is not None
        return AlertDecision(None, AlertEvent(RESOLVED, state.alert_id, state.verdict, verdict, since))
    if state.verdict is None or state.alert_id is None:
        opened = AlertState(alert_id, wanted, opened_at=at, since=since)
        return AlertDecision(opened, AlertEvent(OPENED, alert_id, None, wanted, since))
    changed = AlertState(state.alert_id, wanted, opened_at=state.opened_at, since=since)
    return AlertDecision(changed, AlertEvent(CHANGED, state.alert_id, state.verdict, wanted, since))
