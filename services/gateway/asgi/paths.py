"""Paths: strict percent-decoding in front of Starlette's router.

A path is split at `/` before its percent-escapes are decoded, so that `%2F` belongs to a segment and does not separate
two. Escapes must be UTF-8. Nothing is redirected, and a trailing slash makes another path, which does not exist.

Starlette routes by the decoded path, in which `%2F` is a separator and bad UTF-8 has become U+FFFD. Therefore
`routing_path` decodes each segment strictly and encodes again the three characters that the router would misread: `%`,
`/`, and the line feed, which `$` of a regular expression overlooks at the end. The convertor `segment` undoes this.
"""

import re
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor

from services.gateway.errors import MALFORMED_PATH, NOT_FOUND, ProblemError

_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_SHOWN_BYTES_MAX: Final = 200


class SegmentConvertor(Convertor[str]):
    """A path parameter: one segment, which is not empty."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """Return the segment as text."""
        return unquote(value) if "%" in value else value

    def to_string(self, value: str) -> str:
        """Return a text as a segment of a routing path."""
        return value.replace("%", "%25").replace("/", "%2F").replace("\n", "%0A")


class IdConvertor(SegmentConvertor):
    """A path parameter without a colon, for a path that another one continues by a verb: `/v1/jobs/{job:id}`.

    The path with the verb, `/v1/jobs/{job}:cancel`, takes colons, so that a wrong id there is rejected as an id.
    """

    regex = "[^/:]+"


_SEGMENT: Final = SegmentConvertor()
register_url_convertor("segment", _SEGMENT)
register_url_convertor("id", IdConvertor())


def routing_path(raw_path: bytes) -> str:
    """Return the path that Starlette's router sees.

    Raises:
        ProblemError: 400: an escape is malformed or not UTF-8. 404: the path does not start with `/`.
    """
    if not raw_path.startswith(b"/"):
        raise ProblemError(NOT_FOUND, f"path: {_shown(raw_path)} does not start with /", field="path")
    if b"%" not in raw_path and raw_path.isascii():
        return raw_path.decode()
    return "/".join(_SEGMENT.to_string(decode_escapes(segment, "path")) for segment in raw_path.split(b"/"))


def nothing_at(raw_path: bytes) -> ProblemError:
    """Return the problem (404) of a path that no route has."""
    shown = raw_path.decode("latin-1")[:_SHOWN_BYTES_MAX]
    return ProblemError(NOT_FOUND, f"path: there is nothing at {shown}", field="path")


def decode_escapes(raw: bytes, where: str) -> str:
    """Return a piece of a URL with its percent-escapes decoded.

    Raises:
        ProblemError: 400: an escape is malformed, or the decoded bytes are not UTF-8.
    """
    if b"%" in raw and _BAD_ESCAPE.search(raw):
        raise ProblemError(MALFORMED_PATH, f"{where}: {_shown(raw)} has a % without two hex digits", field=where)
    try:
        return (unquote_to_bytes(raw) if b"%" in raw else raw).decode()
    except UnicodeDecodeError:
        raise ProblemError(MALFORMED_PATH, f"{where}: {_shown(raw)} is not UTF-8", field=where) from None


def _shown(raw: bytes) -> str:
    return repr(raw[:80])[1:]
