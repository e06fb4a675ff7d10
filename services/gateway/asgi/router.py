"""The router: raw path → route and parameters, strictly.

A path is split at `/` before its percent-escapes are decoded, so that `%2F` is part of a segment and not a separator.
Escapes must be UTF-8. Nothing is redirected, and a trailing slash is another path: one that does not exist.

Starlette's router can do none of this: it sees the decoded path, in which bad UTF-8 has become U+FFFD.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from services.gateway.errors import MALFORMED_PATH, METHOD_NOT_ALLOWED, NOT_FOUND, ProblemError

# Hot paths are few: topics and queues in use. Past this many the cache starts anew.
PATHS_CACHED_MAX: Final = 8_192
_PATH_CACHED_BYTES_MAX: Final = 512

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")

Endpoint = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the contract.

    Attributes:
        method: Its HTTP method.
        path: Its template, `/v1/topics/{topic}`.
        endpoint: What serves it.
        query: The names of the query parameters it takes; any other is refused.
        is_public: Whether it needs no key.
        is_send: Whether its problems carry an outcome.
        is_probe: Whether it tells how the gateway is, and so needs no place among the requests under way.
    """

    method: str
    path: str
    endpoint: Endpoint
    query: frozenset[str] = frozenset()
    is_public: bool = False
    is_send: bool = False
    is_probe: bool = False


@dataclass(slots=True)
class _Node:
    names: dict[str, "_Node"] = field(default_factory=dict)
    parameter: str = ""
    child: "_Node | None" = None
    routes: dict[str, Route] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """A path of the contract: its routes by method, and its parameters."""

    routes: Mapping[str, Route]
    parameters: Mapping[str, str]

    def route_for(self, method: str) -> Route:
        """Return the route of a method; HEAD is answered as GET.

        Raises:
            ProblemError: 405, with Allow.
        """
        route = self.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = self.allowed
            raise ProblemError(
                METHOD_NOT_ALLOWED,
                f"method: {method} is not one of {allowed}",
                field="method",
                headers={"Allow": allowed},
            )
        return route

    @property
    def allowed(self) -> str:
        """Return the value of Allow."""
        methods = set(self.routes) | {"OPTIONS"}
        if "GET" in methods:
            methods.add("HEAD")
        return ", ".join(sorted(methods))


class Router:
    """All routes, as a tree of path segments.

    Concurrency: one thread.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        self._found: dict[bytes, Found] = {}
        for route in routes:
            self._add(route)

    def find(self, raw_path: bytes) -> Found:
        """Return what is at a path, as it came over the wire.

        Raises:
            ProblemError: 404: nothing is; 400: an escape is malformed or not UTF-8.
        """
        found = self._found.get(raw_path)
        if found is None:
            found = self._walk(raw_path)
            if len(raw_path) <= _PATH_CACHED_BYTES_MAX:
                if len(self._found) >= PATHS_CACHED_MAX:
                    self._found.clear()
                self._found[raw_path] = found
        return found

    def _walk(self, raw_path: bytes) -> Found:
        if not raw_path.startswith(b"/"):
            raise ProblemError(NOT_FOUND, f"path: {_shown(raw_path)} does not start with /", field="path")
        found = _find(self._root, raw_path[1:].split(b"/"), 0, {})
        if found is not None:
            return found
        raise ProblemError(NOT_FOUND, f"path: there is nothing at {raw_path.decode('latin-1')[:200]}", field="path")

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path[1:].split("/"):
            if segment.startswith("{"):
                name = segment[1:-1]
                assert node.child is None or node.parameter == name, f"{route.path}: two names for one parameter"
                if node.child is None:
                    node.parameter, node.child = name, _Node()
                node = node.child
            else:
                node = node.names.setdefault(segment, _Node())
        assert route.method not in node.routes, f"{route.method} {route.path} stands twice"
        node.routes[route.method] = route


def _find(node: _Node, raws: Sequence[bytes], at: int, parameters: Mapping[str, str]) -> Found | None:
    """Return what is at the rest of a path; a name goes before a parameter, where both lead somewhere."""
    if at == len(raws):
        return Found(node.routes, parameters) if node.routes else None
    segment = decode_escapes(raws[at], "path")
    named = node.names.get(segment)
    found = None if named is None else _find(named, raws, at + 1, parameters)
    if found is None and node.child is not None and segment:
        found = _find(node.child, raws, at + 1, {**parameters, node.parameter: segment})
    return found


def decode_escapes(raw: bytes, where: str) -> str:
    """Return a piece of a URL with its percent-escapes decoded.

    Raises:
        ProblemError: 400: an escape is malformed, or what comes out is not UTF-8.
    """
    if b"%" in raw and _BAD_ESCAPE.search(raw):
        raise ProblemError(MALFORMED_PATH, f"{where}: {_shown(raw)} has a % without two hex digits", field=where)
    try:
        return (unquote_to_bytes(raw) if b"%" in raw else raw).decode()
    except UnicodeDecodeError:
        raise ProblemError(MALFORMED_PATH, f"{where}: {_shown(raw)} is not UTF-8", field=where) from None


def _shown(raw: bytes) -> str:
    return repr(raw[:80])[1:]
