"""The actor of a change, as the audit trail names it."""

from services.gateway.asgi.call import Call
from services.gateway.db.repositories import Actor


def actor_of(call: Call) -> Actor:
    """Return the actor for the audit trail."""
    return Actor(call.principal.key_id, call.request_id)
