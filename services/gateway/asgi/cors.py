"""CORS: which web pages of other origins may call the gateway and read what it answers.

A browser asks before most calls (the preflight): an OPTIONS without the key, which is therefore answered without one. Keys come in
the `Authorization` header, which scripts set themselves, so `Access-Control-Allow-Credentials` is never said: no cookie and no
password that a browser holds opens anything here, and `*` is harmless to who sets it.

Source: the Fetch standard, 3.3 (HTTP-CORS protocol).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from services.gateway.asgi.answer import Headers

PREFLIGHT_SECONDS: Final = 600
EXPOSED: Final = (
    "Allow, ETag, Gantry-Duplicate-Detection, Location, RateLimit, RateLimit-Policy, Retry-After, WWW-Authenticate,"
    " X-Request-Id"
)
REQUEST_HEADERS: Final = (
    "accept",
    "authorization",
    "content-type",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "traceparent",
    "tracestate",
    "x-csrf-token",
    "x-request-id",
)
_ASKED_HEADERS_MAX: Final = 64
_VARY: Final = (b"vary", b"Origin")


class Cors:
    """The origins that are let in."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode("ascii") for origin in origins)
        self._any = b"*" in self._origins

    def is_preflight(self, method: str, headers: Mapping[bytes, bytes]) -> bool:
        """Say whether a browser asks if it may call, for an origin that is let in."""
        return (
            method == "OPTIONS" and b"access-control-request-method" in headers and self._allowed(headers) is not None
        )

    def preflight_headers(self, methods: str, headers: Mapping[bytes, bytes]) -> Headers:
        """Return what a preflight is answered: the path's methods, and those of the headers asked for that mean something."""
        asked = (
            headers.get(b"access-control-request-headers", b"").decode("latin-1").lower().split(",", _ASKED_HEADERS_MAX)
        )
        names = {name.strip() for name in asked[:_ASKED_HEADERS_MAX]}
        allowed = sorted(name for name in names if name in REQUEST_HEADERS or _is_ours(name))
        return [
            (b"access-control-allow-methods", methods.encode()),
            (b"access-control-allow-headers", ", ".join(allowed).encode("ascii")),
            (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
        ]

    def headers(self, headers: Mapping[bytes, bytes]) -> Headers:
        """Return the headers with which the page that called may read the answer, if its origin is allowed."""
        # A cache on the way must not give one origin's answer to another.
        lines: Headers = [] if self._any else [_VARY]
        allowed = self._allowed(headers)
        if allowed is not None:
            lines.append((b"access-control-allow-origin", allowed))
            lines.append((b"access-control-expose-headers", EXPOSED.encode()))
        return lines

    def early_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return the headers of a refusal that is given before the head is complete.

        If the headers so far do not name the origin, a page can read the refusal if all origins or just one is allowed.

        Args:
            headers: The headers so far, with lower-case names.
        """
        known = dict(headers)
        if b"origin" not in known and len(self._origins) == 1:
            known[b"origin"] = next(iter(self._origins))
        return self.headers(known)

    def _allowed(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        origin = headers.get(b"origin")
        if origin is None:
            return None
        if self._any:
            return b"*"
        return origin if origin in self._origins else None


def _is_ours(name: str) -> bool:
    return name.startswith("gantry-") and name.isascii() and name.replace("-", "").replace("_", "").isalnum()
