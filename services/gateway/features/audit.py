"""`/v1/audit`: the audit trail, as pages and as an export."""

from collections.abc import AsyncGenerator
from typing import Final

from services.gateway.asgi.answer import Answer, StreamedAnswer, encode_json, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import Query, limit_of
from services.gateway.core import Core, Feature
from services.gateway.errors import invalid
from services.gateway.schemas.times import parse_moment
from services.gateway.usecases.audit.trail import Audit, AuditFilter
from services.gateway.views.audit import entry_view
from services.gateway.views.page import page_view

KINDS: Final = (
    "topic",
    "group",
    "key",
    "user",
    "report",
    "objective",
    "webhook",
    "job",
    "transaction",
    "producer_group",
    "broker",
)
"""Kinds of resources that have entries."""

_FILTER: Final = frozenset({"action", "actor", "from", "kind", "name", "to"})
_TEXT_MAX: Final = 255


def audit_feature(core: Core) -> Feature:
    """Return the routes of the audit trail."""
    return Feature(audit_routes(Audit(core.metadata)))


def audit_routes(audit: Audit) -> list[Operation]:
    """Return the routes of the audit trail."""

    async def page(call: Call) -> Answer:
        call.principal.require_admin()
        wanted, limit = _filter_of(call.query), limit_of(call.query)
        found = await audit.page(wanted, cursor=call.query.get("cursor"), limit=limit)
        return json_answer(page_view(found, entry_view))

    async def export(call: Call) -> Answer:
        call.principal.require_admin()
        wanted = _filter_of(call.query)
        if call.query.get("format", "ndjson") != "ndjson":
            raise invalid("format", call.query["format"], "is not ndjson")
        entries = audit.export(wanted)

        async def lines() -> AsyncGenerator[bytes, None]:
            async for entry in entries:
                # A caller who loses the right meanwhile gets no more entries.
                call.principal.require_unrevoked()
                yield encode_json(entry_view(entry)) + b"\n"

        headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
        return StreamedAnswer(lines(), headers)

    return [
        Operation("GET", "/v1/audit", page, _FILTER | {"cursor", "limit"}),
        Operation("GET", "/v1/audit:export", export, _FILTER | {"format"}),
    ]


def _filter_of(query: Query) -> AuditFilter:
    kind, name = query.get("kind"), query.get("name")
    if kind is not None and kind not in KINDS:
        raise invalid("kind", kind, f"is not one of {', '.join(KINDS)}")
    if name is not None and kind is None:
        raise invalid("name", name, "stands without `kind`")
    for field in ("actor", "action", "name"):
        text = query.get(field)
        if text is not None and (not 1 <= len(text) <= _TEXT_MAX or "\x00" in text):
            raise invalid(field, text, f"is not 1 to {_TEXT_MAX} characters without 0x00")
    begin, end = (parse_moment(query[field], field) if field in query else None for field in ("from", "to"))
    if begin is not None and end is not None and begin >= end:
        raise invalid("to", query["to"], f"is not after from, {query['from']}")
    return AuditFilter(kind=kind, name=name, actor=query.get("actor"), action=query.get("action"), begin=begin, end=end)
