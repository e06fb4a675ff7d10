"""The work that is due in Postgres, found for all background loops with one query."""

from typing import Final, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

# Each condition has a partial index. Deliveries to a disabled webhook wait, and are not due.
_FIND: Final = text("""
    SELECT
        EXISTS (SELECT FROM alert_events WHERE NOT is_handed_out) OR EXISTS (
            SELECT FROM webhooks JOIN webhook_deliveries AS delivery ON delivery.webhook_id = webhooks.id
            WHERE webhooks.enabled AND delivery.status = 'pending' AND delivery.next_attempt_at <= now()
        ) AS webhooks,
        EXISTS (SELECT FROM jobs WHERE state IN ('queued', 'running') AND due_at <= now()) AS jobs,
        EXISTS (SELECT FROM transactions WHERE due_at <= now()) AS decisions,
        EXISTS (SELECT FROM transactions WHERE state = 'open' AND origin = 'http')
            OR EXISTS (SELECT FROM transactions WHERE due_at IS NOT NULL AND origin = 'http') AS transactions
""")


class DueRows(NamedTuple):
    """Which tables have rows that are due.

    Attributes:
        webhooks: Whether an event has no deliveries yet, or a delivery is due.
        jobs: Whether a job is due.
        decisions: Whether a decision on a transaction is to be delivered.
        transactions: Whether a transaction of HTTP is open or undelivered.
    """

    webhooks: bool
    jobs: bool
    decisions: bool
    transactions: bool


async def find_due(session: AsyncSession) -> DueRows:
    """Return which tables have rows that are due."""
    return DueRows(*(await session.execute(_FIND)).one())
