"""The announcements of a consumer group's members: their topics, filters and message model, and whether they agree.

All members of a group must have the same topics, filters and message model, because each of them gets queues of all
topics. Members that announce the same form a *variant*. A group with more than one variant is inconsistent.

The retry topic of the group does not count: clients in broadcasting mode, and some other ones, don't subscribe to it.

Concurrency: the loop's thread only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gantry.model.group import SUB_ALL, SubscriptionData
from gantry.model.names import is_retry_topic


class Wanted(NamedTuple):
    """A topic and its filter. The tags of an expression are sorted, so that equal filters are equal."""

    topic: str
    expression_type: str
    expression: str


class Signature(NamedTuple):
    """The content of a variant."""

    message_model: str
    wanted: frozenset[Wanted]


@dataclass(slots=True)
class Variant:
    """The members that announce the same.

    Attributes:
        since_ms: Wall time from which on a member has announced it.
        members: Keys of the members, in the order in which they came.
    """

    since_ms: int
    members: dict[Any, None] = field(default_factory=dict)


def signature_of(message_model: str, subscriptions: Iterable[SubscriptionData]) -> Signature:
    """Return the content of a heart-beat that must be the same for all members."""
    return Signature(
        message_model,
        frozenset(
            Wanted(each.topic, each.expression_type, _normal(each))
            for each in subscriptions
            if not is_retry_topic(each.topic)
        ),
    )


class Variants:
    """The variants of one group.

    Attributes:
        differs_since_ms: Wall time from which on the group has been inconsistent; None while it is consistent.
    """

    def __init__(self) -> None:
        self.differs_since_ms: int | None = None
        self._variants: dict[Signature, Variant] = {}
        self._signatures: dict[Any, Signature] = {}

    def put(self, member: Any, signature: Signature, now_ms: int) -> None:
        """Note what a member announces."""
        if self._signatures.get(member) == signature:
            return
        self._take(member)
        self._signatures[member] = signature
        self._variants.setdefault(signature, Variant(now_ms)).members[member] = None
        if len(self._variants) <= 1:
            self.differs_since_ms = None
        elif self.differs_since_ms is None:
            self.differs_since_ms = now_ms

    def remove(self, member: Any) -> None:
        """Forget a member that has left."""
        self._take(member)
        if len(self._variants) <= 1:
            self.differs_since_ms = None

    def all(self) -> Mapping[Signature, Variant]:
        """Return the variants."""
        return self._variants

    def models(self) -> set[str]:
        """Return the message models that members announce."""
        return {signature.message_model for signature in self._variants}

    def model_of(self, member: Any) -> str | None:
        """Return the message model that a member announces; None if it has announced nothing."""
        signature = self._signatures.get(member)
        return None if signature is None else signature.message_model

    def _take(self, member: Any) -> None:
        signature = self._signatures.pop(member, None)
        if signature is None:
            return
        variant = self._variants[signature]
        del variant.members[member]
        if not variant.members:
            del self._variants[signature]


def _normal(subscription: SubscriptionData) -> str:
    if subscription.is_sql:
        return subscription.sub_string
    if subscription.is_all:
        return SUB_ALL
    return " || ".join(sorted(subscription.tags_set)) or subscription.sub_string
