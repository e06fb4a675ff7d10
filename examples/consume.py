"""Print the messages of a topic: `python -m examples.consume TOPIC [--group G] [--count N] [--data DIR]`.

If you start it twice with the same group, the two share the topic's queues. If you interrupt it before it has
acknowledged a message, the message comes again.
"""

import argparse
import asyncio
import sys

from gantry.http import GantryError, StreamClient


async def consume(data: str, topic: str, group: str, expression: str, count: int | None) -> None:
    """Print messages until `count` of them have come."""
    seen = 0
    async with StreamClient.from_stack(data, client_name="examples.consume") as stream:
        subscription = await stream.subscribe(group, topic, expression=expression, start="first")
        async for batch in subscription:
            for message in batch.messages:
                body = message.body.decode("utf-8", "replace")
                print(f"{message.broker}/{message.queue_id}@{message.queue_offset} [{message.tag or '-'}] {body}")
            seen += len(batch)
            is_last = count is not None and seen >= count
            await subscription.ack(batch, wait=is_last)
            if is_last:
                return


def main() -> int:
    """Consume until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic")
    parser.add_argument("--group", default="EXAMPLES")
    parser.add_argument("--filter", default="*", help="tags, separated by ||")
    parser.add_argument("--count", type=int, help="end after so many messages")
    parser.add_argument("--data", default=".gantry", metavar="DIR", help="folder of the stack (default .gantry)")
    arguments = parser.parse_args()
    work = consume(arguments.data, arguments.topic, arguments.group, arguments.filter, arguments.count)
    try:
        asyncio.run(work)
    except GantryError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
