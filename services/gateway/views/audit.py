"""The JSON form of entries of the audit trail."""

from typing import Any

from services.gateway.db.models import AuditEntry
from services.gateway.schemas.times import format_moment


def entry_view(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry in the contract's form."""
    return {
        "id": str(entry.id),
        "at": format_moment(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "kind": entry.resource_kind,
        "name": entry.resource_name,
        "before": entry.before,
        "after": entry.after,
        "request_id": entry.request_id,
    }
