"""Streams whose group is reset while they run; on virtual time, with fakes."""

import asyncio

import pytest

from gantry.model.message import MessageQueue
from tests.unit.services.gateway.ws.peers import Peer, Service

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_reset_queue_goes_on_at_the_new_offset_and_old_receipts_are_gone(is_announced: bool) -> None:
    """The broker announces the reset, or a pull learns of it."""
    service = Service(messages=10)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T")
    old = (await peer.frames_until("messages"))[-1]
    (member,) = service.consumers.members
    if is_announced:
        member.on_reset(QUEUE, 4)
    else:
        member.reset_to = 4
    frames = await peer.frames_until("messages")
    assert [frame["queues"][0]["next_offset"] for frame in frames if frame["type"] == "assigned"] == ["4"]
    assert frames[-1]["messages"][0]["queue_offset"] == "4"
    member.commits.clear()
    peer.say(type="ack", subscription="s1", receipts=[old["receipt"]])
    error = (await peer.frames_until("error"))[-1]
    assert "receipt" in error["problem"]["detail"]
    await asyncio.sleep(6)
    assert set(member.commits) <= {(0, 4)}
    await peer.hang_up()


async def test_a_pull_that_was_under_way_at_a_reset_is_discarded() -> None:
    service = Service(messages=10)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T")
    await peer.frames_until("messages")
    (member,) = service.consumers.members
    member.on_reset(QUEUE, 4)
    pulls = member.pulls
    member.on_reset(QUEUE, 6)
    frames = await peer.frames_until("messages")
    assert frames[-1]["messages"][0]["queue_offset"] == "6"
    assert member.pulls > pulls
    await peer.hang_up()


async def test_a_commit_that_ends_after_a_reset_does_not_count_for_the_new_offset() -> None:
    service = Service(messages=10)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T", batch=10)
    batch = (await peer.frames_until("messages"))[-1]
    (member,) = service.consumers.members
    await asyncio.sleep(2)
    member.commits.clear()
    member.commit_s = 30.0
    peer.say(type="ack", subscription="s1", receipts=[batch["receipt"]])
    await asyncio.sleep(2)
    member.on_reset(QUEUE, 0)
    again = (await peer.frames_until("messages"))[-1]
    peer.say(type="ack", subscription="s1", receipts=[again["receipt"]])
    await asyncio.sleep(65)
    # The offset is the same as that of the commit that was under way, and was committed again.
    assert member.commits == [(0, 10), (0, 10)]
    await peer.hang_up()
