"""Benchmarks pops and acknowledgements over remoting: one client on one connection, 32 messages at a time.

A few tasks of the client pop messages of 100 bytes and acknowledge each pop with one request, until all messages are
done. The rate counts messages that are popped and acknowledged. The baseline is the rate of sends of the same messages
to the same broker.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence

import uvloop

from benchmarks import frames
from benchmarks.bench_remoting import QUEUES, TOPIC, broker, sends
from benchmarks.report import Row
from benchmarks.stack import address_of, scratch
from gantry.model.popreceipt import decode_message_offsets, decode_start_offsets
from gantry.remoting.aio import RemotingClient
from gantry.remoting.bodies.pop import BatchAck, BatchAckRequest, encode_offsets
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.pop import ANY_QUEUE, FROM_MIN, PopMessageHeader, PopMessageResponseHeader
from gantry.runtime.clock import SystemClock

MESSAGES_PER_POP = 32
TASKS = 8
RATE_MIN = 20_000
TIMEOUT_MS = 10_000
INVISIBLE_MS = 60_000


class PopClient:
    """One client of a group, with a connection to each broker.

    Attributes:
        done: Number of messages that were popped and acknowledged.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], group: str) -> None:
        self._client = RemotingClient(clock=SystemClock(), name="bench")
        self._addresses = [f"{host}:{port}" for host, port in addresses]
        self._group = group
        self.done = 0

    async def drain(self, count: int) -> None:
        """Pop and acknowledge until `count` messages are done."""
        try:
            await asyncio.gather(*(self._work(address, count) for address in self._addresses for _ in range(TASKS)))
        finally:
            await self._client.close()

    async def _work(self, address: str, count: int) -> None:
        while self.done < count:
            popped = await self._ask(address, RemotingCommand.request(RequestCode.POP_MESSAGE, self._header()))
            if popped.code != ResponseCode.SUCCESS:
                assert popped.code == ResponseCode.POLLING_TIMEOUT, popped.remark
                continue
            acks = self._acks(PopMessageResponseHeader.from_ext(popped.ext_fields))
            body = BatchAckRequest(acks=acks, broker_name="broker-a").encode()
            answer = await self._ask(address, RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, body=body))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert not answer.body, answer.body

    def _header(self) -> PopMessageHeader:
        return PopMessageHeader(
            consumer_group=self._group,
            topic=TOPIC,
            queue_id=ANY_QUEUE,
            max_msg_nums=MESSAGES_PER_POP,
            invisible_time=INVISIBLE_MS,
            poll_time=0,
            # Apache's broker answers a request that is older than half a second as if there were no message.
            born_time=int(time.time() * 1000),
            init_mode=FROM_MIN,
        )

    def _acks(self, popped: PopMessageResponseHeader) -> list[BatchAck]:
        starts = decode_start_offsets(popped.start_offset_info)
        acks: list[BatchAck] = []
        for (retry, queue_id), offsets in decode_message_offsets(popped.msg_offset_info).items():
            start = starts[retry, queue_id]
            self.done += len(offsets)
            acks.append(
                BatchAck(
                    mask=encode_offsets(start, offsets),
                    group=self._group,
                    invisible_ms=popped.invisible_time,
                    popped_at_ms=popped.pop_time,
                    queue_id=queue_id,
                    retry=retry,
                    revive_queue_id=popped.revive_qid,
                    start_offset=start,
                    topic=TOPIC,
                )
            )
        return acks

    async def _ask(self, address: str, command: RemotingCommand) -> RemotingCommand:
        return await self._client.invoke(address, command, timeout_ms=TIMEOUT_MS)


def pop_rate(addresses: Sequence[tuple[str, int]], count: int, group: str) -> float:
    """Return the messages per second that a new group pops and acknowledges, of at least `count` on each broker."""
    client = PopClient(addresses, group)
    started = time.perf_counter()
    uvloop.run(client.drain(count))
    # If more messages are stored, the tasks that pop at the end take a few of them.
    assert count <= client.done < count + len(addresses) * TASKS * MESSAGES_PER_POP, (
        f"{client.done} of {count} messages"
    )
    return client.done / (time.perf_counter() - started)


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    made = [frames.send_frame(TOPIC, number, queues=QUEUES) for number in range(640 if tiny else 40_000)]
    for mode in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        with scratch("pop") as folder, broker(folder, mode) as facts:
            address = address_of(facts)
            sent = sends(address, made).rate
            stored = len(made) + min(len(made), 5_000)  # `sends` warms up first.
            rate = max(pop_rate([address], stored, f"GID_pop_{number}") for number in range(1 if tiny else 2))
        reached = rate >= RATE_MIN if mode == "ASYNC_FLUSH" else None
        aim = f"≥ {RATE_MIN:,}" if mode == "ASYNC_FLUSH" else ""
        yield Row(f"pop + ack of 32, remoting, {mode}", rate, "messages/s", "send", sent, aim, reached)
