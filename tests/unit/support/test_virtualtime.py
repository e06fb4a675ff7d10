"""The event loop that jumps over waits."""

import asyncio

import pytest

from tests.support.virtualtime import EPOCH_MS, DeadlockError, FakeClock, VirtualClock, VirtualTimeLoop


async def test_a_wait_of_two_hours_takes_no_time_and_moves_both_clocks():
    clock = VirtualClock()
    await asyncio.sleep(7200)
    assert clock.monotonic_ms() == 7_200_000
    assert clock.now_ms() == EPOCH_MS + 7_200_000


async def test_timers_fire_in_order():
    order: list[str] = []

    async def note(after: float, name: str) -> None:
        await asyncio.sleep(after)
        order.append(name)

    await asyncio.gather(note(3, "c"), note(1, "a"), note(2, "b"))
    assert order == ["a", "b", "c"]


async def test_a_timeout_ends_a_waiting_task():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await asyncio.get_running_loop().create_future()
    assert asyncio.get_running_loop().time() == pytest.approx(30)


def test_all_waiting_without_a_timer_is_a_deadlock():
    loop = VirtualTimeLoop()
    try:
        with pytest.raises(DeadlockError):
            loop.run_until_complete(loop.create_future())
    finally:
        loop.close()


async def test_the_wall_clock_can_differ_from_the_monotonic_one():
    clock = VirtualClock()
    await asyncio.sleep(1)
    clock.set_wall(5)
    await asyncio.sleep(1)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1005, 2000)


def test_a_fake_clock_moves_by_hand():
    clock = FakeClock(wall_ms=10)
    clock.advance(5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (15, 5)
