"""Principals: callers and their rights.

Rights are patterns over names, in which `*` stands for any characters. Results are cached, because the same few topics
are checked for every message.

A pattern is matched from left to right, piece by piece, and never goes back: `*` stands for any characters, so the
first position of a piece leaves the most room for the next ones. A regular expression would try every position of every
`*`.
"""

from collections.abc import Iterable
from typing import Final

from services.gateway.errors import FORBIDDEN, UNAUTHENTICATED, ProblemError
from services.gateway.schemas.rights import Rights

# A key with `*` that sends to ever new names must not grow the cache without limit; beyond this, results are computed
# again.
CACHED_MAX: Final = 4_096
# No topic or group has a longer name, and longer texts would make the cache large.
CACHED_LENGTH_MAX: Final = 255

_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="gantry"'}


class NamePattern:
    """One pattern, split at its `*`."""

    __slots__ = ("_first", "_last", "_length_min", "_middle")

    def __init__(self, pattern: str) -> None:
        first, *rest = pattern.split("*")
        self._first = first
        # None: there is no `*`, so the name must equal the pattern.
        self._last = rest[-1] if rest else None
        self._middle = tuple(piece for piece in rest[:-1] if piece)
        self._length_min = len(first) + sum(map(len, rest))

    def matches(self, name: str) -> bool:
        """Return whether the name matches; each character is read about once."""
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
    """A set of patterns for names; `*` is any characters, or none."""

    __slots__ = ("_all", "_known", "_patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = tuple(patterns)
        self._all = "*" in patterns
        self._patterns = tuple(NamePattern(pattern) for pattern in patterns)
        self._known: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, name: str) -> bool:
        """Return whether the name matches one of the patterns."""
        if self._all:
            return True
        known = self._known.get(name)
        if known is None:
            known = any(pattern.matches(name) for pattern in self._patterns)
            if len(self._known) < CACHED_MAX and len(name) <= CACHED_LENGTH_MAX:
                self._known[name] = known
        return known


class Principal:
    """The holder of a key; `key_id` is the actor in the audit trail.

    Attributes:
        is_revoked: Whether the key was revoked; set by the key ring. A request that waits for its body or for messages
            may outlive its key.
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
        """Return whether the key may read and change metadata."""
        return self.rights.admin

    def may_publish(self, topic: str) -> bool:
        """Return whether the key may send messages to the topic."""
        return self._publish.matches(topic)

    def may_read(self, topic: str) -> bool:
        """Return whether the key may read the topic's messages."""
        return self._topics.matches(topic)

    def may_consume(self, topic: str, group: str) -> bool:
        """Return whether the key may consume the topic with the group."""
        return self._topics.matches(topic) and self._groups.matches(group)

    def may_see_topic(self, topic: str) -> bool:
        """Return whether the key may read the topic's configuration and offsets."""
        return self.rights.admin or self._publish.matches(topic) or self._topics.matches(topic)

    def may_see_group(self, group: str) -> bool:
        """Return whether the key may read the group's configuration, offsets and clients."""
        return self.rights.admin or self._groups.matches(group)

    def may_see_anything(self) -> bool:
        """Return whether the key may read any names at all."""
        return self.rights.admin or bool(self._publish) or bool(self._topics) or bool(self._groups)

    def require_unrevoked(self) -> None:
        """Raise ProblemError (401) if the key was revoked since it was authenticated."""
        if self.is_revoked:
            raise unauthenticated("Authorization: the key was revoked while the request was in progress")

    def require(self, allowed: bool, right: str, name: str | None = None) -> None:
        """Raise ProblemError (403) unless allowed; the error is the same whether the resource exists or not."""
        if not allowed:
            on = "" if name is None else f" on {name}"
            raise ProblemError(FORBIDDEN, f"key {self.key_id}: has no right `{right}`{on}")

    def require_publish(self, topic: str) -> None:
        """Raise ProblemError (403) unless the key may send messages to the topic."""
        if not self._publish.matches(topic):
            self.require(False, "publish", f"topic {topic}")

    def require_producer(self) -> None:
        """Raise ProblemError (403) unless the caller may publish to some topic."""
        self.require(bool(self._publish), "publish")

    def require_read(self, topic: str) -> None:
        """Raise ProblemError (403) unless the key may read the topic's messages."""
        if not self._topics.matches(topic):
            self.require(False, "consume", f"topic {topic}")

    def require_consume(self, topic: str, group: str) -> None:
        """Raise ProblemError (403) unless the key may consume the topic with the group."""
        if not self.may_consume(topic, group):
            self.require(False, "consume", f"topic {topic} for group {group}")

    def require_group(self, group: str) -> None:
        """Raise ProblemError (403) unless the key may consume with the group."""
        if not self._groups.matches(group):
            self.require(False, "consume", f"group {group}")

    def require_stream(self) -> None:
        """Raise ProblemError (403) unless the key has some right to publish or to consume over a stream."""
        if not self._publish and not (self._topics and self._groups):
            raise ProblemError(FORBIDDEN, f"key {self.key_id}: has neither the right `publish` nor `consume`")

    def require_admin(self) -> None:
        """Raise ProblemError (403) unless the key may change metadata."""
        if not self.rights.admin:
            self.require(False, "admin")


def unauthenticated(detail: str) -> ProblemError:
    """Return the problem (401) of a key that is not valid."""
    return ProblemError(UNAUTHENTICATED, detail, headers=_CHALLENGE)


# The caller of a public route.
NOBODY = Principal("nobody", "nobody", Rights())
