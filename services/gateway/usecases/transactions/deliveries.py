"""Delivers the decisions that no broker has confirmed yet, those of other gateways too, and deletes old transactions.

Any number of gateways may run it. Postgres gives each decision to one of them, for the time of a lease.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from gantry.runtime.clock import Clock
from gantry.runtime.tasks import wait_for_event
from gantry.runtime.telemetry import logger
from services.gateway.db.transactions import TransactionRepository
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.duework import SLOW_POLL_S
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.transactions.transactions import LEASE, Transactions

log = logger("gateway.transactions")

POLL_S: Final = SLOW_POLL_S
"""Pause between two looks for decisions. A decision that is due shortens it (duework.py)."""
AWAY_S: Final = 5.0
"""Pause after Postgres was unavailable."""
AT_ONCE: Final = 32
"""Decisions of one gateway that are delivered at the same time."""
TIDY_INTERVAL_S: Final = 3_600.0
TIDY_ROWS: Final = 1_000


class Deliveries:
    """The background work. One task runs it."""

    def __init__(
        self,
        transactions: Transactions,
        metadata: Metadata,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        keep_days: int,
        due: asyncio.Event,
    ) -> None:
        """Make it; transactions are kept for `keep_days` after their end, 0 for ever. `due` is set when there is work."""
        self._transactions = transactions
        self._metadata = metadata
        self._metrics = metrics
        self._clock = clock
        self._keep_days = keep_days
        self._due = due
        self._tidy_at_ms = clock.monotonic_ms()

    async def run(self) -> None:
        """Deliver until cancelled. Return at once if the gateway has no Postgres."""
        if self._metadata.database is None:
            return
        while True:
            pause_s = POLL_S
            try:
                if await self.round() == AT_ONCE:
                    pause_s = 0.0
                await self.tidy()
            except ProblemError as error:
                log.warning("decisions are not delivered", reason=error.detail)
                pause_s = AWAY_S
            except Exception:  # boundary: of a background loop; one transaction must not end the gateway.
                log.exception("decisions are not delivered")
                self._metrics.count("transaction_faults")
                pause_s = AWAY_S
            await wait_for_event(self._due, pause_s)
            self._due.clear()

    async def round(self) -> int:
        """Deliver the decisions that are due; return their number. Raises ProblemError (503)."""
        async with self._metadata.transaction() as session:
            due = await TransactionRepository(session).claim(lease=LEASE, count_max=AT_ONCE)
        await asyncio.gather(*(self._transactions.deliver(row) for row in due))
        return len(due)

    async def tidy(self) -> None:
        """Delete old transactions, once an hour. Raises ProblemError (503)."""
        now_ms = self._clock.monotonic_ms()
        if self._keep_days == 0 or now_ms < self._tidy_at_ms:
            return
        before = datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC) - timedelta(days=self._keep_days)
        while True:
            async with self._metadata.transaction() as session:
                if await TransactionRepository(session).delete_ended(before=before, limit=TIDY_ROWS) < TIDY_ROWS:
                    break
        self._tidy_at_ms = now_ms + int(TIDY_INTERVAL_S * 1_000)
