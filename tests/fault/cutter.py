"""Copies of a disk whose power is cut, taken at random moments while brokers run on it under a load."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from gantry.runtime.rng import Rng
from tests.fault.brokers import broker
from tests.support.powercut import CuttableDisk
from tests.support.transactionpeer import now_ms

CUTS_PER_LIFE_MAX = 6
LIVES_PER_STORE_MAX = 3
CUT_AFTER_MS_MIN = 400
CUT_AFTER_MS_MAX = 2_500


class History(Protocol):
    """Promises of a broker to its clients."""

    def copy(self) -> Self:
        """Return the promises until now."""
        ...


class Load(Protocol):
    """A load on a broker."""

    async def start(self) -> None:
        """Start the load."""
        ...

    async def stop(self) -> None:
        """Stop the load. Raises an error of the load."""
        ...


H = TypeVar("H", bound=History)


class Cut(NamedTuple, Generic[H]):
    """A copy, and the promises that it must keep.

    Attributes:
        image: The copy.
        store: Folder of the store on it.
        history: The promises until the cut.
        kills_ms: Times at which the store's earlier brokers were killed, and the time of the cut.
    """

    image: Path
    store: str
    history: H
    kills_ms: list[int]


class Cutter(Generic[H]):
    """Takes copies of the disk.

    Args:
        disk: The disk.
        folder: Folder for the logs of the brokers.
        namesrv: Address of the name server.
        rng: The choices.
        settings: Settings of the brokers.
        make_history: Makes the history of a store.
        make_load: Makes the load on a broker, from its address, the store's history, and the number of its life.
    """

    def __init__(
        self,
        disk: CuttableDisk,
        folder: Path,
        namesrv: str,
        rng: Rng,
        settings: Mapping[str, Any],
        *,
        make_history: Callable[[], H],
        make_load: Callable[[str, H, int], Load],
    ) -> None:
        self.taken = 0
        self._disk = disk
        self._folder = folder
        self._namesrv = namesrv
        self._rng = rng
        self._settings = settings
        self._make_history = make_history
        self._make_load = make_load
        self._stores = 0

    async def life_of_a_store(self, copies: int) -> list[Cut[H]]:
        """Run brokers on a new store, and take copies."""
        self._stores += 1
        name, history, kills_ms, cuts = f"store-{self._stores}", self._make_history(), list[int](), list[Cut[H]]()
        store = self._disk.path / "data" / name
        for life in range(LIVES_PER_STORE_MAX):
            left = copies - len(cuts)
            count = left if life == LIVES_PER_STORE_MAX - 1 else min(left, 1 + self._rng.below(CUTS_PER_LIFE_MAX))
            process = broker(self._folder / f"{name}-{life}", self._namesrv, store=store, **self._settings)
            try:
                await asyncio.to_thread(process.start)
                load = self._make_load(process.address, history, life)
                await load.start()
                for _ in range(count):
                    await asyncio.sleep((CUT_AFTER_MS_MIN + self._rng.below(CUT_AFTER_MS_MAX)) / 1000)
                    cuts.append(self._cut(name, history, kills_ms))
                process.kill()
                kills_ms.append(now_ms())
                await load.stop()
            finally:
                process.kill()
            if len(cuts) == copies:
                break
        return cuts

    def _cut(self, store: str, history: H, kills_ms: list[int]) -> Cut[H]:
        # The loop waits for the copy, so that no promise is made meanwhile.
        self.taken += 1
        image = self._disk.cut(self.taken)
        return Cut(image, store, history.copy(), [*kills_ms, now_ms()])
