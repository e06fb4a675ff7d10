"""Deletion of old rows of the audit trail, a page at a time."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

PAGE_ROWS: Final = 500

# A topic or group that is created again takes its first version from the last row of its name (repositories.py), so
# that an ETag of the deleted one never matches the new one. That row stays, whatever its age.
_DELETE: Final = text("""
    WITH page AS (
        SELECT id, at, resource_kind, resource_name FROM audit WHERE id > :after ORDER BY id LIMIT :rows
    ), deleted AS (
        DELETE FROM audit USING page
        WHERE audit.id = page.id AND page.at < :before AND (
            page.resource_kind NOT IN ('topic', 'group') OR EXISTS (
                SELECT FROM audit AS later
                WHERE later.resource_kind = page.resource_kind AND later.resource_name = page.resource_name
                    AND later.id > page.id
            )
        )
        RETURNING audit.id
    )
    SELECT max(id), bool_or(at < :before), (SELECT count(*) FROM deleted) FROM page
""")


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the trail: the number of deleted rows, and the id to continue after; None if no old row follows."""

    deleted: int
    next_after: int | None


async def delete_page(session: AsyncSession, *, before: datetime, after: int, rows: int = PAGE_ROWS) -> Page:
    """Delete the rows of one page that are older than `before`; ids grow with time, so old rows come first.

    Args:
        session: An open transaction.
        before: Time from which rows stay.
        after: Id after which the page begins; 0 for the first page.
        rows: Length of a page.
    """
    last, has_old, deleted = (await session.execute(_DELETE, {"before": before, "after": after, "rows": rows})).one()
    return Page(deleted, last if has_old else None)
