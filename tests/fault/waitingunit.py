"""A broker in memory, on virtual time, that goes on with a store of messages that wait."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from gantry.remoting.aio import Handler
from gantry.remoting.command import RemotingCommand
from gantry.runtime.rng import Rng
from tests.fault.waitinghistory import Delivered, WaitingHistory
from tests.fault.waitingload import WaitingLoad
from tests.support.brokerunit import BrokerUnit
from tests.support.virtualtime import VirtualTimeLoop

SETTLE_S = 60.0
QUIET_S = 4.0
T = TypeVar("T")


class UnitLink:
    """A connection to a broker in memory."""

    def __init__(self, unit: BrokerUnit, handlers: Mapping[int, Handler]) -> None:
        self._unit = unit
        self._connection = unit.connect(handlers)

    async def ask(
        self, code: int, header: Any = None, *, body: bytes | None = None, ext: dict[str, str] | None = None
    ) -> RemotingCommand:
        """Send a request and return its answer."""
        return await self._unit.ask(code, header, body=body, ext=ext, connection=self._connection)

    def now_ms(self) -> int:
        """Return the virtual time."""
        return self._unit.clock.now_ms()

    async def close(self) -> None:
        """End the connection."""
        self._connection.client.abort("the load has ended")


def load_on(unit: BrokerUnit, history: WaitingHistory, rng: Rng, **options: Any) -> WaitingLoad:
    """Return a load on a broker in memory."""
    return WaitingLoad(lambda handlers: UnitLink(unit, handlers), history, rng, **options)


async def go_on(unit: BrokerUnit, history: WaitingHistory, rng: Rng, *, wall_ms: int) -> list[Delivered]:
    """Start a broker at a wall time, let all times pass, and return everything that can be read then."""
    unit.clock.set_wall(wall_ms)
    async with unit:
        load = load_on(unit, history, rng)
        await load.assert_decisions_hold()
        return await load.settle(timeout_s=SETTLE_S, quiet_s=QUIET_S)


def virtually(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work())
