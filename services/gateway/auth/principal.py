"""Principals: who calls, and what they may do.

Rights are patterns over names, in which `*` stands for any characters. An answer is remembered, since the same few
topics are asked for with every message.

A pattern is matched from left to right, piece by piece, and never goes back: `*` may stand for anything, so the first place
where a piece is found leaves the most room for those behind it. A regular expression would try every place of every `*`.
"""

from collections.abc import Iterable
from typing import Final

from services.gateway.errors import FORBIDDEN, UNAUTHENTICATED, ProblemError
from services.gateway.schemas.rights import Rights

# A key for `*` that sends to ever new names must not make this grow; past it answers are just worked out again.
REMEMBERED_MAX: Final = 4_096
# No topic or group has a longer name, and what is longer would make what is remembered large.
REMEMBERED_LENGTH_MAX: Final = 255

_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="gantry"'}


class NamePattern:
    """One pattern, taken apart at its `*`."""

    __slots__ = ("_first", "_last", "_length_min", "_middle")

    def __init__(self, pattern: str) -> None:
        first, *rest = pattern.split("*")
        self._first = first
        # None: there is no `*`, so the name must be the pattern.
        self._last = rest[-1] if rest else None
        self._middle = tuple(piece for piece in rest[:-1] if piece)
        self._length_min = len(first) + sum(map(len, rest))

    def matches(self, name: str) -> bool:
        """Say whether the name is covered; looks at each character about once."""
        if self._last is None:
            return name == self._first
        if len(name) < self._length_min or not (name.startswith(self._first) and name.endswith(self._last)):
            return False
        at, end = len(self._first), len(name) - len(self._last)
        for piece in self._middle:
            found = name.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True


class NamePatterns:
    """A set of patterns that names are matched with; `*` is any characters, also none."""

    __slots__ = ("_all", "_known", "_patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = tuple(patterns)
        self._all = "*" in patterns
        self._patterns = tuple(NamePattern(pattern) for pattern in patterns)
        self._known: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, name: str) -> bool:
        """Say whether the name is covered."""
        if self._all:
            return True
        known = self._known.get(name)
        if known is None:
            known = any(pattern.matches(name) for pattern in self._patterns)
            if len(self._known) < REMEMBERED_MAX and len(name) <= REMEMBERED_LENGTH_MAX:
                self._known[name] = known
        return known


class Principal:
    """The holder of a key; `key_id` is the actor of what is written to the audit trail.

    Attributes:
        is_revoked: Set by the key ring. A request that waits for its body or for messages may outlive its key.
    """

    __slots__ = ("_groups", "_publish", "_topics", "is_revoked", "key_id", "name", "rights")

    def __init__(self, key_id: str, name: str, rights: Rights) -> None:
        self.key_id = key_id
        self.name = name
        self.rights = rights
        self.is_revoked = False
        self._publish = NamePatterns(rights.publish)
        self._topics = NamePatterns(rights.consume.topics)
        self._groups = NamePatterns(rights.consume.groups)

    @property
    def is_admin(self) -> bool:
        """Say whether metadata may be seen and changed."""
        return self.rights.admin

    def may_publish(self, topic: str) -> bool:
        """Say whether messages may be sent to the topic."""
        return self._publish.matches(topic)

    def may_read(self, topic: str) -> bool:
        """Say whether the topic's messages may be read."""
        return self._topics.matches(topic)

    def may_consume(self, topic: str, group: str) -> bool:
        """Say whether the group may be used to consume the topic."""
        return self._topics.matches(topic) and self._groups.matches(group)

    def may_see_topic(self, topic: str) -> bool:
        """Say whether the topic's configuration and offsets may be seen."""
        return self.rights.admin or self._publish.matches(topic) or self._topics.matches(topic)

    def may_see_group(self, group: str) -> bool:
        """Say whether the group's configuration, offsets and clients may be seen."""
        return self.rights.admin or self._groups.matches(group)

    def may_see_anything(self) -> bool:
        """Say whether there are names that this key may see at all."""
        return self.rights.admin or bool(self._publish) or bool(self._topics) or bool(self._groups)

    def require_unrevoked(self) -> None:
        """Raise ProblemError (401) if the key was revoked since it was looked at."""
        if self.is_revoked:
            raise refused("Authorization: the key was revoked while the request was under way")

    def require(self, allowed: bool, right: str, name: str | None = None) -> None:
        """Raise the problem of a missing right unless allowed; it is the same whether the thing exists or not."""
        if not allowed:
            on = "" if name is None else f" on {name}"
            raise ProblemError(FORBIDDEN, f"key {self.key_id}: has no right `{right}`{on}")

    def require_publish(self, topic: str) -> None:
        """Raise ProblemError (403) unless messages may be sent to the topic."""
        if not self._publish.matches(topic):
            self.require(False, "publish", f"topic {topic}")

    def require_read(self, topic: str) -> None:
        """Raise ProblemError (403) unless the topic's messages may be read."""
        if not self._topics.matches(topic):
            self.require(False, "consume", f"topic {topic}")

    def require_consume(self, topic: str, group: str) -> None:
        """Raise ProblemError (403) unless the group may be used to consume the topic."""
        if not self.may_consume(topic, group):
            self.require(False, "consume", f"topic {topic} for group {group}")

    def require_stream(self) -> None:
        """Raise ProblemError (403) unless there may be anything to publish or to consume over a stream."""
        if not self._publish and not (self._topics and self._groups):
            raise ProblemError(FORBIDDEN, f"key {self.key_id}: has neither the right `publish` nor `consume`")

    def require_admin(self) -> None:
        """Raise ProblemError (403) unless metadata may be changed."""
        if not self.rights.admin:
            self.require(False, "admin")


def refused(detail: str) -> ProblemError:
    """Return the problem (401) of a key that opens nothing."""
    return ProblemError(UNAUTHENTICATED, detail, headers=_CHALLENGE)


# Who calls a public route.
NOBODY = Principal("nobody", "nobody", Rights())
