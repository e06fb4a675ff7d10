import asyncio

from gantry.runtime.tasks import TaskBag


async def test_tasks_come_and_go():
    failures: list[BaseException] = []
    bag = TaskBag("requests", failures.append)

    task = bag.spawn(asyncio.sleep(1, "done"))
    assert len(bag) == 1
    assert task.get_name() == "requests"

    assert await task == "done"
    await asyncio.sleep(0)
    assert len(bag) == 0
    assert failures == []


async def test_one_that_fails_is_told_and_takes_no_other_along():
    failures: list[BaseException] = []
    bag = TaskBag("requests", failures.append)

    async def fail() -> None:
        raise ValueError("no")

    bag.spawn(fail())
    other = bag.spawn(asyncio.sleep(1, "done"))

    assert await other == "done"
    assert [str(failure) for failure in failures] == ["no"]


async def test_cancelling_waits_until_all_have_ended():
    failures: list[BaseException] = []
    bag = TaskBag("requests", failures.append)
    ended: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            ended.append("tidied")

    bag.spawn(tidy())
    await asyncio.sleep(0)
    await bag.cancel()

    assert ended == ["tidied"]
    assert len(bag) == 0
    assert failures == []
