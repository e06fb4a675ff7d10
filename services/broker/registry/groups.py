"""Consumer groups: their configuration on this broker.

Concurrency: the loop's thread only.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from gantry.model import names
from gantry.model.group import SubscriptionGroup
from gantry.model.topic import DataVersion
from services.broker.policy import Policy

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
    """Group name → SubscriptionGroup. `on_change` hears of every group that is new, changed or gone.

    `unsaved` holds the names of those that are new, changed or gone since the last save.
    """

    def __init__(self, on_change: Callable[[str], None] = lambda group: None) -> None:
        self.version = DataVersion()
        self.on_change = on_change
        self.forbidden: dict[str, dict[str, int]] = {}
        """group → topic → bits of what it may not do; kept as a store from elsewhere has it."""
        self.unsaved: OrderedDict[str, None] = OrderedDict()
        self._table: dict[str, SubscriptionGroup] = {}

    def __len__(self) -> int:
        return len(self._table)

    def load(
        self,
        version: DataVersion,
        groups: Iterable[SubscriptionGroup],
        forbidden: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Take over what the file says."""
        self.version = version
        self._table = {group.group_name: group for group in groups}
        self.unsaved.update(dict.fromkeys(self._table))
        self.forbidden = {group: dict(topics) for group, topics in (forbidden or {}).items()}

    def add_missing(self, groups: Iterable[SubscriptionGroup]) -> list[str]:
        """Add those of the system's groups that the file does not have."""
        added = [group for group in groups if group.group_name not in self._table]
        for group in added:
            self._table[group.group_name] = group
            self.unsaved[group.group_name] = None
        return [group.group_name for group in added]

    def find(self, group: str) -> SubscriptionGroup | None:
        """Return a group's configuration, or None."""
        return self._table.get(group)

    def ensure(self, group: str, policy: Policy, now_ms: int) -> SubscriptionGroup | None:
        """Return a group's configuration, made at its first use where that is allowed, else None.

        Raises:
            InvalidNameError: There is no such group, and its name could never be one.
        """
        config = self._table.get(group)
        if config is None and (policy.auto_create_subscription_group or names.is_system_group(group)):
            names.check_group(group)
            if len(self._table) >= GROUPS_MAX:
                return None
            config = SubscriptionGroup(group)
            self.put(config, now_ms)
        return config

    def all(self) -> Mapping[str, SubscriptionGroup]:
        """Return the table itself; not to be changed."""
        return self._table

    def put(self, config: SubscriptionGroup, now_ms: int) -> None:
        """Create or replace a group."""
        self._table[config.group_name] = config
        self._changed(config.group_name, now_ms)

    def remove(self, group: str, now_ms: int) -> bool:
        """Forget a group; return whether there was one."""
        self.forbidden.pop(group, None)
        if self._table.pop(group, None) is None:
            return False
        self._changed(group, now_ms)
        return True

    def may_read(self, group: str, topic: str) -> bool:
        """Say whether a group's reading of a topic was not forbidden."""
        return not self.forbidden.get(group, {}).get(topic, 0) >> _READ_BIT & 1

    def snapshot(self) -> tuple[DataVersion, dict[str, SubscriptionGroup], dict[str, dict[str, int]]]:
        """Return version and copies of the tables."""
        return self.version, dict(self._table), {group: dict(topics) for group, topics in self.forbidden.items()}

    def _changed(self, group: str, now_ms: int) -> None:
        self.unsaved[group] = None
        self.version = self.version.next(now_ms)
        self.on_change(group)


def system_groups() -> list[SubscriptionGroup]:
    """Return the groups every broker has from its start."""
    return [SubscriptionGroup(group) for group in SYSTEM_GROUPS]
