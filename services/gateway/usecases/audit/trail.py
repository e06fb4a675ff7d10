"""The audit trail: the changes of configuration, with the key that made them."""

from gantry.model.errors import InvalidValueError
from gantry.runtime.digits import parse_digits
from services.gateway.db.models import AuditEntry
from services.gateway.db.repositories import AuditRepository
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import Page

LISTING = "audit"
_ID_MAX = 2**63 - 1


class Audit:
    """Reads the trail. The caller has checked the right `admin`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def page(self, *, kind: str | None, name: str | None, cursor: str | None, limit: int) -> Page[AuditEntry]:
        """List changes, newest first. Raises InvalidValueError if the cursor is not valid."""
        before = None
        if cursor is not None:
            before = parse_digits(decode_cursor(cursor, LISTING), _ID_MAX)
            if before is None:
                raise InvalidValueError("cursor", cursor, "is not a cursor of this list")
        async with self._metadata.transaction() as session:
            rows = await AuditRepository(session).page(kind=kind, name=name, before_id=before, limit=limit)
        # A full page may be the last one. The next page is then empty, which is cheaper than reading one more row each
        # time.
        return Page(rows, encode_cursor(LISTING, str(rows[-1].id)) if len(rows) == limit else None)
