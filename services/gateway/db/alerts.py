"""Alerts and their events, which lag reports write."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.alerttables import ALERT_EVENTS, ALERT_STATES

_STATE: Final = ALERT_STATES.c
_EVENT: Final = ALERT_EVENTS.c
_PLACE: Final = (_STATE.group_name, _STATE.topic)


class AlertRepository:
    """Reads open alerts and events."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def open_page(self, *, group: str | None, after: tuple[str, str] | None, limit: int) -> Sequence[Row[Any]]:
        """Return open alerts by group and topic, after `after`."""
        query = select(ALERT_STATES).where(_STATE.verdict.is_not(None)).order_by(*_PLACE).limit(limit)
        if group is not None:
            query = query.where(_STATE.group_name == group)
        if after is not None:
            query = query.where(tuple_(*_PLACE) > after)
        return (await self._session.execute(query)).all()

    async def events_page(
        self, *, group: str | None, topic: str | None, before_id: int | None, limit: int
    ) -> Sequence[Row[Any]]:
        """Return events, newest first; `before_id` is the id of the previous page's last event."""
        query = select(ALERT_EVENTS).order_by(_EVENT.id.desc()).limit(limit)
        for column, value in ((_EVENT.group_name, group), (_EVENT.topic, topic)):
            if value is not None:
                query = query.where(column == value)
        if before_id is not None:
            query = query.where(_EVENT.id < before_id)
        return (await self._session.execute(query)).all()
