"""The calls of API keys as values."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gantry.http.call import JSON, Call, Page, json_of, page_of, path_of, read_nothing
from gantry.http.results import Key, KeyLimits, Rights


def list_keys(*, revoked: bool, cursor: str | None) -> Call[Page[Key]]:
    """List API keys."""
    return Call("GET", "/v1/keys", json_of(Page[Key]), page_of(cursor, revoked="true" if revoked else None))


def create_key(name: str, rights: Rights, *, expires_at: str | None, limits: KeyLimits | None) -> Call[Key]:
    """Create an API key."""
    body: dict[str, Any] = {"name": name, "rights": rights}
    if expires_at is not None:
        body["expires_at"] = expires_at
    if limits is not None:
        body["limits"] = limits
    return _sent("POST", "/v1/keys", body)


def change_key(key_id: str, changes: Mapping[str, Any]) -> Call[Key]:
    """Change the name, the end or the limits of an API key."""
    return _sent("PUT", path_of("keys", key_id), changes)


def rotate_key(key_id: str, *, overlap: str | None) -> Call[Key]:
    """Give an API key another secret."""
    return _sent("POST", path_of("keys", key_id) + ":rotate", {} if overlap is None else {"overlap": overlap})


def revoke_key(key_id: str) -> Call[None]:
    """Revoke an API key."""
    return Call("DELETE", path_of("keys", key_id), read_nothing)


def _sent(method: str, path: str, body: Mapping[str, Any]) -> Call[Key]:
    return Call(method, path, json_of(Key), content=msgspec.json.encode(body), headers={"content-type": JSON})
