"""If-Match and If-None-Match: what a caller expects of what it changes."""

import re

from services.gateway.asgi.call import Call
from services.gateway.db.repositories import ANYTHING, Expectation
from services.gateway.errors import VERSION_CONFLICT, ProblemError, invalid

_ETAG = re.compile(r'"([0-9]{1,18})"|([0-9]{1,18})', re.ASCII)


def expectation_of(call: Call, *, allow_none_match: bool = True) -> Expectation:
    """Return what the request's conditions ask for.

    Raises:
        ProblemError: 400: one is not an ETag of ours. 412: both are given, so neither can hold.
    """
    match, none_match = call.header(b"if-match"), call.header(b"if-none-match")
    if none_match is not None:
        if none_match != "*" or not allow_none_match:
            raise invalid("If-None-Match", none_match, "is not `*`" if allow_none_match else "means nothing here")
        if match is not None:
            detail = "If-None-Match: wants it not to be there, and If-Match wants it to be; both can't be"
            raise ProblemError(VERSION_CONFLICT, detail, field="If-None-Match")
        return Expectation(exists=False)
    if match is None:
        return ANYTHING
    if match == "*":
        return Expectation(exists=True)
    found = _ETAG.fullmatch(match)
    if found is None:
        raise invalid("If-Match", match, 'is neither `*` nor an ETag such as "3"')
    return Expectation(version=int(found[1] or found[2]))
