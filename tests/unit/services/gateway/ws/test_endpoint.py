"""Whole streams over fakes, on virtual time: handshake, tasks, and the state after each kind of ending."""

import asyncio
from typing import Any

import msgspec
import pytest

from services.gateway.auth.keyring import KeyRecord, digest_of
from services.gateway.schemas.rights import Rights
from services.gateway.settings import GatewaySettings
from services.gateway.turns import TURN_BYTES
from services.gateway.ws import outbox
from services.gateway.ws.delivery import ALLOWANCE_BYTES, SLOW_BYTES
from tests.unit.services.gateway.ws.peers import KEY, OTHER_KEY, THIRD_KEY, Peer, Service

# The high mark of asyncio and uvloop: above it a transport pauses the writer.
SOCKET_BUFFER_BYTES = 64 * 1024


async def refusal(peer: Peer) -> tuple[int, dict[str, Any]]:
    start, body = await peer.event(), await peer.event()
    assert start["type"] == "websocket.http.response.start"
    await peer.task
    problem = msgspec.json.decode(body["body"])
    headers = dict(start["headers"])
    assert headers[b"x-request-id"].decode() == problem["request_id"]
    assert (b"retry-after" in headers) == (start["status"] in (429, 503))
    return start["status"], problem


@pytest.mark.parametrize(
    ("options", "status", "name"),
    [
        ({"key": None}, 401, "unauthenticated"),
        ({"key": "wrong"}, 401, "unauthenticated"),
        ({"key": OTHER_KEY}, 403, "forbidden"),
        ({"subprotocols": ()}, 400, "invalid-field"),
        ({"subprotocols": ("mqtt",)}, 400, "invalid-field"),
        ({"query": b"tickets=x"}, 400, "unknown-parameter"),
        ({"query": b"ticket=x&ticket=y"}, 400, "duplicate"),
        ({"query": b"ticket=x"}, 400, "invalid-field"),
        ({"headers": [(b"authorization", b"Bearer x")]}, 400, "duplicate"),
    ],
)
async def test_a_handshake_is_refused_with_a_problem(options: dict[str, Any], status: int, name: str) -> None:
    found, problem = await refusal(Peer(Service(), **options))
    assert found == status
    assert problem["type"].endswith("/" + name)


async def test_a_valid_request_id_of_the_caller_is_kept() -> None:
    _, problem = await refusal(Peer(Service(), key=None, headers=[(b"x-request-id", b"abc")]))
    assert problem["request_id"] == "abc"
    _, problem = await refusal(Peer(Service(), key=None, headers=[(b"x-request-id", b"no good")]))
    assert len(problem["request_id"]) == 16


@pytest.mark.parametrize(
    ("settings", "others", "status", "refused"),
    [
        (GatewaySettings(streams_max=2), {"key": THIRD_KEY, "address": "192.0.2.7"}, 503, (0, 0, 1)),
        (GatewaySettings(key_streams_max=2), {"address": "192.0.2.7"}, 429, (1, 0, 0)),
        (GatewaySettings(address_streams_max=2), {"key": THIRD_KEY}, 429, (0, 1, 0)),
    ],
)
async def test_the_number_of_streams_is_limited(
    settings: GatewaySettings, others: dict[str, Any], status: int, refused: tuple[int, int, int]
) -> None:
    service = Service(settings=settings)
    by_key, by_address = service.quotas.streams, service.quotas.address_streams
    peers = [await Peer(service).welcomed() for _ in range(2)]
    found, problem = await refusal(Peer(service, **others))
    assert (found, problem["retryable"]) == (status, True)
    assert (by_key.refused_each, by_address.refused_each, by_address.refused_total) == refused
    if status == 429:
        peers.append(await Peer(service, key=THIRD_KEY, address="192.0.2.7").welcomed())
    await peers.pop(0).hang_up()
    peers.append(await Peer(service, **others).welcomed())
    for peer in peers:
        await peer.hang_up()
    await (await Peer(service).welcomed()).hang_up()


@pytest.mark.parametrize("limit", ["key_streams_max", "address_streams_max", "streams_max"])
async def test_a_ticket_beyond_the_limits_gets_a_goodbye(limit: str) -> None:
    service = Service(settings=GatewaySettings(**{limit: 1}))
    first = await Peer(service).welcomed()
    ticket = service.tickets.give(service.keys.authenticate(f"Bearer {KEY}")).ticket.encode()
    peer = Peer(service, key=None, query=b"ticket=" + ticket)
    assert (await peer.event())["type"] == "websocket.accept"
    goodbye = await peer.frame()
    assert goodbye["retry"]
    assert goodbye["after_ms"] > 0
    assert (await peer.event())["code"] == 4429
    await peer.task
    await first.hang_up()


async def test_a_64_of_ipv6_is_one_address_for_streams() -> None:
    service = Service(settings=GatewaySettings(address_streams_max=2))
    peers = [await Peer(service, address=f"2001:db8::{number}").welcomed() for number in (1, 2)]
    assert (await refusal(Peer(service, key=THIRD_KEY, address="2001:db8::3")))[0] == 429
    peers.append(await Peer(service, key=THIRD_KEY, address="2001:db8:0:1::1").welcomed())
    for peer in peers:
        await peer.hang_up()


async def test_a_ticket_opens_one_stream() -> None:
    service = Service()
    ticket = service.tickets.give(service.keys.authenticate(f"Bearer {KEY}")).ticket.encode()
    peer = await Peer(service, key=None, query=b"ticket=" + ticket).welcomed()
    await peer.hang_up()
    again = Peer(service, key=None, query=b"ticket=" + ticket)
    assert (await again.event())["type"] == "websocket.accept"
    goodbye = await again.frame()
    assert (goodbye["type"], goodbye["retry"]) == ("goodbye", False)
    assert (await again.event())["code"] == 4401


async def test_a_ticket_of_a_key_that_lost_its_rights() -> None:
    service = Service()
    ticket = service.tickets.give(service.keys.authenticate(f"Bearer {KEY}")).ticket.encode()
    service.keys.replace([KeyRecord("key-1", digest_of(KEY), "less", Rights(metrics=True))])
    peer = Peer(service, key=None, query=b"ticket=" + ticket, subprotocols=("x", "gantry.v1.msgpack"))
    assert (await peer.event())["subprotocol"] == "gantry.v1.msgpack"
    assert (await peer.frame())["type"] == "goodbye"
    assert (await peer.event())["code"] == 4403


async def test_messages_are_delivered_and_acknowledged_ones_committed() -> None:
    service = Service(messages=100)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", id=1, group="G", topic="T", credit={"messages": 40})
    frames = await peer.frames_until("messages")
    assert [frame["type"] for frame in frames] == ["subscribed", "assigned", "messages"]
    received = frames[-1]["messages"]
    while len(received) < 40:
        received += (await peer.frames_until("messages"))[-1]["messages"]
    (member,) = service.consumers.members
    peer.say(type="ack", subscription="s1", receipts=[message["receipt"] for message in received[:33]])
    await asyncio.sleep(1.5)
    assert member.commits == [(0, 33)]
    peer.say(type="ack", subscription="s1", receipts=[message["receipt"] for message in received[33:35]])
    await asyncio.sleep(0.1)
    await peer.hang_up()
    assert member.commits == [(0, 33), (0, 35)]
    assert member.is_left


async def test_a_long_ack_is_answered_before_the_next_frame_is_read() -> None:
    service = Service(messages=3_000)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T", credit={"messages": 3_000, "bytes": 10**7})
    receipts: list[str] = []
    while len(receipts) < 3_000:
        batch = (await peer.frames_until("messages"))[-1]
        receipts += [message["receipt"] for message in batch["messages"]]
    peer.say(type="ack", id=1, subscription="s1", receipts=receipts)
    peer.say(type="pause", id=2, subscription="s1")
    states = [(await peer.frames_until("state"))[-1] for _ in range(2)]
    assert [(state["id"], state["in_flight"]) for state in states] == [(1, 0), (2, 0)]
    await peer.hang_up()


async def test_a_revoked_queue_is_committed_and_no_longer_pulled() -> None:
    service = Service(messages=10)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T")
    batch = (await peer.frames_until("messages"))[-1]
    peer.say(type="ack", subscription="s1", receipts=[batch["receipt"]])
    await asyncio.sleep(0.1)
    (member,) = service.consumers.members
    subscription = next(iter(next(iter(service.endpoint._connections)).session.subscriptions.values()))
    (queue,) = subscription.feeds
    await member.on_change([], [queue])
    assert (await peer.frame())["queues"] == []
    assert member.commits == [(0, 10)]
    pulls = member.pulls
    await asyncio.sleep(60)
    assert member.pulls == pulls
    await member.on_change([(queue, 10)], [])
    assert (await peer.frame())["queues"][0]["next_offset"] == "10"
    await asyncio.sleep(1)
    # One pull that looks for messages, and one that waits.
    assert member.pulls == pulls + 2
    await peer.hang_up()


async def test_a_failing_broker_is_called_again() -> None:
    service = Service(messages=1)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T")
    await peer.frames_until("assigned")
    (member,) = service.consumers.members
    member.failures = 5
    frames = await peer.frames_until("messages")
    assert [frame["type"] for frame in frames] == ["error", "state", "state", "messages"]
    assert [frame["reason"] for frame in frames[1:3]] == ["waiting", "flowing"]
    await peer.hang_up()


async def test_an_expired_offset() -> None:
    service = Service(messages=100)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T")
    await peer.frames_until("assigned")
    (member,) = service.consumers.members
    member.moved_to = 90
    frames = await peer.frames_until("messages")
    assert frames[0]["queues"][0]["next_offset"] == "90"
    assert frames[-1]["messages"][0]["queue_offset"] == "90"
    await peer.hang_up()


async def test_a_missing_topic() -> None:
    peer = await Peer(Service()).welcomed()
    peer.say(type="subscribe", id="x", group="G", topic="NONE")
    error = await peer.frame()
    assert (error["id"], error["problem"]["status"]) == ("x", 404)
    await peer.hang_up()


async def test_unsubscribing_leaves_the_group() -> None:
    service = Service(messages=1)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T")
    batch = (await peer.frames_until("messages"))[-1]
    peer.say(type="ack", subscription="s1", receipts=[batch["receipt"]])
    peer.say(type="unsubscribe", subscription="s1")
    peer.say(type="subscribe", group="G", topic="T")
    await peer.frames_until("assigned")
    first, second = service.consumers.members
    assert (first.commits, first.is_left, second.is_left) == ([(0, 1)], True, False)
    await peer.hang_up()
    assert second.is_left


async def test_a_connection_that_ends_while_it_joins_or_leaves() -> None:
    service = Service()
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T")
    await asyncio.sleep(0.001)
    await peer.hang_up()
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T")
    await peer.frames_until("assigned")
    peer.say(type="unsubscribe", subscription="s1")
    await peer.frame()
    await peer.hang_up()
    assert all(member.is_left for member in service.consumers.members)


async def test_publishing() -> None:
    peer = await Peer(Service(publishes_pending_max=2)).welcomed()
    for number in range(3):
        peer.say(type="publish", id=number, topic="T", messages=[{"body": "a"}] * 2)
    refused = await peer.frame()
    assert (refused["id"], refused["problem"]["status"]) == (2, 429)
    assert [(await peer.frame())["stored"] for _ in range(2)] == [2, 2]
    peer.say(type="publish", id=3, topic="FULL", messages=[{"body": "a"}])
    failed = await peer.frame()
    assert (failed["id"], failed["problem"]["outcome"]) == (3, "not_stored")
    await peer.hang_up()


async def test_the_gateway_stops_reading_from_a_client_that_publishes_too_fast() -> None:
    peer = await Peer(Service(publishes_pending_bytes_max=50)).welcomed()
    for number in range(5):
        peer.say(type="publish", id=number, topic="T", messages=[{"body": "a"}])
    await asyncio.sleep(0.01)
    assert peer.waiting == 4
    assert [(await peer.frame())["id"] for _ in range(5)] == [0, 1, 2, 3, 4]
    await peer.hang_up()


async def test_the_gateway_stops_reading_from_a_client_that_reads_no_answers_and_then_closes_it() -> None:
    """256 publishes of 1,000 messages once left 50 MiB of answers."""
    service = Service(slow_consumer_ms=5_000)
    peer = await Peer(service).welcomed()
    (connection,) = service.endpoint._connections
    peer.is_reading.clear()
    for number in range(256):
        peer.say(type="publish", id=number, topic="T", messages=[{"body": "a"}] * 1_000)
    await asyncio.sleep(2)
    assert 3_000 <= service.publisher.stored <= 20_000
    assert peer.waiting > 200
    assert connection._outbox._bytes <= 4 * 1024 * 1024
    assert service.quotas.unsent_bytes.used == service.quotas.unsent_bytes.held_by("key-1") == connection._outbox._bytes
    await peer.task
    assert 5 <= asyncio.get_running_loop().time() < 15
    assert peer.transport.is_aborted
    assert service.quotas.unsent_bytes.used == 0


async def test_a_late_reader_gets_the_answer_to_every_publish() -> None:
    service = Service()
    peer = await Peer(service).welcomed()
    peer.is_reading.clear()
    for number in range(64):
        peer.say(type="publish", id=number, topic="T", messages=[{"body": "a"}] * 1_000)
    await asyncio.sleep(2)
    assert peer.waiting > 40
    peer.is_reading.set()
    assert sorted([(await peer.frame())["id"] for _ in range(64)]) == list(range(64))
    assert service.publisher.stored == 64_000
    await peer.hang_up()
    assert service.quotas.unsent_bytes.used == 0


async def test_a_stream_that_ends_amid_publishes_releases_all_its_memory() -> None:
    service = Service()
    peer = await Peer(service).welcomed()
    for number in range(3):
        peer.say(type="publish", id=number, topic="T", messages=[{"body": "a"}] * 10)
    await peer.hang_up()
    assert service.quotas.unsent_bytes.used == 0


async def test_answers_on_all_streams_of_a_key_are_bounded_and_a_neighbour_notices_nothing() -> None:
    share = 3 * 1024 * 1024
    service = Service(settings=GatewaySettings(key_unsent_bytes_max=share))
    peers = [await Peer(service).welcomed() for _ in range(20)]
    for peer in peers:
        peer.is_reading.clear()
        for number in range(10):
            peer.say(type="publish", id=number, topic="T", messages=[{"body": "a"}] * 1_000)
    await asyncio.sleep(2)
    quota = service.quotas.unsent_bytes
    assert quota.held_by("key-1") <= share + 64 * 1024
    assert quota.refused_each > 0
    neighbour = await Peer(service, key=THIRD_KEY).welcomed()
    neighbour.say(type="publish", id=1, topic="T", messages=[{"body": "a"}] * 1_000)
    assert (await neighbour.frame())["stored"] == 1_000
    peers[-1].is_reading.set()
    answers = [await peers[-1].frame() for _ in range(10)]
    refused = [answer["problem"] for answer in answers if answer["type"] == "error"]
    assert refused
    for problem in refused:
        assert (problem["status"], problem["outcome"], problem["retryable"]) == (429, "not_stored", True)
    told = sum(answer.get("stored", 0) for answer in answers)
    assert told == 1_000 * (10 - len(refused))
    for peer in [*peers, neighbour]:
        peer.is_reading.set()
        await peer.hang_up()
    assert quota.used == 0


async def test_messages_to_streams_of_one_key_stop_at_its_share_and_resume() -> None:
    share = 200 * 1024
    service = Service(messages=2_000, settings=GatewaySettings(key_unsent_bytes_max=share), slow_consumer_ms=10**6)
    slow = [await Peer(service).welcomed() for _ in range(10)]
    credit = {"messages": 100_000, "bytes": 10**9}
    for number, peer in enumerate(slow):
        peer.is_reading.clear()
        peer.say(type="subscribe", group=f"G{number}", topic="T", credit=credit)
    await asyncio.sleep(5)
    quota = service.quotas.unsent_bytes
    assert share <= quota.used <= share + 64 * 1024
    neighbour = await Peer(service, key=THIRD_KEY).welcomed()
    began_s = asyncio.get_running_loop().time()
    neighbour.say(type="subscribe", group="N", topic="T", credit=credit)
    await take_all(neighbour, 2_000)
    assert asyncio.get_running_loop().time() - began_s < 1
    for peer in slow:
        peer.is_reading.set()
    for peer in slow:
        await take_all(peer, 2_000)
    for peer in [*slow, neighbour]:
        await peer.hang_up()
    assert quota.used == 0


async def take_all(peer: Peer, count: int) -> None:
    while count > 0:
        count -= len((await peer.frames_until("messages"))[-1]["messages"])


async def test_messages_are_counted() -> None:
    service = Service(messages=50)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T", credit={"messages": 20})
    batch = (await peer.frames_until("messages"))[-1]
    peer.say(type="ack", subscription="s1", receipts=[batch["messages"][0]["receipt"]])
    peer.say(type="unsubscribe", subscription="s1")
    await asyncio.sleep(2)
    await peer.hang_up()
    assert service.metrics.counters == {"streams_opened": 1, "stream_messages": 21}


async def test_a_protocol_error_gets_a_goodbye_and_a_close() -> None:
    peer = await Peer(Service()).welcomed()
    peer.send_event(type="websocket.receive", bytes=b"\x80")
    assert (await peer.frame())["type"] == "goodbye"
    assert (await peer.event())["code"] == 4400
    await peer.task


async def test_a_revoked_key_ends_its_streams() -> None:
    service = Service()
    peer = await Peer(service).welcomed()
    service.keys.remove("key-1")
    goodbye = await peer.frame()
    assert goodbye["reason"] == "the key was revoked, or the session has ended"
    assert (await peer.event())["code"] == 4401
    assert asyncio.get_running_loop().time() < 30
    await peer.task
    assert not peer.transport.is_aborted


async def test_a_peer_that_does_not_read_is_closed() -> None:
    service = Service(messages=10**6, slow_consumer_ms=5_000)
    peer = await Peer(service).welcomed()
    peer.is_reading.clear()
    peer.say(type="subscribe", group="G", topic="T", credit={"messages": 100_000, "bytes": 10**9})
    await peer.task
    assert 5 <= asyncio.get_running_loop().time() < 15
    assert peer.transport.is_aborted
    (member,) = service.consumers.members
    assert member.is_left


async def test_a_peer_that_does_not_read_costs_the_same_for_many_queues() -> None:
    """Each queue once held a pull of 256 KiB, and all of them were written to the outbox at once."""
    service = Service(messages=10**6, queues=64)
    peer = await Peer(service).welcomed()
    (connection,) = service.endpoint._connections
    peer.is_reading.clear()
    peer.say(type="subscribe", group="G", topic="T", credit={"messages": 100_000, "bytes": 10**9})
    await asyncio.sleep(5)
    assert connection._outbox.is_full
    delivery = connection.session.delivery
    assert delivery.is_slow
    frame_bytes = 48 * 1024
    assert connection._outbox._bytes <= outbox.HIGH_BYTES + 2 * frame_bytes
    assert delivery.held_bytes <= SLOW_BYTES
    # This test lacks the socket buffer of uvicorn's transport.
    assert connection._outbox._bytes + delivery.held_bytes + SOCKET_BUFFER_BYTES <= 256 * 1024
    assert service.endpoint._shared.bytes == delivery.held_bytes
    peer.is_reading.set()
    await peer.hang_up()
    assert service.endpoint._shared.bytes == 0


async def test_an_ended_stream_releases_its_memory() -> None:
    service = Service(messages=10**6, queues=64)
    peer = await Peer(service).welcomed()
    peer.is_reading.clear()
    peer.say(type="subscribe", group="G", topic="T", credit={"messages": 100_000, "bytes": 10**9})
    await asyncio.sleep(0.5)
    assert service.endpoint._shared.bytes > 0
    peer.is_reading.set()
    await peer.hang_up()
    assert (service.endpoint._shared.bytes, service.quotas.waiting_queues.used) == (0, 0)


async def test_queues_beyond_the_limit_of_waiting_pulls_are_polled() -> None:
    service = Service(messages=0, queues=5, settings=GatewaySettings(key_waiting_queues_max=2))
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T")
    await peer.frames_until("assigned")
    await asyncio.sleep(5)
    assert service.quotas.waiting_queues.used == 2
    assert service.quotas.waiting_queues.refused_each >= 3
    (member,) = service.consumers.members
    assert member.pulls <= 5 + 2 + 3 * 10
    member.messages = 1
    queues = [(await peer.frames_until("messages"))[-1]["messages"][0]["queue_id"] for _ in range(5)]
    assert sorted(queues) == [0, 1, 2, 3, 4]
    await peer.hang_up()
    assert service.quotas.waiting_queues.used == 0


async def test_all_streams_together_hold_no_more_than_their_share() -> None:
    service = Service(messages=10**6, queues=16)
    service.endpoint._shared.bytes_max = 100_000
    peers = [await Peer(service).welcomed() for _ in range(4)]
    for peer in peers:
        peer.is_reading.clear()
        peer.say(type="subscribe", group="G", topic="T", credit={"messages": 100_000, "bytes": 10**9})
    await asyncio.sleep(0.9)
    assert service.endpoint._shared.bytes <= 100_000 + ALLOWANCE_BYTES
    for peer in peers:
        peer.is_reading.set()
        assert (await peer.frames_until("messages"))[-1]["messages"]
        await peer.hang_up()
    assert service.endpoint._shared.bytes == 0


@pytest.mark.parametrize("queues", [1, 16])
async def test_a_peer_that_pauses_reading_gets_everything_in_order(queues: int) -> None:
    service = Service(messages=2_000, queues=queues)
    peer = await Peer(service).welcomed()
    peer.is_reading.clear()
    peer.say(type="subscribe", group="G", topic="T", credit={"messages": 100_000, "bytes": 10**9})
    await asyncio.sleep(20)
    peer.is_reading.set()
    offsets: dict[int, list[str]] = {}
    for _ in range(2_000 * queues // 32 + queues):
        batch = (await peer.frames_until("messages"))[-1]["messages"]
        offsets.setdefault(batch[0]["queue_id"], []).extend(message["queue_offset"] for message in batch)
        if sum(map(len, offsets.values())) == 2_000 * queues:
            break
    assert offsets == {number: [str(offset) for offset in range(2_000)] for number in range(queues)}
    await peer.hang_up()


async def test_stopping_says_goodbye_to_all() -> None:
    service = Service(messages=1)
    peers = [await Peer(service).welcomed() for _ in range(3)]
    stopping = asyncio.ensure_future(service.endpoint.stop(timeout_ms=5_000))
    for peer in peers:
        goodbye = await peer.frame()
        assert goodbye["retry"]
        assert goodbye["after_ms"] > 0
        assert (await peer.event())["code"] == 1012
    await stopping
    assert (await refusal(Peer(service)))[0] == 503


async def test_stopping_does_not_wait_for_ever() -> None:
    service = Service()
    peer = await Peer(service).welcomed()
    peer.is_reading.clear()
    await service.endpoint.stop(timeout_ms=500)
    assert asyncio.get_running_loop().time() < 1
    await peer.task


class Bursts:
    """Sums the work of each turn of the event loop, and keeps the maximum."""

    def __init__(self) -> None:
        self.most = 0
        self._now = 0

    def add(self, size: int) -> None:
        if not self._now:
            asyncio.get_running_loop().call_soon(self._end)
        self._now += size
        self.most = max(self.most, self._now)

    def _end(self) -> None:
        self._now = 0


async def test_many_streams_with_large_backlogs_share_each_turn_of_the_loop() -> None:
    service = Service(messages=3_000)
    written = Bursts()
    peers = [await Peer(service, on_frame=written.add).welcomed() for _ in range(20)]
    for number, peer in enumerate(peers):
        peer.say(type="subscribe", group=f"G{number}", topic="T")
    for peer in peers:
        while (await peer.frame())["type"] != "state":
            pass  # Until the stream has no credit left.
    # Two turns of the loop may look like one from here.
    assert written.most <= 3 * TURN_BYTES
    for peer in peers:
        await peer.hang_up()


async def test_many_publishes_share_each_turn_of_the_loop() -> None:
    service = Service()
    begun, topics = Bursts(), []

    def begin(topic: str) -> None:
        begun.add(1)
        topics.append(topic)

    service.publisher.on_begin = begin
    peers = [await Peer(service).welcomed() for _ in range(20)]
    neighbour = await Peer(service, key=THIRD_KEY).welcomed()
    for peer in peers:
        for _ in range(20):
            peer.say(type="publish", topic="T", messages=[{"body": "x" * 100}] * 100)
    await asyncio.sleep(0)
    neighbour.say(type="publish", topic="NEIGHBOUR", messages=[{"body": "x"}])
    assert (await neighbour.frame())["type"] == "published"
    for peer in peers:
        for _ in range(20):
            assert (await peer.frame())["type"] == "published"
    assert begun.most <= 16
    assert topics.index("NEIGHBOUR") < 20
    for peer in [*peers, neighbour]:
        await peer.hang_up()
