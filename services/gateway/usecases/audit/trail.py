"""The audit trail: the changes of configuration, with the key or user that made them."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from gantry.model.errors import InvalidValueError
from gantry.runtime.digits import parse_digits
from services.gateway.db.models import AuditEntry
from services.gateway.db.repositories import AuditRepository
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import Page

LISTING: Final = "audit"
_ID_MAX: Final = 2**63 - 1
_EXPORT_ROWS: Final = 200


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """The entries that a caller wants; None: all.

    Attributes:
        kind: Kind of the changed resource.
        name: Name of the changed resource.
        actor: Id of the key, `user:NAME`, or a part of the gateway.
        action: Action, such as `topic.create`.
        begin: Earliest time of the change.
        end: Time before which the change was made.
    """

    kind: str | None = None
    name: str | None = None
    actor: str | None = None
    action: str | None = None
    begin: datetime | None = None
    end: datetime | None = None


class Audit:
    """Reads the trail. The caller has checked the right `admin`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def page(self, wanted: AuditFilter, *, cursor: str | None, limit: int) -> Page[AuditEntry]:
        """List changes, newest first. Raises InvalidValueError if the cursor is not valid."""
        before = None
        if cursor is not None:
            before = parse_digits(decode_cursor(cursor, LISTING), _ID_MAX)
            if before is None:
                raise InvalidValueError("cursor", cursor, "is not a cursor of this list")
        rows = await self._read(wanted, before, limit)
        # A full page may be the last one. The next page is then empty, which is cheaper than reading one more row each
        # time.
        return Page(rows, encode_cursor(LISTING, str(rows[-1].id)) if len(rows) == limit else None)

    async def export(self, wanted: AuditFilter, *, rows: int = _EXPORT_ROWS) -> AsyncGenerator[AuditEntry, None]:
        """Yield all changes, newest first, `rows` in a transaction. The caller closes the generator.

        Raises:
            ProblemError: 503: Postgres is unavailable.
        """
        before: int | None = None
        while True:
            page = await self._read(wanted, before, rows)
            for entry in page:
                yield entry
            if len(page) < rows:
                return
            before = page[-1].id

    async def _read(self, wanted: AuditFilter, before: int | None, limit: int) -> Sequence[AuditEntry]:
        async with self._metadata.transaction() as session:
            return await AuditRepository(session).page(**asdict(wanted), before_id=before, limit=limit)
