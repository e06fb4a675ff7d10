"""CORS: the web pages of other origins that may call the gateway and read its answers.

Before most calls a browser sends a preflight, an OPTIONS request without the key, so the gateway answers it without one.
Scripts set the key in the `Authorization` header themselves. The gateway never sends `Access-Control-Allow-Credentials`,
so no page of another origin can read an answer that a session's cookie opened, and the setting `*` is harmless.

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
    """The allowed origins."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode("ascii") for origin in origins)
        self._any = b"*" in self._origins

    def is_preflight(self, method: str, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether the request is a preflight for an allowed origin."""
        return (
            method == "OPTIONS" and b"access-control-request-method" in headers and self._allowed(headers) is not None
        )

    def preflight_headers(self, methods: str, headers: Mapping[bytes, bytes]) -> Headers:
        """Return the answer to a preflight: the methods of the path, and those requested headers that have a meaning."""
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
        """Return the headers that let the calling page read the answer, if its origin is allowed."""
        # A cache on the way must not give one origin's answer to another.
        lines: Headers = [] if self._any else [_VARY]
        allowed = self._allowed(headers)
        if allowed is not None:
            lines.append((b"access-control-allow-origin", allowed))
            lines.append((b"access-control-expose-headers", EXPOSED.encode()))
        return lines

    def early_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return the headers of a refusal that is sent before the head is complete.

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
