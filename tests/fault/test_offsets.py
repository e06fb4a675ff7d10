"""A crash leaves committed offsets beyond the end of their queues: no group skips messages that are stored later."""

from pathlib import Path

from gantry.client.consumer.pull import PullConsumer
from gantry.client.producer import Producer
from gantry.model.message import Message, MessageQueue
from tests.fault.brokers import BROKER, broker
from tests.fault.load import client
from tests.support.brokerprocess import NamesrvProcess, peer_of
from tests.support.datasource import make_group

QUEUE = MessageQueue("T", BROKER, 0)


async def test_a_group_gets_what_is_stored_after_messages_were_lost(tmp_path: Path, namesrv: NamesrvProcess) -> None:
    """As after a power cut that took acknowledged messages of ASYNC_FLUSH, but not the offsets of their readers."""
    process = broker(tmp_path / BROKER, namesrv.address)
    offsets = tmp_path / BROKER / "store" / "config" / "consumerOffset.json"
    try:
        process.start()
        async with peer_of(process.address) as peer:
            await peer.make_topic("T", 2)
            await make_group(peer, "G")
            for number in range(3):
                await peer.send("T", b"%d" % number, queue_id=0)
        process.kill()
        offsets.write_bytes(b'{"offsetTable":{"T@G":{0:7,1:2},"Gone@G":{3:9}}}')
        process.start()
        assert process.log.count("were set back to it") == 2
        assert '"queues": {"0": "7 -> 3", "1": "2 -> 0"}' in process.log
        async with client(namesrv.address) as engine:
            consumer = PullConsumer(engine, "G")
            assert await consumer.committed_offset(QUEUE) == 3
            sent = await Producer(engine, "P").send(Message("T", b"later"), queue=QUEUE)
            assert sent.queue_offset == 3
        assert process.terminate() == 0
        assert b'"T@G":{0:3,1:0\n' in offsets.read_bytes()
    finally:
        process.kill()
