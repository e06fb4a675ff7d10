"""Timers of a broker, in virtual time."""

import asyncio

from services.broker.timers import every
from tests.support.virtualtime import VirtualTimeLoop


def test_timers_of_different_starts_run_at_the_same_moments() -> None:
    runs: list[tuple[float, str]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers = []
        for name, interval_ms in (("a", 100), ("b", 100), ("c", 200)):
            await asyncio.sleep(0.007)
            timers.append(loop.create_task(every(interval_ms, lambda name=name: runs.append((loop.time(), name)))))
        await asyncio.sleep(0.4)
        for timer in timers:
            timer.cancel()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    expected = [(0.1, "ab"), (0.2, "abc"), (0.3, "ab"), (0.4, "abc")]
    moments = sorted({round(at, 6) for at, _ in runs})
    assert [(at, "".join(sorted(name for run, name in runs if round(run, 6) == at))) for at in moments] == expected


def test_a_late_run_does_not_cause_an_extra_one() -> None:
    began: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def slow() -> None:
            began.append(round(loop.time(), 6))
            if len(began) == 1:
                await asyncio.sleep(0.26)

        timer = loop.create_task(every(100, slow))
        await asyncio.sleep(0.65)
        timer.cancel()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    # The next multiple after 0.36 s is closer than half an interval.
    assert began == [0.1, 0.5, 0.6]
