"""The brokers of the cluster: requests to all of them at once, each with a time-out.

One broker's failure does not hide the answers of the others: `BrokerAnswers` holds both.

A name server that has just been started knows no brokers, or only some, until all have registered again. So a broker
set that was seen once stays in the list for a while after name servers no longer name it, and is asked at its last
address. If no broker is known, this never means that a topic or group does not exist.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.route import BrokerData
from gantry.remoting.errors import BodyError, HeaderError
from gantry.runtime.clock import Clock
from services.gateway.errors import BROKER_UNAVAILABLE, UNKNOWN_BROKER, ProblemError
from services.gateway.usecases.sending.send import no_name_server

T = TypeVar("T")

# Several requests of one console page come within moments.
CLUSTER_CACHED_MS: Final = 2_000
# Name servers keep a silent broker this long, too; a broker that is not back by then is gone for them as well.
MISSING_KEPT_MS: Final = 120_000
ASKED_AT_ONCE_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class BrokerAnswers(Generic[T]):
    """The answers of brokers by name, and the reasons of those that did not answer.

    Attributes:
        answers: Answers of the brokers that have something.
        failures: Reasons why the other brokers did not answer.
        answered: Brokers that answered, even if they have nothing.
    """

    answers: Mapping[str, T]
    failures: Mapping[str, str]
    answered: Collection[str]

    @property
    def is_complete(self) -> bool:
        """Whether there are brokers and all of them answered: only then a missing name exists nowhere."""
        return bool(self.answered) and not self.failures

    def require_any(self) -> None:
        """Raise ProblemError (503) if nothing was found and not all brokers answered, or there are none."""
        if not self.answers and not self.is_complete:
            raise self.problem()

    def require_answer(self) -> None:
        """Raise ProblemError (503) if no broker answered."""
        if not self.answered:
            raise self.problem()

    def problem(self) -> ProblemError:
        """Return the problem (503) of the brokers that did not answer."""
        if not self.failures:
            return no_broker()
        return ProblemError(BROKER_UNAVAILABLE, "; ".join(self.failures[name] for name in sorted(self.failures)))


@dataclass(frozen=True, slots=True)
class KnownSet:
    """A broker set; `missing_since_ms` is when name servers stopped naming it (monotonic ms), else None."""

    data: BrokerData
    missing_since_ms: int | None = None


def merge_known_sets(
    before: Mapping[str, KnownSet], registered: Mapping[str, BrokerData], now_ms: int
) -> dict[str, KnownSet]:
    """Return the sets that are known after a name server's answer; pure.

    A set that is missing from the answer is kept for MISSING_KEPT_MS, counted from the first answer without it, unless
    another set now has its address: that set would answer in its place.
    """
    taken = {address for data in registered.values() for address in data.broker_addrs.values()}
    known = {name: KnownSet(data) for name, data in registered.items()}
    for name, known_set in before.items():
        if name in registered or not taken.isdisjoint(known_set.data.broker_addrs.values()):
            continue
        since_ms = now_ms if known_set.missing_since_ms is None else known_set.missing_since_ms
        if now_ms - since_ms <= MISSING_KEPT_MS:
            known[name] = replace(known_set, missing_since_ms=since_ms)
    return known


def no_broker() -> ProblemError:
    """Return the problem (503) for a cluster without registered brokers."""
    return ProblemError(BROKER_UNAVAILABLE, "no broker is registered at the moment")


class Brokers:
    """The broker sets that are registered, or were a short time ago.

    Concurrency: the event loop's thread. Concurrent callers share one request for the cluster.
    """

    def __init__(self, engine: ClientEngine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._known: Mapping[str, KnownSet] = {}
        self._sets: Mapping[str, BrokerData] = {}
        self._seen_ms: int | None = None
        self._lock = asyncio.Lock()

    async def sets(self, *, fresh: bool = False) -> Mapping[str, BrokerData]:
        """Return all broker sets by name; an empty result only means that no set is known at the moment.

        Raises:
            ProblemError: 503: no name server answers, and no sets are known from earlier.
        """
        async with self._lock:
            now_ms = self._clock.monotonic_ms()
            if fresh or self._seen_ms is None or now_ms - self._seen_ms > CLUSTER_CACHED_MS:
                try:
                    registered = (await self._engine.cluster_info()).broker_addr_table
                except ClientError as error:
                    # While every name server is down, brokers can still be asked at their known addresses.
                    if not self._sets:
                        raise no_name_server(error) from None
                else:
                    self._known = merge_known_sets(self._known, registered, now_ms)
                    self._sets = {name: self._known[name].data for name in sorted(self._known)}
                    # A name server without brokers has just been started, so the next call asks again.
                    self._seen_ms = now_ms if registered else None
            return self._sets

    async def in_cluster(self, cluster: str, *, field: str) -> list[str]:
        """Return the names of the sets of a cluster.

        Raises:
            ProblemError: 404: no known set belongs to it; 503: no set is known.
        """
        sets = await self.sets(fresh=True)
        if not sets:
            raise no_broker()
        found = [name for name, known in sets.items() if known.cluster == cluster]
        if not found:
            clusters = ", ".join(sorted({known.cluster for known in sets.values()}))
            detail = f"{field.removeprefix('/')}: no broker of {cluster!r} is registered; there are {clusters}"
            raise ProblemError(UNKNOWN_BROKER, detail, field=field)
        return found

    async def missing(self) -> list[str]:
        """Return the names of the sets that the name servers' last answer lacks. Raises ProblemError (503)."""
        await self.sets()
        return [name for name, known_set in self._known.items() if known_set.missing_since_ms is not None]

    async def require_registered(self, broker: str) -> None:
        """Raise ProblemError: 404: the set does not exist; 503: it has no master now, or is not registered."""
        await self.master(broker)
        if broker in await self.missing():
            raise ProblemError(BROKER_UNAVAILABLE, f"broker: {broker} is not registered at the moment", field="broker")

    async def master(self, broker: str) -> str:
        """Return the address of the master of a set.

        Raises:
            ProblemError: 404: the set does not exist; 503: it has no master now, or no set is known.
        """
        sets = await self.sets()
        if not sets:
            raise no_broker()
        found = sets.get(broker)
        if found is None:
            raise ProblemError(UNKNOWN_BROKER, f"broker: {broker!r} is not registered", field="broker")
        if found.master_address is None:
            raise ProblemError(BROKER_UNAVAILABLE, f"broker: {broker} has no master at the moment", field="broker")
        return found.master_address

    async def find(self, find_one: Callable[[str], Awaitable[T | None]], *, fresh: bool = False) -> BrokerAnswers[T]:
        """Ask all brokers for something that may be missing; `answers` has only those with it. Raises as `ask`."""
        asked = await self.ask(find_one, fresh=fresh)
        there = {broker: found for broker, found in asked.answers.items() if found is not None}
        return BrokerAnswers(there, asked.failures, asked.answered)

    async def ask(
        self, ask_one: Callable[[str], Awaitable[T]], among: Iterable[str] | None = None, *, fresh: bool = False
    ) -> BrokerAnswers[T]:
        """Ask the master of each broker set.

        Args:
            ask_one: Asks the broker at an address. May raise ClientError, or the errors of a body that cannot be
                decoded.
            among: Names of the sets to ask; None for all. A set without a master is among the failures.
            fresh: Whether to ask a name server for the cluster first.

        Raises:
            ProblemError: 503: no name server answers, and no broker is known from earlier.
        """
        sets = await self.sets(fresh=fresh)
        names = sorted(sets) if among is None else sorted(among)
        answers: dict[str, T] = {}
        failures: dict[str, str] = {}
        room = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

        async def ask_named(name: str) -> None:
            broker = sets.get(name)
            address = None if broker is None else broker.master_address
            if address is None:
                failures[name] = f"broker {name}: its master is not registered at the moment"
                return
            async with room:
                try:
                    answers[name] = await ask_one(address)
                except (ClientError, BodyError, HeaderError) as error:
                    failures[name] = f"broker {name}: {error}"

        await asyncio.gather(*(ask_named(name) for name in names))
        found = {name: answers[name] for name in sorted(answers)}
        return BrokerAnswers(found, failures, found.keys())
