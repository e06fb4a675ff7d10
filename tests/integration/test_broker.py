"""The broker as a process, with a real name server: messages can be sent and read, and no acknowledged one is lost."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from gantry.model.batch import encode_batch
from gantry.model.record import iter_records
from gantry.remoting.aio import Channel
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand, encode_frame
from gantry.remoting.errors import RemotingError
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, Peer, peer_of, properties_text, wait_until
from tests.support.brokerunit import pull_header, send_header
from tests.support.heartbeats import consumer_beat

SUSPEND = 4 | 2


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesrvProcess]:
    with NamesrvProcess(tmp_path_factory.mktemp("namesrv")) as process:
        yield process


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, namesrv: NamesrvProcess) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), namesrv=namesrv.address) as process:
        yield process


@pytest.fixture
async def peer(broker: BrokerProcess) -> AsyncIterator[Peer]:
    async with peer_of(broker.address) as peer:
        yield peer


class TestMessages:
    async def test_a_message_is_read_as_it_was_sent(self, peer: Peer, broker: BrokerProcess) -> None:
        await peer.make_topic("Once")
        body = bytes(range(256)) * 16
        text = properties_text(UNIQ_KEY="K", TAGS="A", KEYS="k1 k2", name="välue ✓")
        answer = await peer.send("Once", body, properties=text, flag=9, queue_id=2)
        assert answer.code == 0
        (message,) = iter_records((await peer.pull("Once", queue_id=2)).body_bytes)
        assert (message.body, message.flag, message.tag, message.keys) == (body, 9, "A", ("k1", "k2"))
        assert message.properties["name"] == "välue ✓"
        assert message.stored_id == answer.ext_fields["msgId"]
        assert str(message.store_host) == broker.address
        by_id = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(message.physical_offset)})
        assert [found.body for found in iter_records(by_id.body_bytes)] == [body]

    async def test_auto_created_topics_get_a_route(self, peer: Peer, namesrv: NamesrvProcess) -> None:
        assert (await peer.send("MadeBySend")).code == 0

        async def is_known() -> bool:
            return await peer.route("MadeBySend", namesrv.address) == [peer.address]

        await wait_until(is_known, "a route of MadeBySend")

    async def test_a_created_topic_has_its_route_when_the_tool_is_answered(
        self, peer: Peer, namesrv: NamesrvProcess
    ) -> None:
        await peer.make_topic("MadeByTool")
        assert await peer.route("MadeByTool", namesrv.address) == [peer.address]

    async def test_batches_keep_their_order(self, peer: Peer) -> None:
        await peer.make_topic("Batched", queues=1)
        for first in range(0, 300, 100):
            items = [(0, b"%d" % number, b"") for number in range(first, first + 100)]
            header = send_header("Batched", batch=True)
            answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body=encode_batch(items))
            assert (answer.code, answer.ext_fields["queueOffset"]) == (0, str(first))
        assert await peer.read_all("Batched") == [b"%d" % number for number in range(300)]

    async def test_many_concurrent_sends_are_all_stored(self, peer: Peer) -> None:
        await peer.make_topic("Many", queues=1)
        sends = [peer.send("Many", b"%04d" % number) for number in range(500)]
        answers = await asyncio.gather(*sends)
        assert {answer.code for answer in answers} == {0}
        offsets = sorted(int(answer.ext_fields["queueOffset"]) for answer in answers)
        assert offsets == list(range(500))
        assert sorted(await peer.read_all("Many")) == [b"%04d" % number for number in range(500)]

    async def test_a_held_pull_is_answered_by_the_next_message(self, peer: Peer) -> None:
        await peer.make_topic("Held", queues=1)
        waiting = asyncio.ensure_future(peer.pull("Held", sys_flag=SUSPEND))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await peer.send("Held", b"news")
        async with asyncio.timeout(2):
            answer = await waiting
        assert [message.body for message in iter_records(answer.body_bytes)] == [b"news"]

    async def test_an_instance_is_notified_of_another_one(self, broker: BrokerProcess) -> None:
        told = asyncio.Event()

        def notified(channel: Channel, request: RemotingCommand) -> None:
            if request.ext_fields["consumerGroup"] == "together":
                told.set()

        async with peer_of(broker.address, {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: notified}) as one:
            await one.ask(RequestCode.HEART_BEAT, body=consumer_beat("a@1", "together", "T"))
            async with asyncio.timeout(5):
                await told.wait()
            told.clear()
            async with peer_of(broker.address) as two:
                await two.ask(RequestCode.HEART_BEAT, body=consumer_beat("b@2", "together", "T"))
                async with asyncio.timeout(5):
                    await told.wait()
                answer = await one.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": "together"})
                assert answer.body == b'{"consumerIdList":["a@1","b@2"]}'
                told.clear()
            async with asyncio.timeout(5):
                await told.wait()


class TestBadInput:
    async def test_a_bad_request_is_answered_and_the_connection_lives(self, peer: Peer) -> None:
        for code in (10, 11, 12, 14, 15, 17, 29, 30, 33, 34, 35, 38, 202, 208, 310, 315, 320, 361):
            answer = await peer.ask(code, ext={"queueId": "x"}, body=b"\xff\xfe")
            assert answer.code == ResponseCode.SYSTEM_ERROR, (code, answer)
            assert "header field" in str(answer.remark) or "body" in str(answer.remark), answer.remark
        assert peer.client.counters.connections_opened == 1

    async def test_garbage_closes_only_its_own_connection(self, peer: Peer, broker: BrokerProcess) -> None:
        await peer.make_topic("Garbage", queues=1)
        await peer.send("Garbage", b"before")
        host, port = broker.address.split(":")
        for garbage in (b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x0c\x05\0\0\x04abcdefgh"):
            with socket.create_connection((host, int(port)), timeout=5) as raw:
                raw.sendall(garbage)
                with contextlib.suppress(ConnectionResetError):
                    assert raw.recv(100) == b""
        await peer.send("Garbage", b"after")
        assert await peer.read_all("Garbage") == [b"before", b"after"]


class TestStopAndCrash:
    async def test_an_orderly_stop_answers_held_requests_and_leaves_nothing_behind(
        self, tmp_path: Path, namesrv: NamesrvProcess
    ) -> None:
        with BrokerProcess(tmp_path, namesrv=namesrv.address, name="broker-stop") as broker:
            async with peer_of(broker.address) as peer:
                await peer.make_topic("Stopped", queues=1)
                sent = await asyncio.gather(*(peer.send("Stopped", b"%d" % number) for number in range(50)))
                held = asyncio.ensure_future(peer.pull("Stopped", 50, sys_flag=SUSPEND))
                await asyncio.sleep(0.2)
                code = await asyncio.to_thread(broker.terminate)
                assert code == 0, broker.log
                assert (await held).code == ResponseCode.PULL_NOT_FOUND
                assert {answer.code for answer in sent} == {0}
                assert await peer.route("Stopped", namesrv.address) == []
            assert not (broker.store / "abort").exists()
            broker.start()
            async with peer_of(broker.address) as peer:
                assert len(await peer.read_all("Stopped")) == 50
                answer = await peer.send("Stopped", b"again")
                assert answer.ext_fields["queueOffset"] == "50"

    @pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
    async def test_kill_9_loses_nothing_that_was_acknowledged(self, tmp_path: Path, flush: str) -> None:
        environment = {"GANTRY_BROKER_FLUSH_DISK_TYPE": flush}
        with BrokerProcess(tmp_path, environment=environment) as broker:
            acknowledged: list[bytes] = []
            for life in range(3):
                async with peer_of(broker.address) as peer:
                    await peer.make_topic("Killed", queues=1)
                    senders = [
                        asyncio.ensure_future(_send_until_gone(peer, life * 10 + number, acknowledged))
                        for number in range(8)
                    ]
                    await asyncio.sleep(0.4)
                    await asyncio.to_thread(broker.kill)
                    await asyncio.gather(*senders)
                broker.start()
            async with peer_of(broker.address) as peer:
                found = await peer.read_all("Killed")
            assert len(acknowledged) > 100
            assert set(acknowledged) <= set(found)
            assert len(found) == len(set(found))
            for sender in {body[:3] for body in acknowledged}:
                own = [body for body in found if body[:3] == sender]
                assert own == sorted(own)

    async def test_a_kill_just_before_the_answer_keeps_the_message(self, tmp_path: Path) -> None:
        failpoint = {"GANTRY_FAILPOINTS": "broker.before_reply:1"}
        with BrokerProcess(tmp_path, environment=failpoint) as broker:
            async with peer_of(broker.address) as peer:
                await peer.make_topic("Failpoint", queues=1)
                with pytest.raises(RemotingError):
                    await peer.send("Failpoint", b"flushed, not answered")
        with BrokerProcess(tmp_path) as broker:
            async with peer_of(broker.address) as peer:
                assert await peer.read_all("Failpoint") == [b"flushed, not answered"]

    async def test_committed_offsets_survive_a_stop_and_a_kill_after_five_seconds(self, tmp_path: Path) -> None:
        environment = {"GANTRY_BROKER_FLUSH_CONSUMER_OFFSET_INTERVAL": "200"}
        with BrokerProcess(tmp_path, environment=environment) as broker:
            async with peer_of(broker.address) as peer:
                await peer.make_topic("Offsets")
                await peer.ask(RequestCode.HEART_BEAT, body=consumer_beat("a@1", "g", "Offsets"))
                for _ in range(6):
                    await peer.send("Offsets", queue_id=1)
                ext = {"consumerGroup": "g", "topic": "Offsets", "queueId": "1", "commitOffset": "5"}
                assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext)).code == 0
                await wait_until(_is_written(broker, b'"Offsets@g":{1:5'), "the offset in its file")
            broker.kill()
            broker.start()
            async with peer_of(broker.address) as peer:
                answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext=ext)
                assert answer.ext_fields["offset"] == "5"
                await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext={**ext, "commitOffset": "6"})
            broker.terminate()
            broker.start()
            async with peer_of(broker.address) as peer:
                answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext=ext)
                assert answer.ext_fields["offset"] == "6"


async def _send_until_gone(peer: Peer, sender: int, acknowledged: list[bytes]) -> None:
    for number in range(100_000):
        body = b"%02d-%06d" % (sender, number)
        try:
            answer = await peer.send("Killed", body)
        except RemotingError:
            return
        if answer.code == 0:
            acknowledged.append(body)


def _is_written(broker: BrokerProcess, text: bytes) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        path = broker.store / "config" / "consumerOffset.json"
        return path.exists() and text in path.read_bytes()

    return look


class TestOverTheWire:
    async def test_a_frame_byte_by_byte_and_many_in_one(self, peer: Peer, broker: BrokerProcess) -> None:
        await peer.make_topic("Pieces", queues=1)
        host, port = broker.address.split(":")
        frames = []
        for number in range(20):
            command = RemotingCommand.request(310, send_header("Pieces"), body=b"%d" % number, one_way=True)
            frames.append(encode_frame(command))
        last = RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header("Pieces"))
        reader, writer = await asyncio.open_connection(host, int(port))
        for index in range(len(frames[0])):
            writer.write(frames[0][index : index + 1])
            await writer.drain()
        writer.write(b"".join([*frames[1:], encode_frame(last)]))
        await writer.drain()
        async with asyncio.timeout(10):
            await reader.readexactly(8)
        writer.close()
        await writer.wait_closed()

        async def all_there() -> bool:
            return await peer.read_all("Pieces") == [b"%d" % number for number in range(20)]

        await wait_until(all_there, "twenty messages in order")
