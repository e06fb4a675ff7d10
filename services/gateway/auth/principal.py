"""Principals: callers and their rights.

Rights are patterns over names, in which `*` stands for any characters. Results are cached, because the same few topics
are checked for every message.

A pattern is matched from left to right, piece by piece, and never goes back: `*` stands for any characters, so the
first position of a piece leaves the most room for the next ones. A regular expression would try every position of every
`*`.
"""

from collections.abc import Iterable
from typing import Final

from gantry.model.names import is_system_topic
from services.gateway.auth.roles import Role, rights_of
from services.gateway.errors import FORBIDDEN, UNAUTHENTICATED, ProblemError, reserved_name
from services.gateway.schemas.rights import KeyLimits, Rights

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
    """The holder of a key, or a user in a session.

    Attributes:
        key_id: Actor in the audit trail, and holder of quotas: the id of the key, or `user:NAME`.
        credential: The secret of the key that was given, or the id of the session; to find the principal again.
        role: Role of the user; None for a key.
        expires_at_ms: End of the key, or of the secret that was given (wall ms); None if there is none.
        limits: Limits of the key; None if it has none of its own.
        is_revoked: Whether the key was revoked or the session has ended; set by their ring. A request that waits for
            its body or for messages may outlive its key.
    """

    __slots__ = (
        "_groups", "_publish", "_topics", "credential", "expires_at_ms", "is_revoked", "key_id", "limits", "name", "rights",
        "role",
    )  # fmt: skip

    def __init__(
        self,
        key_id: str,
        name: str,
        rights: Rights,
        *,
        role: Role | None = None,
        credential: str | None = None,
        expires_at_ms: int | None = None,
        limits: KeyLimits | None = None,
    ) -> None:
        self.key_id = key_id
        self.name = name
        self.rights = rights
        self.role = role
        self.credential = key_id if credential is None else credential
        self.expires_at_ms = expires_at_ms
        self.limits = limits
        self.is_revoked = False
        self._publish = NamePatterns(rights.publish)
        self._topics = NamePatterns(rights.consume.topics)
        self._groups = NamePatterns(rights.consume.groups)

    @property
    def is_admin(self) -> bool:
        """Return whether the caller may read and change all metadata."""
        return self.rights.admin

    @property
    def is_operator(self) -> bool:
        """Return whether the caller may change metadata, but for keys, users and webhooks."""
        return self.rights.admin or self.role is Role.OPERATOR

    @property
    def sees_all(self) -> bool:
        """Return whether the caller may read all names and settings, but for keys, users and webhooks."""
        return self.rights.admin or self.role is not None

    def may_publish(self, topic: str) -> bool:
        """Return whether the key may send messages to the topic."""
        return self._publish.matches(topic)

    def may_read(self, topic: str) -> bool:
        """Return whether the key may read the topic's messages. Only admins read system topics."""
        return self._topics.matches(topic) and (self.rights.admin or not is_system_topic(topic))

    def may_consume(self, topic: str, group: str) -> bool:
        """Return whether the key may consume the topic with the group. System topics have no consumers."""
        return self._topics.matches(topic) and self._groups.matches(group) and not is_system_topic(topic)

    def may_see_topic(self, topic: str) -> bool:
        """Return whether the key may read the topic's configuration and offsets."""
        return self.sees_all or self._publish.matches(topic) or self._topics.matches(topic)

    def may_see_group(self, group: str) -> bool:
        """Return whether the key may read the group's configuration, offsets and clients."""
        return self.sees_all or self._groups.matches(group)

    def may_see_anything(self) -> bool:
        """Return whether the key may read any names at all."""
        return self.sees_all or bool(self._publish) or bool(self._topics) or bool(self._groups)

    def require_unrevoked(self) -> None:
        """Raise ProblemError (401) if the key was revoked, or the session ended, since the caller was authenticated."""
        if self.is_revoked and self.role is not None:
            raise unauthenticated("session: has ended while the request was in progress")
        if self.is_revoked:
            raise unauthenticated("Authorization: the key was revoked while the request was in progress")

    def require(self, allowed: bool, right: str, name: str | None = None) -> None:
        """Raise ProblemError (403) unless allowed; the error is the same whether the resource exists or not."""
        if not allowed:
            on = "" if name is None else f" on {name}"
            raise ProblemError(FORBIDDEN, f"{self.holder}: has no right `{right}`{on}")

    def require_publish(self, topic: str) -> None:
        """Raise ProblemError (403) unless the key may send messages to the topic."""
        if not self._publish.matches(topic):
            self.require(False, "publish", f"topic {topic}")

    def require_producer(self) -> None:
        """Raise ProblemError (403) unless the caller may publish to some topic."""
        self.require(bool(self._publish), "publish")

    def require_read(self, topic: str) -> None:
        """Raise ProblemError (403) unless the key may read the topic's messages."""
        if not self.may_read(topic):
            self.require(False, "consume", f"topic {topic}")

    def require_consume(self, topic: str, group: str) -> None:
        """Raise ProblemError (403) unless the key may consume the topic with the group."""
        if self.rights.admin and is_system_topic(topic):
            raise reserved_name("topic", topic)
        if not self.may_consume(topic, group):
            self.require(False, "consume", f"topic {topic} for group {group}")

    def require_group(self, group: str) -> None:
        """Raise ProblemError (403) unless the key may consume with the group."""
        if not self._groups.matches(group):
            self.require(False, "consume", f"group {group}")

    def require_stream(self) -> None:
        """Raise ProblemError (403) unless the key has some right to publish, or to read topics, over a stream."""
        if not self._publish and not self._topics:
            raise ProblemError(FORBIDDEN, f"{self.holder}: has neither the right `publish` nor `consume`")

    def require_admin(self) -> None:
        """Raise ProblemError (403) unless the caller may read and change all metadata."""
        if not self.is_admin:
            self.require(False, "admin")

    def require_operator(self) -> None:
        """Raise ProblemError (403) unless the caller may change topics, groups and what belongs to them."""
        if not self.is_operator:
            self.require(False, "admin" if self.role is None else Role.OPERATOR)

    def require_viewer(self) -> None:
        """Raise ProblemError (403) unless the caller may read all names and settings."""
        if not self.sees_all:
            self.require(False, "admin")

    @property
    def holder(self) -> str:
        """Return the caller as problems name it."""
        return f"key {self.key_id}" if self.role is None else f"user {self.name} ({self.role})"


def user_principal(name: str, role: Role, session_id: str) -> Principal:
    """Return the principal of a user in a session."""
    return Principal(f"user:{name}", name, rights_of(role), role=role, credential=session_id)


def unauthenticated(detail: str) -> ProblemError:
    """Return the problem (401) of a key that is not valid."""
    return ProblemError(UNAUTHENTICATED, detail, headers=_CHALLENGE)


# The caller of a public route.
NOBODY = Principal("nobody", "nobody", Rights())
