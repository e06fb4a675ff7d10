"""The operations that topics and consumer groups have in common: list, show, put and delete their configurations."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.conditions import changed_answer, expectation_of, shown_answer
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import flag_of, limit_of
from services.gateway.auth.principal import Principal
from services.gateway.features.actor import actor_of
from services.gateway.usecases.configs.configs import Configs
from services.gateway.usecases.configs.configuration import Configuration
from services.gateway.usecases.configs.kinds import Change
from services.gateway.views.metadata import metadata_page_view

ObservedState = TypeVar("ObservedState")


def config_routes(
    kind: str,
    configs: Configs[ObservedState],
    decoder: msgspec.json.Decoder[Any],
    *,
    view: Callable[[Configuration[ObservedState]], dict[str, Any]],
    may_see: Callable[[Principal, str], bool],
    visible_name: Callable[[Call], str],
    complete: Callable[[Any], Awaitable[Any]] | None = None,
) -> list[Operation]:
    """Return the operations on the configurations of one kind. Only an admin may put and delete.

    Args:
        kind: `topic` or `group`; the paths have its plural, and the name as a parameter.
        configs: The use cases of the kind.
        decoder: Decoder of the body of a put.
        view: The JSON form of a configuration.
        may_see: Whether a caller may see a name in the list.
        complete: Completes a change by what only the cluster knows; may raise ProblemError, InvalidValueError.
        visible_name: Returns the name in the path, or raises ProblemError (403) if the caller may not see it.
    """

    async def page(call: Call) -> Answer:
        principal = call.principal
        principal.require(principal.may_see_anything(), "admin")
        found = await configs.page(
            cursor=call.query.get("cursor"),
            limit=limit_of(call.query),
            system=flag_of(call.query, "system"),
            sees=lambda name: may_see(principal, name),
        )
        return json_answer(metadata_page_view(found, view))

    async def show(call: Call) -> Answer:
        config = await configs.get(visible_name(call))
        return shown_answer(call, view(config), config.version)

    async def put(call: Call) -> Answer:
        call.principal.require_operator()
        expect = expectation_of(call)
        change: Change[ObservedState] = await call.read_json(decoder)
        if complete is not None:
            change = await complete(change)
        config = await configs.put(call.path_params[kind], change, expect, actor_of(call))
        return changed_answer(view(config), config.version, is_new=config.is_new)

    async def delete(call: Call) -> Answer:
        call.principal.require_operator()
        expect = expectation_of(call, allow_none_match=False)
        await configs.delete(call.path_params[kind], expect, actor_of(call))
        return Answer(204)

    path = f"/v1/{kind}s"
    return [
        Operation("GET", path, page, frozenset({"cursor", "limit", "system"})),
        Operation("GET", f"{path}/{{{kind}}}", show),
        Operation("PUT", f"{path}/{{{kind}}}", put),
        Operation("DELETE", f"{path}/{{{kind}}}", delete),
    ]
