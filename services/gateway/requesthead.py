"""The head of a request: its limits, its target, and what makes it unacceptable before anybody looks at the path.

Functions without state; httpconnection.py calls them from the parser's callbacks.
"""

from typing import Final
from urllib.parse import unquote

import httptools

from services.gateway.errors import (
    DUPLICATE,
    HEADERS_TOO_LARGE,
    INVALID_FIELD,
    MALFORMED_BODY,
    METHOD_NOT_ALLOWED,
    NOT_IMPLEMENTED,
    ProblemError,
)

HeaderLines = list[tuple[bytes, bytes]]

# As Apache's and twice nginx' default; a browser's cookies have room, a flood has not.
HEAD_BYTES_MAX: Final = 64 * 1024
_METHODS: Final = "DELETE, GET, HEAD, OPTIONS, POST, PUT"
_LINE_OVERHEAD_BYTES: Final = len(b": \r\n")


class RefusedError(Exception):
    """A callback of the parser refuses the request.

    Attributes:
        problem: What the caller is told.
        reason: Label of the metric.
    """

    def __init__(self, problem: ProblemError, reason: str) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.reason = reason


def why_unreadable(error: httptools.HttpParserError) -> tuple[ProblemError, str]:
    """Return why the parser could not go on: a callback refused, or it is no HTTP."""
    cause = error.__context__
    if isinstance(cause, RefusedError):
        return cause.problem, cause.reason
    detail = f"request: is not HTTP/1.1 as it should be: {cause or error}"
    return ProblemError(MALFORMED_BODY, detail), "malformed"


def check_head(version: str, hosts_count: int, target: bytes, headers: HeaderLines) -> None:
    """Raise RefusedError if a head is too large, of another version of HTTP, or has not one `Host`."""
    if measure_head(target, headers) > HEAD_BYTES_MAX:
        raise RefusedError(head_too_large(), "large_head")
    if version not in ("1.0", "1.1"):
        detail = f"request: HTTP/{version} is not spoken here, HTTP/1.1 is"
        raise RefusedError(ProblemError(MALFORMED_BODY, detail), "malformed")
    if hosts_count > 1:
        raise RefusedError(ProblemError(DUPLICATE, "Host: is given twice", field="Host"), "host")
    if version == "1.0":
        # HTTP/1.0 has no transfer codings: a proxy of that age would see another end of the body.
        for name, value in headers:
            if name == b"transfer-encoding":
                raise RefusedError(_unknown_coding(value), "transfer_coding")
    elif hosts_count == 0:
        raise RefusedError(ProblemError(INVALID_FIELD, "Host: is missing", field="Host"), "host")


def check_coding(value: bytes) -> None:
    """Raise RefusedError for a transfer coding that the gateway does not decode."""
    if value.strip().lower() != b"chunked":
        raise RefusedError(_unknown_coding(value), "transfer_coding")


def measure_head(target: bytes, headers: HeaderLines) -> int:
    """Return how many bytes target and headers take, within a few."""
    return len(target) + sum(len(name) + len(value) + _LINE_OVERHEAD_BYTES for name, value in headers)


def write_head(method: bytes, target: bytes, version: str, headers: HeaderLines) -> bytes:
    """Return a head that the parser has read as bytes again."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version.encode(), b"".join(lines))


def split_target(target: bytes) -> tuple[bytes, str, bytes]:
    """Return a request target's path as it came, the path decoded, and the query.

    Raises:
        httptools.HttpParserError, ValueError: It is none.
    """
    if target[:1] == b"/" and b"#" not in target:
        raw_path, _, query = target.partition(b"?")
    else:
        url = httptools.parse_url(target)
        raw_path, query = url.path or b"", url.query or b""
    path = raw_path.decode("ascii")
    return raw_path, unquote(path) if "%" in path else path, query


def head_too_large() -> ProblemError:
    """Return the problem of a head above the limit."""
    return ProblemError(HEADERS_TOO_LARGE, f"head: more than {HEAD_BYTES_MAX} bytes")


def no_proxy() -> ProblemError:
    """Return the problem of CONNECT."""
    return ProblemError(METHOD_NOT_ALLOWED, "CONNECT: the gateway is no proxy", headers={"Allow": _METHODS})


def _unknown_coding(value: bytes) -> ProblemError:
    detail = f"Transfer-Encoding: {value.decode('latin-1')!r} is not decoded here, only chunked of HTTP/1.1 is"
    return ProblemError(NOT_IMPLEMENTED, detail, field="Transfer-Encoding")
