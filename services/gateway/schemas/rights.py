"""The rights of an API key, in the form that requests, answers, Postgres and the key cache share."""

from typing import Annotated

import msgspec
from msgspec import Meta

PATTERNS_MAX = 100

Pattern = Annotated[str, Meta(pattern=r"^[*%|a-zA-Z0-9_-]+\Z", max_length=255)]
Patterns = Annotated[tuple[Pattern, ...], Meta(max_length=PATTERNS_MAX)]


Limit = Annotated[int, Meta(ge=1, le=2**40)]


class KeyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of a key on each gateway; None: only those of the gateway.

    Attributes:
        messages_per_s: Messages that it sends in a second.
        bytes_per_s: Bytes of requests and frames with messages that it sends in a second.
        connections: Streams that it has open.
        in_flight: Requests in progress, including those that wait for messages.
    """

    messages_per_s: Limit | None = None
    bytes_per_s: Limit | None = None
    connections: Limit | None = None
    in_flight: Limit | None = None


class ConsumeRights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The right to consume: both the topic and the group must match."""

    topics: Patterns = ()
    groups: Patterns = ()


class Rights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rights of a key. Each right is independent: `admin` does not include sending or consuming."""

    publish: Patterns = ()
    consume: ConsumeRights = ConsumeRights()
    admin: bool = False
    metrics: bool = False


ALL_RIGHTS = Rights(publish=("*",), consume=ConsumeRights(topics=("*",), groups=("*",)), admin=True, metrics=True)
