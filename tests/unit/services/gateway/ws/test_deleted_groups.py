"""Subscriptions whose group is deleted: they end with a reason, and the others of the stream go on."""

import asyncio

import pytest

from tests.unit.services.gateway.ws.peers import FakeMembership, Peer, Service


async def subscribed(peer: Peer, group: str) -> str:
    peer.say(type="subscribe", id=group, group=group, topic="T", **{"from": "first"})
    frames = await peer.frames_until("subscribed")
    return str(frames[-1]["subscription"])


def delete(service: Service, group: str) -> None:
    service.consumers.deleted.add(group)
    for member in members_of(service, group):
        member.is_refused = True


def members_of(service: Service, group: str) -> list[FakeMembership]:
    return [member for member in service.consumers.members + service.consumers.retries if member.group == group]


@pytest.mark.parametrize("by", ["a refused pull", "a rebalance"])
async def test_it_ends_with_a_reason_and_the_others_go_on(by: str) -> None:
    service = Service(messages=3, queues=4)
    peer = await Peer(service).welcomed()
    gone, kept = await subscribed(peer, "gone"), await subscribed(peer, "kept")
    await asyncio.sleep(1)
    for frame in await peer.frames_until("messages"):
        if frame["type"] == "messages" and frame["subscription"] == gone:
            peer.say(type="ack", subscription=gone, receipts=[frame["receipt"]])
    commits = [list(member.commits) for member in members_of(service, "gone")]
    if by == "a rebalance":
        service.consumers.deleted.add("gone")
        for member in members_of(service, "gone"):
            member.on_deleted()
    else:
        delete(service, "gone")
    frames = await peer.frames_until("state")
    ends = [frame for frame in frames if frame.get("subscription") == gone and frame["type"] in ("error", "state")]
    error, state = ends
    assert (error["type"], error["problem"]["status"]) == ("error", 404)
    assert error["problem"]["type"].endswith("/unknown-group")
    assert "'gone' was deleted" in error["problem"]["detail"]
    assert (state["reason"], "id" in state) == ("unsubscribed", False)
    await asyncio.sleep(1)
    assert all(member.is_left for member in members_of(service, "gone"))
    assert [member.commits for member in members_of(service, "gone")] == commits
    pulls = [member.pulls for member in members_of(service, "gone")]
    (going_on, *_) = members_of(service, "kept")
    before = going_on.pulls
    await asyncio.sleep(20)
    assert [member.pulls for member in members_of(service, "gone")] == pulls
    assert going_on.pulls > before
    peer.say(type="pause", id="p", subscription=kept)
    assert (await peer.frames_until("state"))[-1]["reason"] == "paused"
    await peer.hang_up()


async def test_a_group_that_only_one_broker_lacks_is_pulled_again() -> None:
    service = Service(messages=3)
    peer = await Peer(service).welcomed()
    name = await subscribed(peer, "g")
    (member, *_) = members_of(service, "g")
    await peer.frames_until("messages")
    member.is_refused = True
    await asyncio.sleep(20)
    member.is_refused = False
    frames = await peer.frames_until("state")
    assert (frames[-1]["subscription"], frames[-1]["reason"]) == (name, "waiting")
    while frames[-1]["reason"] != "flowing":
        frames = await peer.frames_until("state")
    await peer.hang_up()


async def test_all_queues_together_ask_the_brokers_once() -> None:
    service = Service(queues=8)
    peer = await Peer(service).welcomed()
    await subscribed(peer, "g")
    await asyncio.sleep(1)
    delete(service, "g")
    await asyncio.sleep(20)
    assert service.consumers.asked == 1
    await peer.hang_up()


async def test_the_group_can_be_subscribed_to_again() -> None:
    service = Service(messages=3)
    peer = await Peer(service).welcomed()
    await subscribed(peer, "g")
    delete(service, "g")
    while (await peer.frames_until("state"))[-1]["reason"] != "unsubscribed":
        continue
    service.consumers.deleted.clear()
    service.consumers.members.clear()
    await subscribed(peer, "g")
    assert len((await peer.frames_until("messages"))[-1]["messages"]) == 3
    await peer.hang_up()
