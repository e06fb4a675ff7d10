"""Query parameters: strict reading, and conversion to values.

Each route declares its parameters. An undeclared or repeated parameter is rejected before the endpoint runs.
"""

import re
from collections.abc import Mapping
from typing import Final

from gantry.model.errors import NO_VALUE, InvalidValueError
from services.gateway.asgi.paths import decode_escapes
from services.gateway.errors import DUPLICATE, UNKNOWN_PARAMETER, ProblemError, invalid
from services.gateway.schemas.times import parse_duration_ms, parse_time_ms

OFFSET_MAX: Final = 2**63 - 1
LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 1_000

Query = Mapping[str, str]

_INTEGER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


def parse_query(raw: bytes, allowed: frozenset[str]) -> dict[str, str]:
    """Return the parameters of a query string.

    Raises:
        ProblemError: 400: a parameter is not among `allowed`, occurs twice, or is not UTF-8.
    """
    query: dict[str, str] = {}
    for pair in raw.split(b"&"):
        if not pair:
            continue
        raw_name, _, raw_value = pair.replace(b"+", b" ").partition(b"=")
        name = decode_escapes(raw_name, "query")
        if name not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise ProblemError(
                UNKNOWN_PARAMETER, f"{name!r} is no parameter here; known: {known}", field=name or "query"
            )
        if name in query:
            raise ProblemError(DUPLICATE, f"{name}: is given twice", field=name)
        query[name] = decode_escapes(raw_value, name)
    return query


def integer(text: str, name: str, *, lowest: int = 0, highest: int = OFFSET_MAX) -> int:
    """Return a whole number written in plain digits.

    Raises:
        ProblemError: 400: it is anything else, or out of range.
    """
    if _INTEGER.fullmatch(text) is None:
        raise invalid(name, text, "is not a whole number")
    number = int(text)
    if not lowest <= number <= highest:
        raise invalid(name, text, f"is not within {lowest}…{highest}")
    return number


def limit_of(query: Query, *, default: int = LIMIT_DEFAULT) -> int:
    """Return `limit`. Raises ProblemError (400) unless it is within 1…1000."""
    return integer(query["limit"], "limit", lowest=1, highest=LIMIT_MAX) if "limit" in query else default


def flag_of(query: Query, name: str) -> bool:
    """Return a parameter that is true or false; false if it is missing. Raises ProblemError (400)."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise invalid(name, text, "is neither true nor false")
    return text == "true"


def duration_of(query: Query, name: str, *, default_ms: int, max_ms: int) -> int:
    """Return a duration in ms. Raises InvalidValueError."""
    return parse_duration_ms(query[name], name, max_ms=max_ms) if name in query else default_ms


def time_of(query: Query, name: str) -> int:
    """Return a required moment in ms since 1970. Raises InvalidValueError."""
    return parse_time_ms(required(query, name), name)


def required(query: Query, name: str) -> str:
    """Return a parameter that must be given. Raises InvalidValueError."""
    if name not in query:
        raise InvalidValueError(name, NO_VALUE, "is missing")
    return query[name]
