"""Configurations of topics and groups: as requests and Postgres hold them, and as brokers do.

The API's terms are short forms of the model's: `perm` is `rw` for read 4 and write 2. Permission bits that the API does
not know (inherit, priority) belong to the broker: they are neither shown nor changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gantry.model.errors import InvalidValueError
from gantry.model.group import SubscriptionGroup
from gantry.model.topic import (
    DUPLICATE_WINDOW,
    DUPLICATE_WINDOW_MS_DEFAULT,
    DUPLICATE_WINDOW_MS_MAX,
    DUPLICATE_WINDOW_MS_MIN,
    Perm,
    TopicConfig,
)
from gantry.runtime.digits import parse_digits
from services.gateway.schemas.reading import DuplicateError
from services.gateway.schemas.retrypolicies import RetryPolicy, applied_policy, observed_policy
from services.gateway.schemas.times import parse_duration_ms

QUEUES_MAX: Final = 1_024
_PERMS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}
_PERM_NAMES: Final = {value: name for name, value in _PERMS.items()}
_SHOWN_BITS: Final = int(Perm.READ | Perm.WRITE)
_GROUP_FIELDS: Final = {
    "retry_max_times": "retry_max_times",
    "retry_queues": "retry_queue_nums",
    "consume": "consume_enable",
    "from_min": "consume_from_min_enable",
    "broadcast": "consume_broadcast_enable",
    "orderly": "consume_message_orderly",
    "consume_timeout_minutes": "consume_timeout_minute",
    "notify_changes": "notify_consumer_ids_changed_enable",
}
"""Fields of a group in the API → fields of the model."""

QueueCount = Annotated[int, Meta(ge=1, le=QUEUES_MAX)]
BrokerName = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[!-.0-~]+\Z")]

BrokerNames = Annotated[list[BrokerName], Meta(min_length=1, max_length=1_000)]
Perms = Literal["rw", "r", "w", "none"]
RetryTimes = Annotated[int, Meta(ge=0, le=65_535)]
RetryQueues = Annotated[int, Meta(ge=0, le=QUEUES_MAX)]
Minutes = Annotated[int, Meta(ge=1, le=1_440)]

Settings = TypeVar("Settings", bound=msgspec.Struct)


class TopicSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The desired settings of a topic. `brokers` None means all brokers, including those that join later."""

    read_queues: QueueCount = 4
    write_queues: QueueCount = 4
    perm: Perms = "rw"
    order: bool = False
    brokers: BrokerNames | None = None
    duplicate_window_ms: int | None = None
    """0: no window. None: each broker keeps the one that it has, if any."""

    def check(self) -> None:
        """Raise InvalidValueError for values that the types cannot rule out."""
        if self.brokers is not None and len(set(self.brokers)) != len(self.brokers):
            raise DuplicateError("/brokers", self.brokers, "names a broker twice")

    def is_for(self, broker: str) -> bool:
        """Return whether a broker should have the topic."""
        return self.brokers is None or broker in self.brokers

    def applied_to(self, name: str, present: TopicConfig | None) -> TopicConfig:
        """Return the broker's configuration with these settings; its other settings stay."""
        base = TopicConfig(name) if present is None else present
        return replace(
            base,
            read_queue_nums=self.read_queues,
            write_queue_nums=self.write_queues,
            perm=(base.perm & ~_SHOWN_BITS if present is not None else 0) | _PERMS[self.perm],
            order=self.order,
            attributes=self._attributes(base.attributes),
        )

    def _attributes(self, present: Mapping[str, str]) -> Mapping[str, str]:
        """Return the attributes of a broker with the window of these settings; "" stands for one to remove."""
        if self.duplicate_window_ms is None:
            return present
        if self.duplicate_window_ms:
            return {**present, DUPLICATE_WINDOW: str(self.duplicate_window_ms)}
        return {**present, DUPLICATE_WINDOW: ""} if DUPLICATE_WINDOW in present else present

    def kept_as(self, present: TopicConfig) -> TopicConfig:
        """Return the configuration for a broker that has the topic but is not named in `brokers`.

        The broker keeps what it has. Read permission and read queues are only added: otherwise messages there would
        stay hidden although the settings make the topic readable. Nothing is removed, because that would hide messages.
        """
        if not self.is_readable:
            return present
        read_queues = max(present.read_queue_nums, self.read_queues)
        return replace(present, read_queue_nums=read_queues, perm=present.perm | Perm.READ)

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read the topic."""
        return bool(_PERMS[self.perm] & Perm.READ)

    def is_kept_by(self, present: TopicConfig) -> bool:
        """Return whether a configuration may stay on a broker that `brokers` does not name."""
        return self.kept_as(present) == present

    def is_met_by(self, present: TopicConfig) -> bool:
        """Return whether a broker's configuration is as these settings require."""
        return self.applied_to(present.topic_name, present) == present


class TopicChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a topic; settings that it does not name stay as they are."""

    read_queues: QueueCount | UnsetType = UNSET
    write_queues: QueueCount | UnsetType = UNSET
    perm: Perms | UnsetType = UNSET
    order: bool | UnsetType = UNSET
    brokers: BrokerNames | UnsetType | None = UNSET
    cluster: BrokerName | UnsetType = UNSET
    """The cluster whose brokers `brokers` becomes; only one of both may be given."""
    allow_hiding: bool = False
    """Whether the change may leave messages, present or future, in queues that consumers cannot read."""
    duplicate_window: str | bool | UnsetType | None = UNSET
    """A duration; True for the default one; False or None for no window."""

    def on_cluster(self, brokers: Sequence[str]) -> "TopicChange":
        """Return the change with the brokers of `cluster` instead of it. Raises InvalidValueError."""
        if self.brokers is not UNSET:
            raise InvalidValueError("/cluster", self.cluster, "excludes brokers")
        return msgspec.structs.replace(self, cluster=UNSET, brokers=list(brokers))

    @property
    def duplicate_window_ms(self) -> int | UnsetType:
        """The length of the window. Raises InvalidValueError."""
        text = self.duplicate_window
        if text is UNSET or not isinstance(text, str):
            return UNSET if text is UNSET else DUPLICATE_WINDOW_MS_DEFAULT if text else 0
        field = "/duplicate_window"
        window_ms = parse_duration_ms(text, field, max_ms=DUPLICATE_WINDOW_MS_MAX)
        if window_ms < DUPLICATE_WINDOW_MS_MIN:
            raise InvalidValueError(field, text, f"is shorter than {DUPLICATE_WINDOW_MS_MIN} ms; null is no window")
        return window_ms

    def over(self, base: TopicSettings | None) -> TopicSettings:
        """Return the settings after the change; `base` is None for a new topic."""
        if base is None:
            # The two counts go together, so if only one is named, it applies to both.
            named = [count for count in (self.read_queues, self.write_queues) if count is not UNSET]
            base = TopicSettings(read_queues=named[0], write_queues=named[0]) if named else TopicSettings()
        return _changed(base, self)

    def leaves_unread_queues(self, base: TopicSettings | None) -> bool:
        """Return whether the change, over `base`, leaves queues that are written and not read."""
        wanted = self.over(base)
        counts = (wanted.read_queues, wanted.write_queues)
        is_new = base is None or counts != (base.read_queues, base.write_queues)
        return is_new and wanted.read_queues < wanted.write_queues

    def makes_write_only(self, base: TopicSettings | None) -> bool:
        """Return whether the change, over `base`, makes the topic write-only."""
        return self.over(base).perm == "w" and (base is None or base.perm != "w")


class GroupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The desired settings of a consumer group, on every broker."""

    retry_max_times: RetryTimes = 16
    retry_queues: RetryQueues = 1
    consume: bool = True
    from_min: bool = True
    broadcast: bool = True
    orderly: bool = False
    consume_timeout_minutes: Minutes = 15
    notify_changes: bool = True
    retry_policy: RetryPolicy | None = None
    """None: each broker keeps the policy that it has."""

    def check(self) -> None:
        """Do nothing: the types check everything."""

    def is_for(self, broker: str) -> bool:
        """Return True: a group is on every broker."""
        return True

    def applied_to(self, name: str, present: SubscriptionGroup | None) -> SubscriptionGroup:
        """Return the broker's configuration with these settings; its other settings stay."""
        base = SubscriptionGroup(name) if present is None else present
        policy = base.group_retry_policy
        return replace(
            base,
            **{there: getattr(self, here) for here, there in _GROUP_FIELDS.items()},
            group_retry_policy=policy if self.retry_policy is None else applied_policy(self.retry_policy, policy),
        )

    def kept_as(self, present: SubscriptionGroup) -> SubscriptionGroup:
        """Return the configuration as it is: a group is on every broker."""
        return present

    def is_kept_by(self, present: SubscriptionGroup) -> bool:
        """Return True: a group is on every broker."""
        return True

    def is_met_by(self, present: SubscriptionGroup) -> bool:
        """Return whether a broker's configuration is as these settings require."""
        return self.applied_to(present.group_name, present) == present


class GroupChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a group; settings that it does not name stay as they are."""

    retry_max_times: RetryTimes | UnsetType = UNSET
    retry_queues: RetryQueues | UnsetType = UNSET
    consume: bool | UnsetType = UNSET
    from_min: bool | UnsetType = UNSET
    broadcast: bool | UnsetType = UNSET
    orderly: bool | UnsetType = UNSET
    consume_timeout_minutes: Minutes | UnsetType = UNSET
    notify_changes: bool | UnsetType = UNSET
    retry_policy: RetryPolicy | UnsetType | None = UNSET

    def over(self, base: GroupSettings | None) -> GroupSettings:
        """Return the settings after the change; `base` is None for a new group."""
        return _changed(GroupSettings() if base is None else base, self)


def observed_topic(config: TopicConfig) -> dict[str, Any]:
    """Return a broker's topic in the API's terms, as answers and Postgres have it."""
    return {
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": _PERM_NAMES[config.perm & _SHOWN_BITS],
        "order": config.order,
        "duplicate_window_ms": _window_ms(config),
    }


def attribute_changes(config: TopicConfig) -> str | None:
    """Return the change of attributes that gives a broker's topic the window of a configuration; None for no change."""
    text = config.attributes.get(DUPLICATE_WINDOW)
    if text is None:
        return None
    return f"+{DUPLICATE_WINDOW}={text}" if text else f"-{DUPLICATE_WINDOW}"


def _window_ms(config: TopicConfig) -> int:
    return parse_digits(config.attributes.get(DUPLICATE_WINDOW, ""), DUPLICATE_WINDOW_MS_MAX) or 0


def observed_group(group: SubscriptionGroup) -> dict[str, Any]:
    """Return a broker's group in the API's terms, as answers and Postgres have it."""
    policy = msgspec.to_builtins(observed_policy(group.group_retry_policy))
    return {**_simple_fields(group), "retry_policy": policy}


def _simple_fields(group: SubscriptionGroup) -> dict[str, Any]:
    return {here: getattr(group, there) for here, there in _GROUP_FIELDS.items()}


def adopted_topic(observed: Mapping[str, TopicConfig], all_brokers: frozenset[str]) -> TopicSettings:
    """Return the settings with which a topic that only brokers have is imported.

    They are those of the first broker by name, but each broker keeps its duplicate window; `brokers` is None if every broker has the topic.
    """
    first = {**observed_topic(observed[min(observed)]), "duplicate_window_ms": None}
    return TopicSettings(**first, brokers=None if all_brokers <= set(observed) else sorted(observed))


def adopted_group(observed: Mapping[str, SubscriptionGroup], all_brokers: frozenset[str]) -> GroupSettings:
    """Return the settings with which a group that only brokers have is imported; each broker keeps its retry policy."""
    return GroupSettings(**_simple_fields(observed[min(observed)]))


def read_settings(kind: type[Settings], config: Mapping[str, Any]) -> Settings:
    """Return settings from Postgres; unknown fields of a later version are left out, and nothing is checked again."""
    known = {name: config[name] for name in kind.__struct_fields__ if name in config}
    if known.get("retry_policy") is not None:
        known["retry_policy"] = msgspec.convert(known["retry_policy"], RetryPolicy)
    return kind(**known)


def _changed(base: Settings, change: msgspec.Struct) -> Settings:
    fields = {name: getattr(change, name) for name in base.__struct_fields__}
    return msgspec.structs.replace(base, **{name: value for name, value in fields.items() if value is not UNSET})
