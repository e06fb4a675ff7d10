"""`/v1/keys` and `/v1/tickets`."""

import msgspec

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import flag_of, limit_of
from services.gateway.auth.tickets import Tickets
from services.gateway.core import Core, Feature
from services.gateway.errors import invalid
from services.gateway.features.actor import actor_of
from services.gateway.schemas.keys import KeyChange, KeyRotation, NewKey
from services.gateway.schemas.reading import read_json
from services.gateway.schemas.times import format_time
from services.gateway.usecases.keys import Keys
from services.gateway.views.keys import created_key_view, key_view
from services.gateway.views.page import page_view

_new_key = msgspec.json.Decoder(NewKey)
_change = msgspec.json.Decoder(KeyChange)
_rotation = msgspec.json.Decoder(KeyRotation)


def key_feature(core: Core) -> Feature:
    """Return the routes of keys and tickets."""
    keys = Keys(core.metadata, core.keys, core.key_store, clock=core.clock)
    return Feature([*key_routes(keys), *ticket_routes(core.tickets)])


def key_routes(keys: Keys) -> list[Operation]:
    """Return the routes of API keys."""

    async def create(call: Call) -> Answer:
        call.principal.require_admin()
        created = await keys.create(await call.read_json(_new_key), actor_of(call))
        return json_answer(created_key_view(created), 201)

    async def page(call: Call) -> Answer:
        call.principal.require_admin()
        cursor, limit = call.query.get("cursor"), limit_of(call.query)
        found = await keys.page(cursor=cursor, limit=limit, revoked=flag_of(call.query, "revoked"))
        return json_answer(page_view(found, key_view))

    async def show(call: Call) -> Answer:
        call.principal.require_admin()
        return json_answer(key_view(await keys.get(_id_of(call))))

    async def change(call: Call) -> Answer:
        call.principal.require_admin()
        return json_answer(key_view(await keys.change(_id_of(call), await call.read_json(_change), actor_of(call))))

    async def rotate(call: Call) -> Answer:
        call.principal.require_admin()
        key_id = _id_of(call)
        body = await call.read_body()
        wanted = KeyRotation()
        if body:
            call.require_json()
            wanted = read_json(body, _rotation)
        return json_answer(created_key_view(await keys.rotate(key_id, wanted, actor_of(call))))

    async def revoke(call: Call) -> Answer:
        call.principal.require_admin()
        await keys.revoke(_id_of(call), actor_of(call))
        return Answer(204)

    return [
        Operation("POST", "/v1/keys", create),
        Operation("GET", "/v1/keys", page, frozenset({"cursor", "limit", "revoked"})),
        Operation("POST", "/v1/keys/{id}:rotate", rotate),
        Operation("GET", "/v1/keys/{id}", show),
        Operation("PUT", "/v1/keys/{id}", change),
        Operation("DELETE", "/v1/keys/{id}", revoke),
    ]


def ticket_routes(tickets: Tickets) -> list[Operation]:
    """Return the route of tickets."""

    async def create(call: Call) -> Answer:
        ticket = tickets.give(call.principal)
        return json_answer({"ticket": ticket.ticket, "expires_at": format_time(ticket.expires_at_ms)}, 201)

    return [Operation("POST", "/v1/tickets", create, is_empty=True)]


def _id_of(call: Call) -> str:
    key_id: str = call.path_params["id"]
    if not (key_id.isascii() and key_id.isprintable() and len(key_id) <= 64):
        raise invalid("id", key_id, "is no key's id")
    return key_id
