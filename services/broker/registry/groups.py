"""Consumer groups: their configuration on this broker.

Concurrency: the loop's thread only.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gantry.model import names
from gantry.model.group import SubscriptionGroup
from gantry.model.topic import DataVersion
from services.broker.registry.dismissed import Dismissed
from services.broker.settings import BrokerSettings

GROUPS_MAX = 100_000
_READ_BIT = 2

SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


class GroupTable:
    """Group name → SubscriptionGroup. `on_change` is called for every new, changed or removed group.

    Attributes:
        unsaved: Names of the groups that are new, changed or removed since the last save.
        created: Groups that are new and may not be on disk yet; each has an object of its own.
        dismissed: Members of deleted groups, which may not make these groups again.
    """

    def __init__(self, on_change: Callable[[str], None] = lambda group: None) -> None:
        self.version = DataVersion()
        self.on_change = on_change
        self.forbidden: dict[str, dict[str, int]] = {}
        """group → topic → bits of the forbidden actions. It comes from a store that another broker wrote."""
        self.unsaved: OrderedDict[str, None] = OrderedDict()
        self.created: dict[str, object] = {}
        self.dismissed = Dismissed()
        self._table: dict[str, SubscriptionGroup] = {}

    def __len__(self) -> int:
        return len(self._table)

    def load(
        self,
        version: DataVersion,
        groups: Iterable[SubscriptionGroup],
        forbidden: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Load the content of the file."""
        self.version = version
        self._table = {group.group_name: group for group in groups}
        self.unsaved.update(dict.fromkeys(self._table))
        self.forbidden = {group: dict(topics) for group, topics in (forbidden or {}).items()}

    def add_missing(self, groups: Iterable[SubscriptionGroup]) -> list[str]:
        """Add the system's groups that the file does not have. Return the names of the added groups."""
        added = [group for group in groups if group.group_name not in self._table]
        for group in added:
            self._table[group.group_name] = group
            self.unsaved[group.group_name] = None
        return [group.group_name for group in added]

    def find(self, group: str) -> SubscriptionGroup | None:
        """Return the configuration of a group, or None."""
        return self._table.get(group)

    def ensure(
        self, group: str, settings: BrokerSettings, now_ms: int, *, connection: Any = None, client_id: str | None = None
    ) -> SubscriptionGroup | None:
        """Return the configuration of a group; create the group if it is missing and may be created. Else return None.

        Args:
            group: The group.
            settings: The settings in force.
            now_ms: The wall-clock time.
            connection: The connection that asks for the group; None if no client does.
            client_id: The member that asks for it; None if the request does not say.

        Raises:
            InvalidNameError: The group does not exist, and its name is not valid.
        """
        config = self._table.get(group)
        if config is None and _may_create(group, settings) and not self.dismissed.has(group, connection, client_id):
            names.check_group(group)
            if len(self._table) >= GROUPS_MAX:
                return None
            config = SubscriptionGroup(group)
            self.put(config, now_ms)
        return config

    def find_missing(self, groups: Iterable[str], settings: BrokerSettings) -> str | None:
        """Return the first of some groups that is missing and can't be created; None if `ensure` works for all."""
        missing = [group for group in dict.fromkeys(groups) if group not in self._table]
        room = GROUPS_MAX - len(self._table)
        return next(
            (group for index, group in enumerate(missing) if index >= room or not _may_create(group, settings)), None
        )

    def all(self) -> Mapping[str, SubscriptionGroup]:
        """Return the table itself; callers must not change it."""
        return self._table

    def put(self, config: SubscriptionGroup, now_ms: int) -> None:
        """Create or replace a group."""
        if config.group_name not in self._table:
            self.created[config.group_name] = object()
            self.dismissed.forget_group(config.group_name)
        self._table[config.group_name] = config
        self._changed(config.group_name, now_ms)

    def remove(self, group: str, now_ms: int) -> bool:
        """Remove a group. Return whether it existed."""
        self.forbidden.pop(group, None)
        self.created.pop(group, None)
        if self._table.pop(group, None) is None:
            return False
        self._changed(group, now_ms)
        return True

    def may_read(self, group: str, topic: str) -> bool:
        """Return whether the group may read the topic."""
        return not self.forbidden.get(group, {}).get(topic, 0) >> _READ_BIT & 1

    def snapshot(self) -> tuple[DataVersion, dict[str, SubscriptionGroup], dict[str, dict[str, int]]]:
        """Return the version and copies of the tables."""
        return self.version, dict(self._table), {group: dict(topics) for group, topics in self.forbidden.items()}

    def _changed(self, group: str, now_ms: int) -> None:
        self.unsaved[group] = None
        self.version = self.version.next(now_ms)
        self.on_change(group)


def system_groups() -> list[SubscriptionGroup]:
    """Return the groups that every broker has from its start."""
    return [SubscriptionGroup(group) for group in SYSTEM_GROUPS]


def _may_create(group: str, settings: BrokerSettings) -> bool:
    return settings.auto_create_subscription_group or names.is_system_group(group)
