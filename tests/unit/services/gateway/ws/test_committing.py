"""Acknowledged offsets of a stream reach the brokers even if a broker hangs; on virtual time, with fakes."""

import asyncio

from gantry.model.message import MessageQueue
from tests.unit.services.gateway.ws.peers import FakeMembership, Peer, Service


async def acked_while_a_broker_hangs(service: Service) -> tuple[Peer, FakeMembership]:
    """Return a stream that has acknowledged all; its group has 16 queues on broker-0, which hangs, and one on broker-a."""
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T")
    await peer.frames_until("assigned")
    (member,) = service.consumers.members
    member.hanging = "broker-0"
    await member.on_change([(MessageQueue("T", "broker-0", number), 0) for number in range(16)], [])
    batches = [(await peer.frames_until("messages"))[-1] for _ in range(17)]
    await asyncio.sleep(2)
    member.commits.clear()
    peer.say(type="ack", id="x", subscription="s1", receipts=[batch["receipt"] for batch in batches])
    await peer.frames_until("state")
    return peer, member


async def test_a_hanging_broker_delays_neither_commits_of_others_nor_the_end_of_a_key() -> None:
    service = Service(messages=1)
    peer, member = await acked_while_a_broker_hangs(service)
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(1.1)
    assert member.commits == [(0, 1)]
    service.keys.remove("key-1")
    assert (await peer.frames_until("goodbye"))[-1]["reason"] == "the key was revoked, or the session has ended"
    assert asyncio.get_running_loop().time() - began < 10
    await peer.hang_up()


async def test_a_stream_that_ends_while_a_broker_hangs_commits_elsewhere_and_leaves() -> None:
    service = Service(messages=1)
    peer, member = await acked_while_a_broker_hangs(service)
    await peer.hang_up()
    assert (member.commits, member.is_left) == ([(0, 1)], True)


async def test_a_stream_that_ends_while_it_unsubscribes_from_a_hanging_broker_leaves() -> None:
    service = Service(messages=1)
    peer, member = await acked_while_a_broker_hangs(service)
    peer.say(type="unsubscribe", id="y", subscription="s1")
    await peer.frames_until("state")
    await peer.hang_up()
    assert (member.commits, member.is_left) == ([(0, 1)], True)
