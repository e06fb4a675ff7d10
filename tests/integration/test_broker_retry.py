"""Delay levels and retries with a real broker process, in real time: the shortest level."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gantry.client.consumer.pull import PullConsumer
from gantry.client.consumer.sendback import SendBack
from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.model.message import Message, MessageQueue
from gantry.model.record import iter_records
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, peer_of, properties_text

SUSPEND = 4 | 2
LEVEL_1_S = 1.0


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesrvProcess]:
    with NamesrvProcess(tmp_path_factory.mktemp("namesrv")) as process:
        yield process


@contextlib.asynccontextmanager
async def client(namesrv: NamesrvProcess) -> AsyncIterator[ClientEngine]:
    engine = ClientEngine(ClientSettings(namesrv=(namesrv.address,)), clock=SystemClock(), rng=Rng())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def test_a_failed_message_comes_back_and_ends_as_a_dead_letter(namesrv: NamesrvProcess, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, namesrv=namesrv.address) as broker:
        async with peer_of(broker.address) as peer, client(namesrv) as engine:
            await peer.make_topic("T", queues=1)
            began_s = time.monotonic()
            await Producer(engine, "pg").send(Message("T", b"late", {"DELAY": "1"}))
            answer = await peer.pull("T", sys_flag=SUSPEND)
            assert LEVEL_1_S <= time.monotonic() - began_s < LEVEL_1_S + 2
            assert [message.body for message in iter_records(answer.body_bytes)] == [b"late"]

            consumer, back = PullConsumer(engine, "g"), SendBack(engine, "g", failures_max=1)
            queue = MessageQueue("T", "broker-a", 0)
            (message,) = (await consumer.pull(queue, 0)).messages()
            await back.send_back(message, "broker-a", delay_level=1)
            answer = await peer.pull("%RETRY%g", sys_flag=SUSPEND)
            (retry,) = iter_records(answer.body_bytes)
            assert (retry.body, retry.reconsume_times) == (b"late", 1)
            await back.send_back(retry, "broker-a")
            answer = await peer.pull("%DLQ%g", consumer_group="TOOLS_CONSUMER")
            (letter,) = iter_records(answer.body_bytes)
            assert (letter.body, letter.message_id) == (b"late", message.message_id)


@pytest.mark.parametrize("kills", [False, True])
async def test_waiting_messages_survive_the_process(namesrv: NamesrvProcess, tmp_path: Path, *, kills: bool) -> None:
    count = 50
    with BrokerProcess(tmp_path, namesrv=namesrv.address) as broker:
        async with peer_of(broker.address) as peer:
            await peer.make_topic("T", queues=1)
            sends = [peer.send("T", b"%d" % number, properties=properties_text(DELAY="1")) for number in range(count)]
            answers = await asyncio.gather(*sends)
            assert {answer.code for answer in answers} == {0}
        if kills:
            broker.kill()
    with BrokerProcess(tmp_path, namesrv=namesrv.address) as broker:
        async with peer_of(broker.address) as peer:
            found: set[bytes] = set()
            offset = 0
            async with asyncio.timeout(20):
                while len(found) < count:
                    answer = await peer.pull("T", offset, sys_flag=SUSPEND)
                    found |= {message.body for message in iter_records(answer.body_bytes)}
                    offset = int(answer.ext_fields["nextBeginOffset"])
            assert found == {b"%d" % number for number in range(count)}
