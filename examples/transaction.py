"""Send a message in a transaction: `python -m examples.transaction NAMESRV TOPIC TEXT [--roll-back]`.

The topic must exist. The decision would normally come from the application's own transaction, for example in a
database; the check then looks there.
"""

import argparse
import asyncio
import sys

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.client.sendrequest import SendResult
from gantry.client.settings import ClientSettings
from gantry.client.transactionchecks import Decision
from gantry.client.transactions import TransactionProducer
from gantry.model.message import Message, StoredMessage
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng


async def send(name_server: str, topic: str, text: str, decision: Decision) -> None:
    """Send the half message, decide, and print the result. Raises ClientError."""

    async def execute(half: SendResult) -> Decision:
        return decision

    async def check(half: StoredMessage) -> Decision:
        return decision

    engine = ClientEngine(ClientSettings(namesrv=(name_server,)), clock=SystemClock(), rng=Rng())
    await engine.start()
    try:
        producer = TransactionProducer(engine, "example-transactions", check)
        await producer.start()
        result = await producer.send_transaction(Message(topic, text.encode()), execute)
        await producer.close()
    finally:
        await engine.stop()
    print(f"{result.decision.name}: {result.half.message_id} in {result.half.queue.broker_name}")


def main() -> int:
    """Send the message of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("namesrv")
    parser.add_argument("topic")
    parser.add_argument("text")
    parser.add_argument("--roll-back", action="store_true")
    arguments = parser.parse_args()
    decision = Decision.ROLLBACK if arguments.roll_back else Decision.COMMIT
    try:
        asyncio.run(send(arguments.namesrv, arguments.topic, arguments.text, decision))
    except ClientError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
