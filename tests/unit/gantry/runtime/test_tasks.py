import asyncio

import pytest

from gantry.runtime.tasks import TaskScope, TaskSet, wait_for_event


async def test_tasks_are_removed_when_they_end():
    failures: list[BaseException] = []
    tasks = TaskSet("requests", failures.append)

    task = tasks.spawn(asyncio.sleep(1, "done"))
    assert len(tasks) == 1
    assert task.get_name() == "requests"

    assert await task == "done"
    await asyncio.sleep(0)
    assert len(tasks) == 0
    assert failures == []


async def test_a_failed_task_is_reported_and_cancels_no_other():
    failures: list[BaseException] = []
    tasks = TaskSet("requests", failures.append)

    async def fail() -> None:
        raise ValueError("no")

    tasks.spawn(fail())
    other = tasks.spawn(asyncio.sleep(1, "done"))

    assert await other == "done"
    assert [str(failure) for failure in failures] == ["no"]


async def test_cancelling_waits_until_all_have_ended():
    failures: list[BaseException] = []
    tasks = TaskSet("requests", failures.append)
    ended: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            ended.append("tidied")

    tasks.spawn(tidy())
    await asyncio.sleep(0)
    await tasks.cancel()

    assert ended == ["tidied"]
    assert len(tasks) == 0
    assert failures == []


async def test_a_task_cancelled_at_the_moment_its_event_is_set_ends():
    event = asyncio.Event()

    async def waits_again_and_again() -> None:
        while True:
            await wait_for_event(event, 0.05)
            event.clear()

    task = asyncio.ensure_future(waits_again_and_again())
    await asyncio.sleep(0)
    event.set()
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done == {task}
    assert task.cancelled()


async def test_waiting_for_an_event_returns_whether_it_was_set():
    event = asyncio.Event()
    assert not await wait_for_event(event, 0.001)
    asyncio.get_running_loop().call_soon(event.set)
    assert await wait_for_event(event, 60)


def test_a_scope_whose_end_is_cancelled_ends_its_threads():
    async def run() -> None:
        scope = TaskScope("service")
        await scope.__aenter__()
        assert await scope.in_thread("work", lambda: 1) == 1

        async def end_slowly() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                await asyncio.sleep(0.01)

        scope.spawn("slow", end_slowly())
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(scope.__aexit__(None, None, None))
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        with pytest.raises(RuntimeError, match="after shutdown"):
            await scope.in_thread("work", lambda: 2)
        with pytest.raises(asyncio.CancelledError):
            await scope.wait_for_failure()

    asyncio.run(run())
