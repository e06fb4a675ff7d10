"""If-Match and If-None-Match: the version that a change expects, and the version that a reader has already.

ETags of the gateway are `"VERSION-DIGEST"`: the version counts changes of the desired state, and the digest covers all
that is shown. A change expects a version, so If-Match compares only the version. A read is answered 304 only if the
whole tag is equal.

Source: RFC 9110, 8.8.3 and 13.1: If-Match compares strongly, so that a weak tag never matches; If-None-Match weakly.
"""

import hashlib
import re
from typing import Any, Final

import msgspec

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.db.repositories import ANYTHING, Expectation
from services.gateway.errors import VERSION_CONFLICT, ProblemError, invalid

TAGS_MAX: Final = 32

_encode = msgspec.json.Encoder(order="deterministic").encode

_TAG = re.compile(r'(?:W/)?"[!#-~]*"')
# Shells eat quotes.
_BARE = re.compile(r"[0-9a-f-]{1,40}", re.ASCII)
_VERSION = re.compile(r'"([0-9]{1,18})(?:-[0-9a-f]{1,16})?"|([0-9]{1,18})(?:-[0-9a-f]{1,16})?', re.ASCII)


def expectation_of(call: Call, *, allow_none_match: bool = True) -> Expectation:
    """Return the state that the request's conditions expect.

    Raises:
        ProblemError: 400: a tag is not an ETag of the gateway. 412: both headers are given, or the tag is weak, so that
            it can't match.
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
    if match.startswith("W/") and _TAG.fullmatch(match):
        detail = f"If-Match: {match} is a weak tag, which matches nothing; without W/ it stands for its version"
        raise ProblemError(VERSION_CONFLICT, detail, field="If-Match")
    found = _VERSION.fullmatch(match)
    if found is None:
        raise invalid("If-Match", match, 'is neither `*` nor one ETag such as "3-5f3b9a01"')
    return Expectation(version=int(found[1] or found[2]))


def etag_of(view: dict[str, Any], version: int | None) -> str | None:
    """Return the ETag of a view: the version, and a digest of the view; None without a version."""
    if version is None:
        return None
    return f'"{version}-{hashlib.blake2b(_encode(view), digest_size=4).hexdigest()}"'


def changed_answer(view: dict[str, Any], version: int | None, *, is_new: bool) -> Answer:
    """Return the answer to a change, with the ETag of the new version."""
    return json_answer(view, 201 if is_new else 200, etag=etag_of(view, version))


def shown_answer(call: Call, view: dict[str, Any], version: int | None) -> Answer:
    """Return the answer to a read, or 304 if the caller has this version already.

    Args:
        call: The request.
        view: The answer's body, in the contract's form.
        version: Number of changes of the desired state; None if there is no ETag.

    Raises:
        ProblemError: 400: If-None-Match is not a list of ETags.
    """
    etag = etag_of(view, version)
    none_match = call.header(b"if-none-match")
    if none_match is not None:
        tags = tags_of(none_match)
        if etag is not None and ("*" in tags or etag in tags):
            return Answer(304, b"", [(b"etag", etag.encode())])
    return json_answer(view, etag=etag)


def tags_of(header: str) -> list[str]:
    """Return the tags of If-None-Match with their quotes and without `W/`, which this header ignores.

    Raises:
        ProblemError: 400: the header is not a list of tags.
    """
    if header == "*":
        return ["*"]
    tags = [tag.strip(" \t") for tag in header.split(",", TAGS_MAX)]
    if len(tags) > TAGS_MAX or any(_TAG.fullmatch(tag) is None and _BARE.fullmatch(tag) is None for tag in tags):
        raise invalid("If-None-Match", header, f"is neither `*` nor 1 to {TAGS_MAX} ETags")
    return [_quoted(tag.removeprefix("W/")) for tag in tags]


def _quoted(tag: str) -> str:
    return tag if tag.startswith('"') else f'"{tag}"'
