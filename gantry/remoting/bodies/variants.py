"""The response to request 900021, Gantry's own: what the members of a consumer group announce."""

from gantry.remoting.bodies.fastjson import JsonBody

CLIENTS_NAMED_MAX = 100
"""The maximum number of client ids in a variant."""


class WantedTopic(JsonBody, kw_only=True):
    """A topic and its filter. The tags of an expression are sorted."""

    expression: str
    expression_type: str
    topic: str


class MemberVariant(JsonBody, kw_only=True):
    """The members that announce the same.

    Attributes:
        client_ids: Ids of members, at most CLIENTS_NAMED_MAX.
        clients: Number of members.
        message_model: CLUSTERING or BROADCASTING.
        since: Time (ms) from which on a member has announced it.
        subscriptions: The topics, sorted, without the retry topic of the group.
    """

    client_ids: list[str]
    clients: int
    message_model: str
    since: int
    subscriptions: list[WantedTopic]


class GroupVariants(JsonBody, kw_only=True):
    """The variants, the oldest first. `differs_since` is the time (ms) since when there are several; null if not."""

    differs_since: int | None = None
    variants: list[MemberVariant]
