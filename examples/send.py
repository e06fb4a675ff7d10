"""Send a message: `python -m examples.send TOPIC TEXT [--tag TAG] [--data DIR]`.

The program creates the topic if it does not exist.
"""

import argparse
import sys

from gantry.http import GantryClient, GantryError, GantryProblem, OutgoingMessage


def main() -> int:
    """Send the message and print its position."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic")
    parser.add_argument("text")
    parser.add_argument("--tag")
    parser.add_argument("--data", default=".gantry", metavar="DIR", help="folder of the stack (default .gantry)")
    arguments = parser.parse_args()
    message = OutgoingMessage(arguments.text, tag=arguments.tag)
    try:
        with GantryClient.from_stack(arguments.data) as client:
            try:
                sent = client.send(arguments.topic, message)
            except GantryProblem as problem:
                if problem.name != "unknown-topic":
                    raise
                client.put_topic(arguments.topic)
                sent = client.send(arguments.topic, message)
    except GantryError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{sent.outcome}: {sent.message_id} in {sent.broker}, queue {sent.queue_id}, offset {sent.queue_offset}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
