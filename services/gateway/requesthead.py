"""The head of a request: its limits, its target, and checks that do not depend on the path.

The functions have no state; httpconnection.py calls them from the parser's callbacks.
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

# Apache's default, and twice that of nginx: room for the cookies of a browser, but not for a flood.
HEAD_BYTES_MAX: Final = 64 * 1024
_METHODS: Final = "DELETE, GET, HEAD, OPTIONS, POST, PUT"
_LINE_OVERHEAD_BYTES: Final = len(b": \r\n")


class RefusedError(Exception):
    """A callback of the parser rejects the request.

    Attributes:
        problem: Problem that the caller receives.
        reason: Label of the metric.
    """

    def __init__(self, problem: ProblemError, reason: str) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.reason = reason


def why_unreadable(error: httptools.HttpParserError) -> tuple[ProblemError, str]:
    """Return the problem and the metric label of a parser error: a callback rejected the request, or it is not HTTP."""
    cause = error.__context__
    if isinstance(cause, RefusedError):
        return cause.problem, cause.reason
    detail = f"request: is not valid HTTP/1.1: {cause or error}"
    return ProblemError(MALFORMED_BODY, detail), "malformed"


def check_head(version: str, hosts_count: int, target: bytes, headers: HeaderLines) -> None:
    """Raise RefusedError if a head is too large, has another HTTP version, or does not have exactly one `Host`."""
    if measure_head(target, headers) > HEAD_BYTES_MAX:
        raise RefusedError(head_too_large(), "large_head")
    if version not in ("1.0", "1.1"):
        detail = f"request: HTTP/{version} is not supported, only HTTP/1.1 is"
        raise RefusedError(ProblemError(MALFORMED_BODY, detail), "malformed")
    if hosts_count > 1:
        raise RefusedError(ProblemError(DUPLICATE, "Host: is given twice", field="Host"), "host")
    if version == "1.0":
        # HTTP/1.0 has no transfer codings: a proxy for HTTP/1.0 would find another end of the body.
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
    """Return the approximate size of target and headers in bytes."""
    return len(target) + sum(len(name) + len(value) + _LINE_OVERHEAD_BYTES for name, value in headers)


def write_head(method: bytes, target: bytes, version: str, headers: HeaderLines) -> bytes:
    """Return the bytes of a head that the parser has read."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version.encode(), b"".join(lines))


def split_target(target: bytes) -> tuple[bytes, str, bytes]:
    """Return the path of a request target as received, the path percent-decoded, and the query.

    Raises:
        httptools.HttpParserError, ValueError: The target is not valid.
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
    return ProblemError(METHOD_NOT_ALLOWED, "CONNECT: the gateway is not a proxy", headers={"Allow": _METHODS})


def _unknown_coding(value: bytes) -> ProblemError:
    detail = f"Transfer-Encoding: {value.decode('latin-1')!r} is not supported, only chunked in HTTP/1.1 is"
    return ProblemError(NOT_IMPLEMENTED, detail, field="Transfer-Encoding")
