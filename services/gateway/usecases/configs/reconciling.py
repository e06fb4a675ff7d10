"""What must happen so that brokers are as people want them: the decision, pure.

For each name there is what is wanted (a row, perhaps one that is being deleted) and what each broker that answered has.

| wanted | a broker that should have it has it so | otherwise | not at all | a broker that should not have it does |
|---|---|---|---|---|
| yes | nothing | put | put | put where it may be read less than wanted, else nothing: dropping it would lose messages |
| gone | drop | drop | nothing | drop |
| no row | adopt | adopt | - | - |

A row that is being deleted is forgotten only once every broker of the cluster has answered and none has it: one that is
away may bring it back otherwise. A broker that did not answer is `missing`, and what it should have stays pending.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

ObservedState = TypeVar("ObservedState")
Config_contra = TypeVar("Config_contra", contravariant=True)


class Settings(Protocol[Config_contra]):
    """What people want, as far as the decision needs it."""

    def is_for(self, broker: str) -> bool:
        """Say whether a broker should have it."""
        ...

    def is_met_by(self, present: Config_contra) -> bool:
        """Say whether what a broker has is as it should be."""
        ...

    def is_kept_by(self, present: Config_contra) -> bool:
        """Say whether what a broker has that should not have it may stay as it is."""
        ...


@dataclass(frozen=True, slots=True)
class DesiredState(Generic[ObservedState]):
    """A row: what is wanted of a name, at which version, and whether it should be gone."""

    version: int
    settings: Settings[ObservedState]
    is_deleting: bool = False
    is_applied: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about one name.

    Attributes:
        put: Brokers that must be given it.
        drop: Brokers that must lose it.
        adopt: It is nowhere in Postgres: take it over as the brokers have it.
        waiting: Brokers that should have it (or lose it) and did not answer.
        is_settled: Nothing is to be done, and nobody is waited for.
    """

    put: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    adopt: bool = False
    waiting: tuple[str, ...] = ()
    is_settled: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_settled", not (self.put or self.drop or self.adopt or self.waiting))


def homes_of(settings: Settings[ObservedState], registered: Iterable[str], observed: Iterable[str]) -> list[str]:
    """Return the brokers that hold a name or should, whether they are up or not.

    One that has not registered for a while is still one of them as long as it was seen to have it: ordering keys must not
    move to another broker because theirs is away. Who takes a broker out of service for good names the others in `brokers`.
    """
    return sorted(broker for broker in {*registered, *observed} if settings.is_for(broker))


def still_observed(before: Mapping[str, Any], now: Mapping[str, Any], answered: Collection[str]) -> dict[str, Any]:
    """Return what brokers hold: what those that answered say, and of the others what they said last."""
    return {**{broker: seen for broker, seen in before.items() if broker not in answered}, **now}


def decide_name(
    wanted: DesiredState[ObservedState] | None,
    present: Mapping[str, ObservedState],
    *,
    answered: Sequence[str],
    silent: Sequence[str],
) -> Plan:
    """Say what must happen about one name.

    Args:
        wanted: Its row, or None where Postgres has none.
        present: Broker name → what it has, for those that have it.
        answered: The brokers that were asked and answered.
        silent: Those that are registered and did not answer.
    """
    if wanted is None:
        return Plan(adopt=bool(present))
    if wanted.is_deleting:
        return Plan(drop=tuple(broker for broker in answered if broker in present), waiting=tuple(silent))
    settings = wanted.settings

    def is_right(broker: str) -> bool:
        there = present.get(broker)
        if settings.is_for(broker):
            return there is not None and settings.is_met_by(there)
        return there is None or settings.is_kept_by(there)

    put = tuple(broker for broker in answered if not is_right(broker))
    return Plan(put=put, waiting=tuple(broker for broker in silent if settings.is_for(broker)))


def decide_all(
    wanted: Mapping[str, DesiredState[ObservedState]],
    present: Mapping[str, Mapping[str, ObservedState]],
    *,
    answered: Sequence[str],
    silent: Sequence[str],
) -> dict[str, Plan]:
    """Say what must happen about every name; one about which nothing must is left out unless its row is not settled.

    Args:
        wanted: All rows.
        present: Name → broker → what it has; names of the system are left out by the caller.
        answered: The brokers that answered.
        silent: Those that did not.
    """
    plans: dict[str, Plan] = {}
    for name in sorted(wanted.keys() | present.keys()):
        row = wanted.get(name)
        plan = decide_name(row, present.get(name, {}), answered=answered, silent=silent)
        if not plan.is_settled or (row is not None and not row.is_applied):
            plans[name] = plan
    return plans
