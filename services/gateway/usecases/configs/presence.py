"""Whether a topic or group does not exist, or cannot be seen at the moment.

Name servers forget a topic as soon as none of its brokers is registered, so a missing route does not prove that the
topic does not exist. A sender gives up on a 404, so the gateway answers 404 only with evidence:

| Postgres | brokers | answer |
|---|---|---|
| row is being deleted | any | 404 |
| row exists | any | 503 |
| no row, or unavailable | none answers | 503 |
| no row, or unavailable | one has it | 503 |
| no row | one that this gateway's routes name for it does not answer | 503 |
| no row | some answer, none has it | 404: the reconciler has imported everything that it saw on brokers |
| unavailable | one that is registered, or that this gateway's routes name for it, does not answer | 503 |
| unavailable | all answer, none has it | 404 |
"""

import asyncio
import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Generic

from gantry.client.engine import ClientEngine
from services.gateway.db.models import ConfigState
from services.gateway.errors import BROKER_UNAVAILABLE, STOPPING, ProblemError
from services.gateway.usecases.cluster.brokers import BrokerAnswers, Brokers, no_broker
from services.gateway.usecases.configs.kinds import ConfigRow, Kind, ObservedState
from services.gateway.usecases.metadata import Metadata, is_metadata_unavailable

# Sends wait for this lookup; if Postgres hangs, the brokers' answers alone decide.
POSTGRES_TIMEOUT_MS: Final = 2_000


class RowState(enum.Enum):
    """The answer of Postgres about a name."""

    EXISTS = "exists"
    DELETING = "deleting"
    NONE = "none"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence about a name without a route; all brokers are given by name.

    Attributes:
        row: Answer of Postgres.
        has: Brokers that have it.
        answered: Brokers that answered, whether they have it or not.
        silent: Registered brokers that did not answer.
        homes: Brokers that this gateway's routes name for it, however old the routes are.
    """

    row: RowState
    has: Collection[str] = ()
    answered: Collection[str] = ()
    silent: Collection[str] = ()
    homes: Collection[str] = ()


class Absence(enum.Enum):
    """The reason why a route is missing."""

    NOT_FOUND = "does not exist"
    UNREGISTERED = "exists, but none of its brokers is registered"
    HELD = "a broker has it, but name servers do not know it yet"
    UNDECIDED = "unknown: a broker that may have it does not answer"


def judge(evidence: Evidence) -> Absence:
    """Return the reason why a route is missing: the table above, pure."""
    if evidence.row is RowState.DELETING:
        return Absence.NOT_FOUND
    if evidence.row is RowState.EXISTS:
        return Absence.UNREGISTERED
    if evidence.has:
        return Absence.HELD
    if not evidence.answered:
        return Absence.UNDECIDED
    silent, homes = set(evidence.silent), set(evidence.homes)
    unheard = silent & homes if evidence.row is RowState.NONE else silent | (homes - set(evidence.answered))
    return Absence.UNDECIDED if unheard else Absence.NOT_FOUND


class Presence(Generic[ObservedState]):
    """Finds out why a topic, or a group, was not found.

    Concurrency: the event loop's thread. All callers that miss the same name share one lookup.
    """

    def __init__(self, kind: Kind[ObservedState], metadata: Metadata, brokers: Brokers, engine: ClientEngine) -> None:
        self._kind = kind
        self._metadata = metadata
        self._brokers = brokers
        self._engine = engine
        self._lookups: dict[str, asyncio.Task[ProblemError]] = {}

    async def absence(self, name: str) -> ProblemError:
        """Return the problem for a name without a route: 404, or 503 if it exists or may exist."""
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = self._lookups[name] = self._engine.tasks.spawn(self._look_up(name))
            lookup.add_done_callback(lambda _: self._lookups.pop(name))
        await asyncio.wait({lookup})
        if lookup.cancelled():
            return ProblemError(STOPPING, "the gateway is stopping")
        found = lookup.result()
        # Each caller gets a problem of its own, because each adds the outcome of its own call.
        return ProblemError(found.kind, found.detail, field=found.field)

    def problem_of(self, name: str, row: RowState, asked: BrokerAnswers[ObservedState]) -> ProblemError:
        """Return the problem for a name that the caller has looked up in Postgres and on brokers."""
        homes = self._kind.known_broker_sets(name)
        evidence = Evidence(
            row, has=list(asked.answers), answered=asked.answered, silent=list(asked.failures), homes=homes
        )
        return self._problem(name, evidence, asked)

    async def find_row(self, name: str) -> tuple[RowState, ConfigRow | None]:
        """Return the answer of Postgres about a name, and the row if it is not being deleted."""
        try:
            async with self._metadata.transaction(within_ms=POSTGRES_TIMEOUT_MS) as session:
                row: ConfigRow | None = await self._kind.repository(session).find(name)
        except ProblemError as error:
            if not is_metadata_unavailable(error):
                raise
            return RowState.UNAVAILABLE, None
        if row is None:
            return RowState.NONE, None
        return (RowState.DELETING, None) if row.state == ConfigState.DELETING else (RowState.EXISTS, row)

    async def check_unrouted_broker(self, name: str, broker: str) -> None:
        """Raise ProblemError (503) if a broker that the route does not name may still hold the name."""
        if await self.find_away(name, (broker,)):
            raise ProblemError(BROKER_UNAVAILABLE, f"broker: {broker} is not registered at the moment", field="broker")

    async def find_away(self, name: str, brokers: Collection[str]) -> Collection[str]:
        """Return the brokers, of those given, that may hold the name although the route does not name them.

        The brokers themselves are asked, because the route and the list of registered brokers may date from different
        moments.

        Raises:
            ProblemError: 503: no name server answers.
        """
        named = set(brokers)
        registered = named & (await self._brokers.sets(fresh=True)).keys()
        asked = await self._brokers.ask(lambda address: self._kind.find(address, name), registered)
        away = {each for each in registered if each in asked.failures or asked.answers[each] is not None}
        others = named - registered
        row = (await self.find_row(name))[1] if others else None
        if row is not None:
            desired = self._kind.read_settings(row.config)
            away |= {each for each in others if each in row.observed and desired.is_for(each)}
        return away

    async def observed_homes(self, name: str) -> dict[str, ObservedState]:
        """Return the last observed configuration on each broker that should hold the name; empty without Postgres."""
        _, row = await self.find_row(name)
        if row is None:
            return {}
        desired = self._kind.read_settings(row.config)
        return {
            broker: self._kind.read_settings(held).applied_to(name, None)
            for broker, held in row.observed.items()
            if desired.is_for(broker)
        }

    async def require_registered_homes(self) -> None:
        """Raise ProblemError (503) if a broker that holds a topic or group is not registered now.

        While Postgres is unavailable, only the registered brokers are known, and nothing is raised.

        Raises:
            ProblemError: 503, with the brokers' names.
        """
        known = await self._brokers.sets()
        try:
            async with self._metadata.transaction(within_ms=POSTGRES_TIMEOUT_MS) as session:
                away = sorted(await self._kind.repository(session).homes() - known.keys())
        except ProblemError as error:
            if not is_metadata_unavailable(error):
                raise
            return
        if away:
            raise ProblemError(BROKER_UNAVAILABLE, f"broker: not registered at the moment: {', '.join(away)}")

    async def _look_up(self, name: str) -> ProblemError:
        asked: BrokerAnswers[ObservedState] = BrokerAnswers({}, {}, ())
        try:
            row, _ = await self.find_row(name)
            # A row in Postgres decides alone; the brokers' answers could not change the result.
            if row is RowState.EXISTS and await self._brokers.sets(fresh=True):
                return self._unregistered(name)
            if row is not RowState.DELETING:
                asked = await self._brokers.find(lambda address: self._kind.find(address, name), fresh=True)
        except ProblemError as error:
            return error
        return self.problem_of(name, row, asked)

    def _problem(self, name: str, evidence: Evidence, asked: BrokerAnswers[ObservedState]) -> ProblemError:
        absence = judge(evidence)
        if absence is Absence.NOT_FOUND:
            return self._kind.unknown_problem(name)
        kind = self._kind.name
        if not asked.answered and not asked.failures:
            return no_broker()
        if absence is Absence.UNREGISTERED:
            return self._unregistered(name)
        if absence is Absence.HELD:
            detail = f"{kind}: {name!r} is on {', '.join(sorted(evidence.has))}, but name servers do not know it yet"
        elif asked.failures:
            detail = asked.problem().detail
        else:
            unheard = ", ".join(sorted(set(evidence.homes) - set(evidence.answered)))
            detail = f"{kind}: {name!r} was on {unheard}, which is not registered at the moment"
        return ProblemError(BROKER_UNAVAILABLE, detail, field=kind)

    def _unregistered(self, name: str) -> ProblemError:
        detail = f"{self._kind.name}: {name!r} exists, but no broker that has it is registered at the moment"
        return ProblemError(BROKER_UNAVAILABLE, detail, field=self._kind.name)
