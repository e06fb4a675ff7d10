"""Alerts: the open ones and past events. Lag reports create them (docs/alerts.md)."""

import re
from typing import Final

from gantry.model.errors import InvalidValueError
from services.gateway.db.alerts import AlertEvent, AlertRepository, OpenAlert
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import Page

OPEN_LISTING: Final = "alerts"
EVENTS_LISTING: Final = "alert-events"

_PAIR = re.compile(r"([^/]+)/([^/]+)")
_ID = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


class Alerts:
    """Reads alerts. The caller has checked the rights."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def open_page(self, *, group: str | None, cursor: str | None, limit: int) -> Page[OpenAlert]:
        """List open alerts by group and topic. Raises InvalidValueError if the cursor is not valid, ProblemError."""
        after = None if cursor is None else _place(_PAIR, cursor, OPEN_LISTING)
        async with self._metadata.transaction() as session:
            pair = None if after is None else (after[1], after[2])
            alerts = await AlertRepository(session).open_page(group=group, after=pair, limit=limit)
        # A full page may be the last one. The next page is then empty, which is cheaper than reading one more row each
        # time.
        if len(alerts) < limit:
            return Page(alerts)
        return Page(alerts, encode_cursor(OPEN_LISTING, f"{alerts[-1].group_name}/{alerts[-1].topic}"))

    async def events_page(
        self, *, group: str | None, topic: str | None, cursor: str | None, limit: int
    ) -> Page[AlertEvent]:
        """List events, newest first. Raises InvalidValueError if the cursor is not valid, ProblemError."""
        before_id = None if cursor is None else int(_place(_ID, cursor, EVENTS_LISTING)[0])
        async with self._metadata.transaction() as session:
            events = await AlertRepository(session).events_page(
                group=group, topic=topic, before_id=before_id, limit=limit
            )
        return Page(events, encode_cursor(EVENTS_LISTING, str(events[-1].id)) if len(events) == limit else None)


def _place(kind: re.Pattern[str], cursor: str, listing: str) -> re.Match[str]:
    place = kind.fullmatch(decode_cursor(cursor, listing))
    if place is None:
        raise InvalidValueError("cursor", cursor, "is not a cursor of this list")
    return place
