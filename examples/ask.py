"""Ask a question and print the reply: `python -m examples.ask TOPIC TEXT [--data DIR]`.

The program has both sides. It consumes the topic, replies to each message with the text in capitals, and sends one
message that it waits for the reply to. It creates the topic if it does not exist.
"""

import argparse
import asyncio
import sys

from gantry.client.consumer.pull import PullConsumer
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.client.producer import Producer
from gantry.client.requestreply import Requester, reply_to
from gantry.client.settings import ClientSettings
from gantry.http import GantryClient, GantryError
from gantry.http.stack import read_stack
from gantry.model.message import Message, MessageQueue
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng

TIMEOUT_MS = 10_000


async def answer(consumer: PullConsumer, producer: Producer, queue: MessageQueue, offset: int) -> None:
    """Reply to the messages of a queue from an offset on, until cancelled."""
    while True:
        found = await consumer.pull(queue, offset, suspend_ms=1_000)
        for message in found.messages():
            await producer.send(reply_to(message, message.inflated_body().upper()))
        offset = found.next_offset


async def ask(namesrv: list[str], topic: str, text: str) -> str:
    """Send the text as a request to a topic that this program answers itself; return the reply."""
    engine = ClientEngine(ClientSettings(namesrv=tuple(namesrv)), clock=SystemClock(), rng=Rng())
    await engine.start()
    try:
        producer = Producer(engine, "EXAMPLES")
        await producer.start()
        consumer = PullConsumer(engine, "EXAMPLES")
        starts = {queue: await consumer.offsets.max_offset(queue) for queue in await engine.subscribe_queues(topic)}
        answering = [asyncio.ensure_future(answer(consumer, producer, *start)) for start in starts.items()]
        reply = await Requester(engine, producer).request(Message(topic, text.encode()), timeout_ms=TIMEOUT_MS)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        return reply.inflated_body().decode()
    finally:
        await engine.stop()


def main() -> int:
    """Ask, and print the reply."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic")
    parser.add_argument("text")
    parser.add_argument("--data", default=".gantry", metavar="DIR", help="folder of the stack (default .gantry)")
    arguments = parser.parse_args()
    try:
        with GantryClient.from_stack(arguments.data) as client:
            client.put_topic(arguments.topic)
        print(asyncio.run(ask(read_stack(arguments.data).namesrv, arguments.topic, arguments.text)))
    except (GantryError, ClientError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
