"""Alerts and their events, which lag reports write."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.alerttables import ALERT_EVENTS, ALERT_STATES
from services.gateway.db.records import read_all

_STATE: Final = ALERT_STATES.c
_EVENT: Final = ALERT_EVENTS.c
_PLACE: Final = (_STATE.group_name, _STATE.topic)


@dataclass(frozen=True, slots=True)
class OpenAlert:
    """The open alert of a group on a topic.

    Attributes:
        alert_id: Id of the alert.
        group_name, topic: Group and topic.
        verdict: Verdict for which the alert is open.
        opened_at: Time at which the alert was opened.
        since: Time of the first report with this verdict.
        seen_at: Time of the last report.
        seen_verdict: Verdict of the last report.
        lag_messages: Unconsumed messages in the last report.
        lag_seconds: Age (s) of the oldest of them.
        run_id: Run of the last report.
    """

    alert_id: uuid.UUID
    group_name: str
    topic: str
    verdict: str
    opened_at: datetime
    since: datetime
    seen_at: datetime
    seen_verdict: str
    lag_messages: int | None
    lag_seconds: float | None
    run_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """A change of an alert.

    Attributes:
        id: Id of the event; later events have higher ids.
        at: Time of the change.
        alert_id: Id of the alert.
        kind: `opened`, `changed` or `resolved`.
        group_name, topic: Group and topic.
        old_verdict: Verdict before the change; None if there was none.
        new_verdict: Verdict after the change.
        since: Time of the first report with the new verdict.
        lag_messages: Unconsumed messages.
        lag_seconds: Age (s) of the oldest of them.
        cause: Cause of the lag, if known.
        run_id: Run of the report that found the change.
    """

    id: int
    at: datetime
    alert_id: uuid.UUID
    kind: str
    group_name: str
    topic: str
    old_verdict: str | None
    new_verdict: str
    since: datetime
    lag_messages: int | None
    lag_seconds: float | None
    cause: str | None
    run_id: uuid.UUID


class AlertRepository:
    """Reads open alerts and events."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def open_page(self, *, group: str | None, after: tuple[str, str] | None, limit: int) -> Sequence[OpenAlert]:
        """Return open alerts by group and topic, after `after`."""
        query = select(ALERT_STATES).where(_STATE.verdict.is_not(None)).order_by(*_PLACE).limit(limit)
        if group is not None:
            query = query.where(_STATE.group_name == group)
        if after is not None:
            query = query.where(tuple_(*_PLACE) > after)
        return read_all(OpenAlert, await self._session.execute(query))

    async def events_page(
        self, *, group: str | None, topic: str | None, before_id: int | None, limit: int
    ) -> Sequence[AlertEvent]:
        """Return events, newest first; `before_id` is the id of the previous page's last event."""
        query = select(ALERT_EVENTS).order_by(_EVENT.id.desc()).limit(limit)
        for column, value in ((_EVENT.group_name, group), (_EVENT.topic, topic)):
            if value is not None:
                query = query.where(column == value)
        if before_id is not None:
            query = query.where(_EVENT.id < before_id)
        return read_all(AlertEvent, await self._session.execute(query))
