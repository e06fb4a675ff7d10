"""Dismissed members: those that were connected when their group was deleted.

The heart-beats and pulls of such a member would make the group again within seconds, although somebody has just deleted
it. So they do not make it. A member is dismissed until the group is made by somebody else, or until the member leaves it
or its connection ends: a consumer that comes anew may make the group, as any other.

RocketMQ dismisses nobody, so a group that has a consumer can't be deleted there for good.

Concurrency: the loop's thread only.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from services.broker.registry.clients import ClientChannel
from services.broker.registry.consumers import MemberKey

DISMISSED_MAX: Final = 100_000
"""Largest number of dismissed members. Beyond it, those of the group that was deleted first may make it again."""


class Dismissed:
    """Deleted groups and their dismissed members.

    Attributes:
        count: Number of dismissed members, each counted once per group.
    """

    def __init__(self) -> None:
        self.count = 0
        self._groups: OrderedDict[str, dict[ClientChannel, set[str]]] = OrderedDict()

    def add(self, group: str, members: Iterable[MemberKey]) -> None:
        """Dismiss the members of a group that was deleted."""
        known = self._groups.setdefault(group, {})
        for connection, client_id in members:
            client_ids = known.setdefault(connection, set())
            if client_id not in client_ids:
                client_ids.add(client_id)
                self.count += 1
        self._groups.move_to_end(group)
        if not known:
            del self._groups[group]
        while self.count > DISMISSED_MAX:
            self.forget_group(next(iter(self._groups)))

    def has(self, group: str, connection: Any, client_id: str | None = None) -> bool:
        """Return whether a member is dismissed; without `client_id`, whether any member on the connection is."""
        if not self._groups:
            return False
        client_ids = self._groups.get(group, {}).get(connection, ())
        return bool(client_ids) if client_id is None else client_id in client_ids

    def forget_group(self, group: str) -> None:
        """Forget the members of a group that exists again."""
        self.count -= sum(map(len, self._groups.pop(group, {}).values()))

    def forget(self, group: str, connection: ClientChannel, client_id: str) -> None:
        """Forget a member that leaves its group."""
        if self.has(group, connection, client_id):
            self._groups[group][connection].discard(client_id)
            self.count -= 1
            self._drop_empty(group, connection)

    def forget_connection(self, connection: ClientChannel) -> None:
        """Forget the members on a connection that has ended."""
        for group in [group for group, members in self._groups.items() if connection in members]:
            self.count -= len(self._groups[group].pop(connection))
            self._drop_empty(group, connection)

    def _drop_empty(self, group: str, connection: ClientChannel) -> None:
        members = self._groups[group]
        if not members.get(connection, True):
            del members[connection]
        if not members:
            del self._groups[group]
