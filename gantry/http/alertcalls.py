"""The calls of objectives, alerts and webhooks as values."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gantry.http.alertresults import Objective
from gantry.http.call import JSON, Call, Page, json_decoder, json_of, page_of, params_of, path_of


def list_objectives(*, group: str | None, cursor: str | None) -> Call[Page[Objective]]:
    """List objectives."""
    return Call("GET", "/v1/objectives", json_of(Page[Objective]), page_of(cursor, group=group))


def get_objective(group: str, *, topic: str | None) -> Call[Objective]:
    """Show an objective."""
    return Call("GET", path_of("groups", group, "objective"), _objective, params_of(topic=topic))


def put_objective(group: str, change: Mapping[str, Any], *, topic: str | None, etag: str | None) -> Call[Objective]:
    """Make or change an objective."""
    return Call(
        "PUT",
        path_of("groups", group, "objective"),
        _objective,
        params_of(topic=topic),
        content=msgspec.json.encode(change),
        headers={"content-type": JSON, **_match(etag)},
    )


def delete_objective(group: str, *, topic: str | None, etag: str | None) -> Call[None]:
    """Take an objective away."""
    path = path_of("groups", group, "objective")
    return Call("DELETE", path, _nothing, params_of(topic=topic), headers=_match(etag))


def _objective(content: bytes, headers: Mapping[str, str]) -> Objective:
    found: Objective = json_decoder(Objective).decode(content)
    return msgspec.structs.replace(found, etag=headers.get("etag"))


def _match(etag: str | None) -> dict[str, str]:
    return {} if etag is None else {"if-match": etag}


def _nothing(content: bytes, headers: Mapping[str, str]) -> None:
    del content, headers
