"""Requests to a broker whose replies matter: sends of which the offset is needed, figures, reads of a whole topic."""

from collections.abc import Iterator, Mapping, Sequence

import uvloop

from benchmarks import frames
from benchmarks.load import frames_closed_loop
from gantry.model.message import StoredMessage
from gantry.model.record import iter_records
from gantry.remoting.bodies.tables import KVTable
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand, decode_frame

Address = tuple[str, int]
QUEUES = 4
PULL_MESSAGES = 32


def ask(address: Address, made: Sequence[bytes], *, in_flight: int = 8) -> list[RemotingCommand]:
    """Send all frames on one connection, and return the replies in the order of their arrival."""
    kept: list[bytes] = []
    result = uvloop.run(
        frames_closed_loop(address, made.__getitem__, in_flight=in_flight, requests=len(made), kept=kept)
    )
    replies = [decode_frame(reply) for reply in kept]
    assert result.failures == 0, f"{result.failures} of {len(made)} failed: {next(r for r in replies if r.code)}"
    return replies


def max_offsets(address: Address, topic: str) -> list[int]:
    """Return the number of messages in each queue of a topic."""
    asked = [
        frames.frame(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)}, queue_id)
        for queue_id in range(QUEUES)
    ]
    return [int(reply.ext_fields["offset"]) for reply in ask(address, asked, in_flight=1)]


def read_topic(address: Address, topic: str) -> Iterator[StoredMessage]:
    """Yield all messages of a topic, queue by queue."""
    for queue_id, end in enumerate(max_offsets(address, topic)):
        pulls = [frames.pull_frame(topic, at, at, queue_id=queue_id) for at in range(0, end, PULL_MESSAGES)]
        for reply in ask(address, pulls) if pulls else ():
            yield from iter_records(reply.body_bytes)


def runtime_figures(address: Address) -> Mapping[str, str]:
    """Return the figures of request 28."""
    (reply,) = ask(address, [frames.frame(RequestCode.GET_BROKER_RUNTIME_INFO, {}, 0)])
    return KVTable.decode(reply.body_bytes).table


def enqueue_lag(address: Address) -> int:
    """Return the number of timed messages that are stored but not in the wheel yet."""
    return int(runtime_figures(address)["timerOffsetBehind"])
