"""Resets of a group's offsets while a member of it runs."""

import asyncio

from gantry.client.consumer.heldqueues import HeldQueues
from gantry.client.consumer.rebalance import GroupMember
from gantry.client.consumer.starts import Assignment, StartPosition
from gantry.model.group import ConsumeFromWhere, parse_tag_expression
from gantry.model.message import MessageQueue
from gantry.remoting.bodies.resets import ResetOffsets
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.reset import ResetClientOffsetHeader

QUEUE = MessageQueue("T", "a", 0)
FIRST = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


class Owner:
    def __init__(self, engine, **options) -> None:
        self.starts: list[tuple[str, int]] = []
        self.revoked: list[str] = []
        subscription = parse_tag_expression("T", "*", 1)
        self.member = GroupMember(
            engine, "g", [subscription], client_id="me@1", on_change=self.on_change, start=FIRST, **options
        )

    async def on_change(self, assigned: list[Assignment], revoked: list[MessageQueue]) -> None:
        self.starts += [(f"{one.queue.broker_name}{one.queue.queue_id}", one.next_offset) for one in assigned]
        self.revoked += [f"{queue.broker_name}{queue.queue_id}" for queue in revoked]


def announce(transport, offset: int, *, epoch: int | None, queue: MessageQueue = QUEUE, group: str = "g") -> None:
    header = ResetClientOffsetHeader(topic="T", group=group, timestamp=1, is_force=True, gantry_reset_epoch=epoch)
    body = ResetOffsets({queue: offset}).encode()
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    transport.push(RemotingCommand.request(code, header, body=body, one_way=True))


def last_commit(transport) -> tuple[str, str]:
    ext = transport.sent(RequestCode.UPDATE_CONSUMER_OFFSET)[-1].ext_fields
    return ext["commitOffset"], ext["gantryResetEpoch"]


async def test_the_owner_is_told_and_later_commits_have_the_epoch(engine, groups, transport):
    told = []
    owner = Owner(engine, on_reset=lambda queue, offset: told.append((queue, offset)))
    await owner.member.start()
    await owner.member.commit(QUEUE, 50)
    assert last_commit(transport) == ("50", "0")
    announce(transport, 20, epoch=7)
    announce(transport, 20, epoch=7)
    await asyncio.sleep(0.1)
    assert told == [(QUEUE, 20)]
    await owner.member.commit(QUEUE, 21)
    assert last_commit(transport) == ("21", "7")
    assert owner.member.epoch(QUEUE) == 7


async def test_an_older_reset_another_group_and_a_queue_not_held_have_no_effect(engine, groups, transport):
    told = []
    owner = Owner(engine, on_reset=lambda queue, offset: told.append((queue, offset)))
    await owner.member.start()
    announce(transport, 20, epoch=7)
    announce(transport, 30, epoch=6)
    announce(transport, 30, epoch=8, group="other")
    announce(transport, 30, epoch=8, queue=MessageQueue("T", "a", 9))
    await asyncio.sleep(0.1)
    assert told == [(QUEUE, 20)]


async def test_a_reset_that_the_owner_learns_from_a_pull_counts_once(engine, groups, transport):
    told = []
    owner = Owner(engine, on_reset=lambda queue, offset: told.append((queue, offset)))
    await owner.member.start()
    owner.member.reset(QUEUE, 20, 7)
    announce(transport, 20, epoch=7)
    await asyncio.sleep(0.1)
    assert told == [(QUEUE, 20)]


async def test_each_announcement_of_a_broker_without_epochs_counts(engine, groups, transport):
    told = []
    owner = Owner(engine, on_reset=lambda queue, offset: told.append((queue, offset)))
    await owner.member.start()
    announce(transport, 20, epoch=None)
    announce(transport, 30, epoch=None)
    await asyncio.sleep(0.1)
    assert told == [(QUEUE, 20), (QUEUE, 30)]


async def test_without_on_reset_the_queue_is_assigned_again_and_nothing_old_is_committed(engine, groups, transport):
    owner = Owner(engine, commit_point=lambda queue: 90)
    await owner.member.start()
    await asyncio.sleep(5.1)
    assert groups.committed["g", "T", "a", 0] == 90
    groups.committed["g", "T", "a", 0] = 20
    owner.starts.clear()
    announce(transport, 20, epoch=7)
    await asyncio.sleep(0.05)
    assert owner.revoked == ["a0"]
    assert groups.committed["g", "T", "a", 0] == 20
    await asyncio.sleep(2)
    assert owner.starts == [("a0", 20)]


def test_the_end_of_a_commit_from_before_a_reset_says_nothing():
    held = HeldQueues()
    held.add(QUEUE, None, 0)
    assert held.reset(QUEUE, 20, 7)
    held.committed(QUEUE, 50, 0)
    assert held.committed_offset(QUEUE) == 20
    held.committed(QUEUE, 21, 7)
    assert held.committed_offset(QUEUE) == 21
