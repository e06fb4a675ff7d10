"""Members that consume in order: one of them has a queue, and it stops before another one may have it."""

import asyncio
from collections.abc import Sequence

import pytest

from gantry.client.consumer.rebalance import GroupMember
from gantry.client.consumer.starts import Assignment, StartPosition
from gantry.client.errors import InvalidArgumentError
from gantry.model.group import ConsumeFromWhere, parse_tag_expression
from gantry.model.message import MessageQueue
from gantry.remoting.bodies import ConsumerRunningInfo
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.client import GetConsumerRunningInfoHeader, NotifyConsumerIdsChangedHeader

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
ALL = ["a0", "a1", "b0", "b1"]
A0 = MessageQueue("T", "a", 0)


class Owner:
    def __init__(self, engine, client_id: str = "me@1") -> None:
        self.client_id = client_id
        self.points: dict[MessageQueue, int] = {}
        self.starts: dict[str, int] = {}
        self.revoked: list[str] = []
        self.drains: asyncio.Event | None = None
        self.refuses = False
        self.member = GroupMember(
            engine,
            "g",
            [parse_tag_expression("T", "*", 1)],
            client_id=client_id,
            on_change=self.on_change,
            commit_point=lambda queue: self.points[queue],
            start=StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
            is_orderly=True,
        )

    async def on_change(self, assigned: Sequence[Assignment], revoked: Sequence[MessageQueue]) -> None:
        if revoked and self.drains is not None:
            await self.drains.wait()
        if self.refuses:
            raise RuntimeError("the owner fails")
        for one in assigned:
            self.points[one.queue] = self.starts[shown(one.queue)] = one.next_offset
        for queue in revoked:
            del self.points[queue]
            self.revoked.append(shown(queue))

    @property
    def held(self) -> list[str]:
        return sorted(shown(queue) for queue in self.points)


def shown(queue: MessageQueue) -> str:
    return f"{queue.broker_name}{queue.queue_id}"


def notify(transport) -> None:
    header = NotifyConsumerIdsChangedHeader(consumer_group="g")
    transport.push(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, one_way=True))


async def test_a_queue_is_locked_before_its_offset_is_read(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    assert owner.held == ALL
    for name in ("a", "b"):
        codes = [request.code for address, request in transport.requests if address == f"{name}:10911"]
        assert codes.count(LOCK) == 1
        assert codes.index(LOCK) < codes.index(RequestCode.QUERY_CONSUMER_OFFSET)


async def test_a_queue_moves_only_after_its_owner_has_given_it_up_and_continues_there(engine, groups, transport):
    first, second = Owner(engine, "me@1"), Owner(engine, "me@2")
    await first.member.start()
    for queue in first.points:
        first.points[queue] = 50
    first.drains = asyncio.Event()
    await second.member.start()
    assert second.held == [], "it joins, although all queues are locked"
    notify(transport)
    await asyncio.sleep(10)
    assert (first.held, second.held) == (ALL, []), "the first owner still works on its messages"
    for queue in first.points:
        first.points[queue] = 60
    first.drains.set()
    await asyncio.sleep(2.1)
    assert (first.held, second.held) == (["a0", "a1"], ["b0", "b1"])
    assert set(second.starts.values()) == {50}, "what was committed when the share changed"


async def test_renewed_locks_are_never_free(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    for _ in range(20):
        await asyncio.sleep(17)
        assert groups.lock("a", "other@1", "g", [A0]) == []
    assert (owner.held, owner.revoked) == (ALL, [])
    assert 34 <= len(transport.sent(LOCK)) <= 38, "each broker every 20 s"


async def test_without_a_broker_the_member_stops_before_the_lock_is_free(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    await asyncio.sleep(1)
    transport.down("a:10911")
    await asyncio.sleep(27)
    assert owner.held == ALL
    await asyncio.sleep(3)
    assert owner.held == ["b0", "b1"]
    assert groups.lock("a", "other@1", "g", [A0]) == [], "the broker still has the lock"
    owner.points[MessageQueue("T", "b", 0)] = 70
    with pytest.raises(InvalidArgumentError, match="is not held"):
        await owner.member.commit(A0, 90)
    groups.serve("a", "b")
    await asyncio.sleep(3)
    assert owner.held == ALL
    assert groups.committed["g", "T", "a", 0] == 10, "nothing was committed without the lock"


async def test_a_lock_that_another_member_has_is_lost_at_once_and_comes_back(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    groups.locks["a"].unlock("g", "me@1", [A0])
    groups.lock("a", "other@1", "g", [A0])
    await asyncio.sleep(21)
    assert (owner.held, owner.revoked) == (["a1", "b0", "b1"], ["a0"])
    groups.committed["g", "T", "a", 0] = 99
    groups.locks["a"].unlock("g", "other@1", [A0])
    await asyncio.sleep(2.1)
    assert (owner.held, owner.starts["a0"]) == (ALL, 99)


async def test_the_queues_of_a_member_that_died_are_taken_over_after_a_minute(engine, groups, transport):
    groups.lock("a", "dead@1", "g", [A0])
    owner = Owner(engine)
    await owner.member.start()
    assert owner.held == ["a1", "b0", "b1"]
    await asyncio.sleep(58)
    assert owner.held == ["a1", "b0", "b1"]
    await asyncio.sleep(4)
    assert owner.held == ALL


async def test_a_member_that_leaves_unlocks_after_its_last_commit(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    for queue in owner.points:
        owner.points[queue] = 80
    await owner.member.close()
    assert set(groups.committed.values()) == {80}
    assert groups.locks["a"].count == groups.locks["b"].count == 0
    codes = [request.code for address, request in transport.requests if address == "a:10911"]
    assert codes.index(UNLOCK) > max(at for at, code in enumerate(codes) if code == RequestCode.UPDATE_CONSUMER_OFFSET)


async def test_queues_that_were_locked_and_not_taken_are_unlocked(engine, groups, transport):
    transport.at("a:10911", {RequestCode.QUERY_CONSUMER_OFFSET: lambda request: None})
    owner = Owner(engine)
    await owner.member.start()
    assert owner.held == ["b0", "b1"]
    assert groups.locks["a"].count == 0
    assert groups.lock("a", "other@1", "g", [A0]) == [A0]


async def test_an_owner_that_fails_gets_no_queue_and_keeps_no_lock(engine, groups, transport):
    owner = Owner(engine)
    owner.refuses = True
    with pytest.raises(RuntimeError):
        await owner.member.start()
    assert (owner.member.held, groups.locks["a"].count, groups.locks["b"].count) == (frozenset(), 0, 0)


async def test_the_member_says_that_it_consumes_in_order(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    header = GetConsumerRunningInfoHeader(consumer_group="g", client_id="me@1", jstack_enable=False)
    answer = transport.push(RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
    assert ConsumerRunningInfo.decode(answer.body_bytes).properties["PROP_CONSUMEORDERLY"] == "true"
