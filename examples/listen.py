"""Process the messages of a topic with a listener: `python -m examples.listen TOPIC [--orderly] [--broadcast DIR]`.

The program uses the native client, which speaks RocketMQ's protocol with the brokers. It creates the topic if it does not
exist. A message may come twice, so the work of a listener should be safe to repeat. A message with the body `fail` fails
once: it comes again after 10 s or, with `--orderly`, holds up its queue for a second.

With `--broadcast DIR`, every program of the group gets every message. Each keeps its offsets in this folder, under its
`--name`. A message that fails is skipped then.
"""

import argparse
import asyncio
import sys

from gantry.client import ClientEngine, ClientError, ClientSettings, LocalOffsets, PushConsumer, StartPosition
from gantry.http import GantryClient, GantryError
from gantry.http.stack import read_stack
from gantry.model.group import ConsumeFromWhere, MessageModel
from gantry.model.message import StoredMessage
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from gantry.runtime.telemetry import configure_logging


async def listen_to(namesrv: list[str], arguments: argparse.Namespace) -> None:
    """Process messages until `--count` of them were processed."""
    processed = 0
    is_done = asyncio.Event()

    async def listen(message: StoredMessage) -> None:
        nonlocal processed
        body = message.inflated_body().decode("utf-8", "replace")
        if body == "fail" and not message.reconsume_times:
            raise ValueError("this message fails once")
        print(f"{message.topic}/{message.queue_id}@{message.queue_offset} failed {message.reconsume_times}: {body}")
        processed += 1
        if processed == arguments.count:
            is_done.set()

    engine = ClientEngine(ClientSettings(namesrv=tuple(namesrv)), clock=SystemClock(), rng=Rng())
    await engine.start()
    is_broadcasting = arguments.broadcast is not None
    consumer = PushConsumer(
        engine,
        arguments.group,
        [arguments.topic],
        listen,
        is_orderly=arguments.orderly,
        message_model=MessageModel.BROADCASTING if is_broadcasting else MessageModel.CLUSTERING,
        local_offsets=LocalOffsets(arguments.broadcast) if is_broadcasting else None,
        client_id=arguments.name if is_broadcasting else None,
        start=StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
    )
    try:
        async with consumer:
            await is_done.wait()
    finally:
        await engine.stop()


def main() -> int:
    """Listen until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic")
    parser.add_argument("--group", default="EXAMPLES")
    parser.add_argument("--orderly", action="store_true", help="process the messages of a queue one after the other")
    parser.add_argument("--broadcast", metavar="DIR", help="get every message, and keep the offsets in this folder")
    parser.add_argument("--name", default="listener", help="name of this program in the group, with --broadcast")
    parser.add_argument("--count", type=int, help="end after so many messages")
    parser.add_argument("--data", default=".gantry", metavar="DIR", help="folder of the stack (default .gantry)")
    arguments = parser.parse_args()
    configure_logging(service="listen")  # The client's log goes to stderr.
    try:
        with GantryClient.from_stack(arguments.data) as client:
            client.put_topic(arguments.topic)
        namesrv = read_stack(arguments.data).namesrv
        asyncio.run(listen_to(namesrv, arguments))
    except (GantryError, ClientError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
