"""Operations that the contract names and a later version implements: 501, after the rights of the key are checked."""

from gantry.model.names import check_group
from services.gateway.asgi.answer import Answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Endpoint, Operation
from services.gateway.core import Core, Feature
from services.gateway.errors import not_implemented

_ACTIONS = {
    "pull": "taking messages with receipts comes later; WebSocket /v1/stream consumes for a group",
    "ack": "receipts come later",
    "nack": "receipts come later",
    "extend": "receipts come later",
}


def unimplemented_feature(core: Core) -> Feature:
    """Return the routes of operations that do not exist yet."""
    return Feature(unimplemented_routes())


def unimplemented_routes() -> list[Operation]:
    """Return the routes of operations that do not exist yet."""
    return [Operation("POST", f"/v1/groups/{{group}}/messages:{action}", _refuse(action)) for action in _ACTIONS]


def _refuse(action: str) -> Endpoint:
    async def refuse(call: Call) -> Answer:
        group = call.path_params["group"]
        check_group(group)
        call.principal.require(call.principal.may_see_group(group), "consume", f"group {group}")
        raise not_implemented("path", f"messages:{action}: {_ACTIONS[action]}")

    return refuse
