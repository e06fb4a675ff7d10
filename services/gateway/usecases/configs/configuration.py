"""A topic or group as a caller reads it: the desired state and the observed state, compared."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from services.gateway.usecases.cluster.brokers import BrokerAnswers
from services.gateway.usecases.configs.kinds import ConfigRow, DesiredSettings, Kind, ObservedState
from services.gateway.usecases.configs.reconciling import DesiredState, decide_name


class ApplyState(enum.StrEnum):
    """Whether brokers have the desired state."""

    APPLIED = "applied"
    PENDING = "pending"  # Some broker does not have it yet.
    UNKNOWN = "unknown"  # No broker could be asked, or Postgres is unavailable and only brokers have the name.


@dataclass(frozen=True, slots=True)
class Configuration(Generic[ObservedState]):
    """A topic or group: its desired state, and the state that brokers have now.

    Attributes:
        name: Name of the topic or group.
        row: Row in Postgres; None if there is none, or if Postgres is unavailable.
        settings: Desired settings; without a row, those with which the brokers' configuration would be imported.
        state: Whether brokers have the desired state.
        pending: Brokers that do not have it yet.
        observed: Configurations of brokers, by broker.
        is_metadata_available: Whether Postgres answered.
        is_new: Whether this change created it.
    """

    name: str
    row: ConfigRow | None
    settings: DesiredSettings[ObservedState]
    state: ApplyState
    pending: Sequence[str]
    observed: Mapping[str, ObservedState]
    is_metadata_available: bool
    is_new: bool

    @property
    def version(self) -> int | None:
        """The number of changes of the desired state; None without a row."""
        return None if self.row is None else self.row.version


def configuration_of(
    kind: Kind[ObservedState],
    name: str,
    row: ConfigRow | None,
    asked: BrokerAnswers[ObservedState],
    *,
    is_metadata_available: bool = True,
    is_new: bool = False,
) -> Configuration[ObservedState]:
    """Return the configuration of a name that has a row, or that a broker has; pure."""
    pending: list[str] = []
    state = ApplyState.UNKNOWN
    if row is not None:
        settings = kind.read_settings(row.config)
        desired = DesiredState(row.version, settings)
        plan = decide_name(desired, asked.answers, answered=sorted(asked.answered), silent=sorted(asked.failures))
        pending = sorted({*plan.put, *plan.waiting})
        if asked.answered or asked.failures:
            state = ApplyState.PENDING if pending else ApplyState.APPLIED
    else:
        settings = kind.adopted(asked.answers, frozenset(asked.answers))
        if is_metadata_available:
            state = ApplyState.APPLIED
    return Configuration(
        name, row, settings, state, pending, asked.answers, is_metadata_available=is_metadata_available, is_new=is_new
    )
