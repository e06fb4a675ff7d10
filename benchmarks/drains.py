"""Groups that drain a backlog on a real stack, each by a plan of its own.

A group has one member, which joins by heart-beats. The member pulls up to 32 messages from each queue in turn, takes time
for each message, and commits its progress every `commit_s`. Meanwhile new messages come in. Both rates wander: their
logarithms are Ornstein-Uhlenbeck processes. The seed determines every number of a plan.
"""

import asyncio
import itertools
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gantry.client.admin import Admin
from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.client.consumer.rebalance import GroupMember
from gantry.client.consumer.starts import Assignment, StartPosition
from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.model.group import ConsumeFromWhere, SubscriptionData, SubscriptionGroup
from gantry.model.message import Message, MessageQueue
from gantry.model.topic import TopicConfig

BODY = bytes(range(32, 96))
FILL_BATCH = 500
SEND_S = 0.5, 1.5
"""The time between two sends without bursts, from and to."""
STEP_S = 0.5
"""The mean time between two steps of a member. Commits are at least this far apart."""
EMPTY_S = 0.2
"""The pause of a member after it found all of its queues empty."""
LAYOUTS = ((1, 1), (2, 1), (2, 2))
"""Brokers of a topic, and queues on each of them."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The behaviour of a group and of its producer.

    Attributes:
        speed: Range of the mean consume rate, in messages a second.
        spread: Standard deviation of the logarithm of both rates.
        keeps_s: Correlation time of both rates.
        incoming: Mean produce rate, as a share of the consume rate.
        burst_s: Mean time between two bursts of new messages; 0: a send about every second.
        commit_s: Time between two commits.
    """

    speed: tuple[float, float]
    spread: float
    keeps_s: float
    incoming: float
    burst_s: float
    commit_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one group.

    Attributes:
        name: Name of the group and of its topic.
        kind: Behaviour of the group.
        speed: Mean consume rate, in messages a second.
        backlog: Messages sent before the start.
        starts_s: Start, in seconds after the start of the run.
        lasts_s: Duration at mean rates.
        report: Index of the report with the group's forecast.
        brokers: Number of brokers with the topic.
        queues: Number of queues on each of them.
        seed: Seed of everything random during the drain.
    """

    name: str
    kind: Kind
    speed: float
    backlog: int
    starts_s: float
    lasts_s: float
    report: int
    brokers: int
    queues: int
    seed: str


class Pace:
    """A rate that wanders around its mean."""

    def __init__(self, rate: float, kind: Kind, rng: random.Random) -> None:
        self._rate, self._kind, self._rng = rate, kind, rng
        self._level = rng.gauss(0, 1)

    def after(self, seconds: float) -> float:
        """Return the rate `seconds` after the last call."""
        kept = math.exp(-seconds / self._kind.keeps_s)
        self._level = kept * self._level + math.sqrt(1 - kept * kept) * self._rng.gauss(0, 1)
        spread = self._kind.spread
        return self._rate * math.exp(spread * self._level - spread**2 / 2)


class Drain:
    """One group that drains its backlog.

    Attributes:
        plan: Plan of the group.
        ended_at: Wall time in seconds of the first commit that left no lag; None before.
        consumed: Consumed messages.
        late_s: Largest delay of a step behind its due time, which shows a machine that is too busy.
    """

    def __init__(self, engine: ClientEngine, plan: Plan) -> None:
        self.plan = plan
        self.ended_at: float | None = None
        self.late_s = 0.0
        self._engine = engine
        self._producer = Producer(engine, "PID_drains")
        self._consumer = PullConsumer(engine, plan.name)
        self._member = GroupMember(
            engine,
            plan.name,
            [SubscriptionData(plan.name)],
            client_id=engine.client_id,
            on_change=self._take,
            start=StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
        )
        self._queues: list[MessageQueue] = []
        self._sent: dict[MessageQueue, int] = {}
        self._place: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}

    @property
    def consumed(self) -> int:
        """Consumed messages."""
        return sum(self._place.values())

    async def fill(self, admin: Admin, brokers: Sequence[str]) -> None:
        """Create the topic and the group, and send the backlog in equal parts to all queues."""
        plan = self.plan
        await admin.create_topic(TopicConfig(plan.name, plan.queues, plan.queues), brokers)
        await admin.put_group(SubscriptionGroup(plan.name))
        self._queues = [MessageQueue(plan.name, broker, queue) for broker in brokers for queue in range(plan.queues)]
        await self._engine.route(plan.name, refresh=True)
        for number, queue in enumerate(self._queues):
            self._sent[queue] = 0
            share = (plan.backlog + number) // len(self._queues)
            while left := share - self._sent[queue]:
                await self._send(queue, min(FILL_BATCH, left))

    async def run(self) -> None:
        """Join the group, and consume and produce until a commit leaves no lag. Raises ClientError."""
        await asyncio.sleep(self.plan.starts_s)
        await self._member.start()
        try:
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(self._produce()), group.create_task(self._consume())]
                await self._commit()
                for other in others:
                    other.cancel()
        finally:
            await self._member.close()

    async def check(self) -> None:
        """Raise AssertionError if the offsets on the brokers differ from what was sent and committed."""
        for queue in self._queues:
            found = await self._consumer.committed_offset(queue), await self._consumer.max_offset(queue)
            assert found == (self._committed[queue], self._sent[queue]), f"{queue}: {found}"

    # Inside

    async def _take(self, assigned: Sequence[Assignment], revoked: Sequence[MessageQueue]) -> None:
        assert not revoked, "the group has one member"
        self._place |= {one.queue: one.next_offset for one in assigned}
        self._committed |= self._place

    async def _send(self, queue: MessageQueue, count: int) -> None:
        # Counted first, so that a drain does not end while a send is under way.
        self._sent[queue] += count
        await self._producer.send_batch(queue.topic, [Message(queue.topic, BODY)] * count, queue=queue)

    async def _produce(self) -> None:
        """Send new messages to each queue in turn."""
        kind, rng = self.plan.kind, self._rng("produce")
        rate = self.plan.speed * kind.incoming
        pace, due = Pace(rate, kind, rng), time.monotonic()
        for queue in itertools.cycle(self._queues):
            wait_s = rng.expovariate(1 / kind.burst_s) if kind.burst_s else rng.uniform(*SEND_S)
            burst = rng.expovariate(1 / (rate * kind.burst_s)) if kind.burst_s else pace.after(wait_s) * wait_s
            due += wait_s
            await self._until(due)
            if count := _poisson(burst, rng):
                # The end of the drain must not cancel a send: `check` has to know what is stored.
                await asyncio.shield(asyncio.ensure_future(self._send(queue, count)))

    async def _consume(self) -> None:
        """Pull from all queues in turn, and consume what is there."""
        rng = self._rng("consume")
        pace, due = Pace(self.plan.speed, self.plan.kind, rng), time.monotonic()
        took_s = 0.0
        while True:
            before = self.consumed
            for queue in self._queues:
                found = await self._consumer.pull(queue, self._place[queue])
                if found.status is not PullStatus.FOUND:
                    continue
                left = found.next_offset - self._place[queue]
                while left:
                    speed = pace.after(took_s)
                    count = min(left, max(1, round(speed * STEP_S)))
                    # Each message takes an exponential time. The sum has a gamma distribution.
                    took_s = rng.gammavariate(count, 1 / speed)
                    due += took_s
                    await self._until(due)
                    left -= count
                    self._place[queue] += count
            if self.consumed == before:
                await asyncio.sleep(EMPTY_S)
                # An idle member does not catch up on idle time.
                due = time.monotonic()

    async def _commit(self) -> None:
        """Commit every `commit_s` until a commit leaves no lag."""
        commit_s = self.plan.kind.commit_s
        due = time.monotonic() + self._rng("commit").uniform(0, commit_s)
        while self.ended_at is None:
            await self._until(due)
            due += commit_s
            await asyncio.gather(*(self._commit_one(queue) for queue in self._queues))

    async def _commit_one(self, queue: MessageQueue) -> None:
        place = self._place[queue]
        if place != self._committed[queue]:
            await self._member.commit(queue, place)
            self._committed[queue] = place
        if self.ended_at is None and self._committed == self._sent:
            self.ended_at = time.time()

    async def _until(self, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        self.late_s = max(self.late_s, time.monotonic() - due)

    def _rng(self, use: str) -> random.Random:
        return random.Random(f"{self.plan.seed} {use}")


def _poisson(mean: float, rng: random.Random) -> int:
    """Draw from a Poisson distribution."""
    count, at = 0, rng.expovariate(1)
    while at < mean:
        count, at = count + 1, at + rng.expovariate(1)
    return count
