"""DueWork: one look at Postgres each second wakes the background loops that have work.

Webhooks, jobs and decisions on transactions are rows that any gateway may take. If each loop looked for its rows by
itself, a gateway at rest would spend most of its time on queries that find nothing.
"""

import asyncio
from typing import Final

from gantry.runtime.telemetry import logger
from services.gateway.db.duework import find_due
from services.gateway.errors import ProblemError
from services.gateway.usecases.metadata import Metadata

log = logger("gateway.duework")

POLL_S: Final = 1.0
AWAY_S: Final = 5.0
"""Pause after Postgres was unavailable."""
SLOW_POLL_S: Final = 30.0
"""Pause after which a loop looks by itself, although nobody has woken it: for rows that are not due but too old."""


class DueWork:
    """Wakes the background loops. One task runs it.

    Attributes:
        webhooks: Set when an event or a delivery of a webhook is due.
        jobs: Set when a job is due.
        decisions: Set when a decision on a transaction is to be delivered.
        has_transactions: Whether transactions of HTTP are open or undelivered; also true while it is unknown.
    """

    def __init__(self, metadata: Metadata, *, jobs: asyncio.Event) -> None:
        """Make it; `jobs` is the event that also the use case of jobs sets."""
        self._metadata = metadata
        self.webhooks = asyncio.Event()
        self.jobs = jobs
        self.decisions = asyncio.Event()
        self.has_transactions = True
        self._is_unavailable = False

    async def run(self) -> None:
        """Look until cancelled. Return at once if the gateway has no Postgres."""
        if self._metadata.database is None:
            return
        while True:
            pause_s = POLL_S
            try:
                await self.look()
            except ProblemError as error:
                if not self._is_unavailable:
                    log.warning("due work is not found", reason=error.detail)
                self._is_unavailable = self.has_transactions = True
                pause_s = AWAY_S
            else:
                self._is_unavailable = False
            await asyncio.sleep(pause_s)

    async def look(self) -> None:
        """Look once, and wake the loops that have work. Raises ProblemError (503)."""
        async with self._metadata.transaction() as session:
            due = await find_due(session)
        self.has_transactions = due.transactions
        for is_due, wake in ((due.webhooks, self.webhooks), (due.jobs, self.jobs), (due.decisions, self.decisions)):
            if is_due:
                wake.set()
