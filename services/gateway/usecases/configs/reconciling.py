"""The actions that bring brokers to the desired state: the decision, pure.

For each name there is a desired state (a row, perhaps one that is being deleted) and the observed state of each broker
that answered.

| row | broker should have it: as desired | different | missing | broker should not have it but does |
|---|---|---|---|---|
| exists | nothing | put | put | put if it may be read less than desired, else nothing: deleting it would lose messages |
| being deleted | drop | drop | nothing | drop |
| none | adopt | adopt | - | - |

A row that is being deleted is removed only when every broker of the cluster has answered and none has the name;
otherwise an unreachable broker could bring it back. A broker that did not answer is `waiting`, and its part of the
change stays pending.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

ObservedState = TypeVar("ObservedState")
Config_contra = TypeVar("Config_contra", contravariant=True)


class Settings(Protocol[Config_contra]):
    """The desired settings, as far as the decision needs them."""

    def is_for(self, broker: str) -> bool:
        """Return whether a broker should have the name."""
        ...

    def is_met_by(self, present: Config_contra) -> bool:
        """Return whether a broker's configuration is as desired."""
        ...

    def is_kept_by(self, present: Config_contra) -> bool:
        """Return whether the configuration may stay on a broker that should not have the name."""
        ...


@dataclass(frozen=True, slots=True)
class DesiredState(Generic[ObservedState]):
    """A row: the desired settings, their version, and whether the name is being deleted."""

    version: int
    settings: Settings[ObservedState]
    is_deleting: bool = False
    is_applied: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions for one name.

    Attributes:
        put: Brokers to write it to.
        drop: Brokers to delete it from.
        adopt: Whether Postgres has no row, so that the brokers' configuration is imported.
        waiting: Brokers that should have it (or lose it) and did not answer.
        is_settled: Whether there is no action and no broker to wait for.
    """

    put: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    adopt: bool = False
    waiting: tuple[str, ...] = ()
    is_settled: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_settled", not (self.put or self.drop or self.adopt or self.waiting))


def homes_of(settings: Settings[ObservedState], registered: Iterable[str], observed: Iterable[str]) -> list[str]:
    """Return the brokers that hold a name or should hold it, whether they are up or not.

    A broker that has not been registered for a while still counts if it was observed to have the name: ordering keys
    must not move to another broker while theirs is down. To take a broker out of service for good, name the other
    brokers in `brokers`.
    """
    return sorted(broker for broker in {*registered, *observed} if settings.is_for(broker))


def merge_observed(before: Mapping[str, Any], now: Mapping[str, Any], answered: Collection[str]) -> dict[str, Any]:
    """Return a row's observed configurations: new ones of brokers that answered, the last ones of the others."""
    return {**{broker: seen for broker, seen in before.items() if broker not in answered}, **now}


def decide_name(
    desired: DesiredState[ObservedState] | None,
    present: Mapping[str, ObservedState],
    *,
    answered: Sequence[str],
    silent: Sequence[str],
) -> Plan:
    """Return the actions for one name.

    Args:
        desired: Row of the name; None if Postgres has none.
        present: Broker name → its configuration, for brokers that have the name.
        answered: Brokers that answered.
        silent: Registered brokers that did not answer.
    """
    if desired is None:
        return Plan(adopt=bool(present))
    if desired.is_deleting:
        return Plan(drop=tuple(broker for broker in answered if broker in present), waiting=tuple(silent))
    settings = desired.settings

    def is_right(broker: str) -> bool:
        there = present.get(broker)
        if settings.is_for(broker):
            return there is not None and settings.is_met_by(there)
        return there is None or settings.is_kept_by(there)

    put = tuple(broker for broker in answered if not is_right(broker))
    return Plan(put=put, waiting=tuple(broker for broker in silent if settings.is_for(broker)))


def decide_all(
    desired: Mapping[str, DesiredState[ObservedState]],
    present: Mapping[str, Mapping[str, ObservedState]],
    *,
    answered: Sequence[str],
    silent: Sequence[str],
) -> dict[str, Plan]:
    """Return the actions for every name; names without an action are left out unless their row is unsettled.

    Args:
        desired: All rows.
        present: Name → broker → its configuration, without the names reserved for the system.
        answered: Brokers that answered.
        silent: Registered brokers that did not answer.
    """
    plans: dict[str, Plan] = {}
    for name in sorted(desired.keys() | present.keys()):
        row = desired.get(name)
        plan = decide_name(row, present.get(name, {}), answered=answered, silent=silent)
        if not plan.is_settled or (row is not None and not row.is_applied):
            plans[name] = plan
    return plans
