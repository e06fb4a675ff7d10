"""Retention of the audit trail: one gateway at a time deletes rows older than `audit_keep_days`, every hour.

Each page is a transaction of its own with a pause after it, so that neither Postgres nor the event loop is blocked.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.gateway.db.audittrail import PAGE_ROWS, delete_page
from services.gateway.db.leadership import Leadership
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.metadata import Metadata

log = logger("gateway.audit")

LEADERSHIP: Final = "audit"
INTERVAL_S: Final = 3_600.0
# The pause if Postgres is unavailable, or another gateway is the leader.
RETRY_S: Final = 60.0
PAUSE_S: Final = 0.1


class AuditRetention:
    """Deletes old rows.

    Concurrency: one task runs it.
    """

    def __init__(self, metadata: Metadata, metrics: GatewayMetrics, *, clock: Clock, keep_days: int) -> None:
        """Create it; with `keep_days` 0 it deletes nothing."""
        self._metadata = metadata
        self._metrics = metrics
        self._clock = clock
        self._keep_days = keep_days
        database = metadata.database
        self._leadership = None if database is None or keep_days == 0 else Leadership(database, LEADERSHIP)

    async def run(self) -> None:
        """Delete old rows until cancelled."""
        if self._leadership is None:
            return
        while True:
            is_done = await self._run_round(self._leadership)
            await asyncio.sleep(INTERVAL_S if is_done else RETRY_S)

    async def round(self, *, rows: int = PAGE_ROWS) -> int:
        """Delete all old rows, `rows` at a time; return their number. Raises ProblemError (503)."""
        before = datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC) - timedelta(days=self._keep_days)
        deleted = 0
        after: int | None = 0
        while after is not None:
            async with self._metadata.transaction() as session:
                page = await delete_page(session, before=before, after=after, rows=rows)
            deleted, after = deleted + page.deleted, page.next_after
            self._metrics.count("audit_rows_deleted", page.deleted)
            await asyncio.sleep(PAUSE_S)
        return deleted

    async def _run_round(self, leadership: Leadership) -> bool:
        """Return whether all old rows are deleted now."""
        try:
            if not await leadership.hold():
                return False
            deleted = await self.round()
        except ProblemError as error:
            log.warning("old audit rows were not deleted", reason=error.detail)
            return False
        except Exception:  # boundary: of a background loop; old rows must not end the gateway.
            log.exception("old audit rows were not deleted")
            self._metrics.count("audit_tidy_failures")
            return False
        finally:
            # The leadership holds a connection, and an hour is too long for an idle connection.
            await leadership.release()
        if deleted:
            log.info("old audit rows deleted", count=deleted, keep_days=self._keep_days)
        return True
