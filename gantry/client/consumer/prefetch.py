"""The pulls of a push consumer: one task for each queue pulls forward while there is room for more messages.

A pull that finds nothing is held by the broker until there is a message. A broker that can't be reached is asked again
after a second. If the group was deleted, the pulls wait for it (groupdeletion.py).

A damaged record is skipped, with an error in the log. Otherwise the queue would stop for ever.

Source: RocketMQ 5.3 DefaultMQPushConsumerImpl.pullMessage.

Concurrency: the event loop's thread.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from gantry.client.consumer.groupdeletion import PAUSE_MS_MIN, DeletionWatch
from gantry.client.consumer.heldmessages import HeldMessages, HeldQueue, Room
from gantry.client.consumer.pull import MESSAGES_DEFAULT, PullConsumer, PullResult, PullStatus
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError
from gantry.model.errors import RecordError
from gantry.model.group import SubscriptionData
from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.record import iter_records
from gantry.model.route import MASTER_ID
from gantry.remoting.codes import ResponseCode
from gantry.runtime.telemetry import logger

log = logger("client.listener")

SUSPEND_MS: Final = 15_000
"""Time for which a broker may hold a pull, as in RocketMQ."""
RETRY_MS: Final = 1_000
"""Time after a failed pull until the next one."""
WIDE_MESSAGES: Final = 256
"""Largest number of messages that a Gantry broker gives to one pull. Other brokers give 32."""
PULL_BYTES_MAX: Final = 256 * 1024


class Membership(Protocol):
    """The part of a group's member that pulls need (rebalance.py)."""

    def epoch(self, queue: MessageQueue) -> int:
        """Return the epoch of the latest reset that the member knows of a queue."""
        ...

    def reset(self, queue: MessageQueue, offset: int, epoch: int) -> None:
        """Go on at the offset of a reset."""
        ...


@dataclass(frozen=True, slots=True)
class _Pulling:
    """The task that pulls a queue."""

    task: asyncio.Task[None]
    subscription: SubscriptionData
    member: Membership


class Prefetch:
    """The pulls of one consumer."""

    def __init__(
        self,
        engine: ClientEngine,
        group: str,
        held: HeldMessages,
        *,
        deletion: DeletionWatch,
        on_messages: Callable[[], None],
    ) -> None:
        """Make them.

        Args:
            engine: The engine.
            group: The group.
            held: Gets the messages.
            deletion: Learns that the group was deleted.
            on_messages: Called when messages were added to `held`.
        """
        self._engine = engine
        self._consumer = PullConsumer(engine, group)
        self._group = group
        self._held = held
        self._deletion = deletion
        self._on_messages = on_messages
        self._tasks: dict[HeldQueue, _Pulling] = {}
        # Queues whose pull waits for room, and those of them that wait because of the limits of all queues together.
        self._waiting: dict[HeldQueue, asyncio.Event] = {}
        self._starving: dict[HeldQueue, None] = {}

    def start(self, held: HeldQueue, subscription: SubscriptionData, member: Membership) -> None:
        """Start to pull a queue."""
        task = self._engine.tasks.spawn(self._pull_all(held, subscription, member))
        self._tasks[held] = _Pulling(task, subscription, member)

    def restart(self, held: HeldQueue) -> None:
        """Pull a queue at once from its new offset, instead of what is under way."""
        pulling = self._tasks.get(held)
        # A pull that brought the news goes on by itself.
        if pulling is not None and pulling.task is not asyncio.current_task():
            self.stop(held)
            self.start(held, pulling.subscription, pulling.member)

    def stop(self, held: HeldQueue) -> None:
        """Stop to pull a queue."""
        pulling = self._tasks.pop(held, None)
        if pulling is not None:
            pulling.task.cancel()
        self._waiting.pop(held, None)
        self._starving.pop(held, None)

    def stop_all(self) -> None:
        """Stop all pulls."""
        for held in list(self._tasks):
            self.stop(held)

    def room_made(self, held: HeldQueue) -> None:
        """Wake the pulls that have room now, because messages of a queue have left."""
        if held in self._waiting and self._held.should_pull_again(held):
            self._wake(held)
        if self._starving and self._held.has_plenty:
            for each in list(self._starving):
                self._wake(each)

    def _wake(self, held: HeldQueue) -> None:
        self._starving.pop(held, None)
        self._waiting.pop(held).set()

    async def _pull_all(self, held: HeldQueue, subscription: SubscriptionData, member: Membership) -> None:
        broker_id, broker = MASTER_ID, held.queue.broker_name
        pause_ms = PAUSE_MS_MIN
        while not held.is_dropped:
            room = self._held.room(held)
            if room is None:
                event = self._waiting[held] = asyncio.Event()
                if self._held.is_full:
                    self._starving[held] = None
                await event.wait()
                continue
            generation = held.generation
            try:
                found = await self._pull(held, subscription, member, room, broker_id)
                if pause_ms > PAUSE_MS_MIN:
                    pause_ms = PAUSE_MS_MIN
                    self._deletion.ended(broker)
                if generation != held.generation:
                    continue  # The queue was dropped or reset meanwhile.
                if found.status is PullStatus.OFFSET_ILLEGAL and broker_id != MASTER_ID:
                    broker_id = MASTER_ID  # A slave may be behind.
                    continue
                broker_id = found.suggest_broker_id
                self._take(held, member, found)
            except ClientError as error:
                if isinstance(error, BrokerError) and error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    self._deletion.seen(error, source=broker)
                    pause_ms = await self._deletion.wait(pause_ms)
                    continue
                log.warning("pull failed", group=self._group, queue=str(held.queue), error=str(error))
            except Exception:  # boundary: a bug must not end the pulls of a queue for good.
                log.exception("pull failed", group=self._group, queue=str(held.queue))
            else:
                continue
            broker_id = MASTER_ID
            await asyncio.sleep(RETRY_MS / 1000)

    async def _pull(
        self, held: HeldQueue, subscription: SubscriptionData, member: Membership, room: Room, broker_id: int
    ) -> PullResult:
        return await self._consumer.pull(
            held.queue,
            held.window.next_offset,
            max_messages=min(MESSAGES_DEFAULT, room.messages),
            max_bytes=min(PULL_BYTES_MAX, room.bytes),
            expression=subscription,
            suspend_ms=SUSPEND_MS,
            broker_id=broker_id,
            wide_messages=min(WIDE_MESSAGES, room.messages),
            epoch=member.epoch(held.queue),
        )

    def _take(self, held: HeldQueue, member: Membership, found: PullResult) -> None:
        """Act on the answer to a pull."""
        if found.reset_epoch is not None:
            member.reset(held.queue, found.next_offset, found.reset_epoch)
        elif found.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "the queue goes on elsewhere",
                group=self._group,
                queue=str(held.queue),
                offset=held.window.next_offset,
                next_offset=found.next_offset,
            )
            self._held.restart(held, max(0, found.next_offset))
            self.room_made(held)
        else:
            messages, next_offset = self._read(held, found)
            self._held.add(held, messages, next_offset, now_ms=self._engine.clock.monotonic_ms())
            if messages:
                self._on_messages()

    def _read(self, held: HeldQueue, found: PullResult) -> tuple[list[StoredMessage], int]:
        """Return the messages of a pull that match, and the offset of the next pull."""
        messages: list[StoredMessage] = []
        at = held.window.next_offset
        try:
            for message in iter_records(found.body):
                at = message.queue_offset + 1
                if not message.crc.is_good:
                    self._report_damage(held, message.queue_offset, f"checksum: {message.crc.value}")
                elif found.subscription.matches_tag(message.tag):
                    messages.append(message)
        except RecordError as error:
            if at > held.window.next_offset:
                return messages, at  # The next pull begins with the damaged record.
            self._report_damage(held, at, str(error))
            return [], at + 1
        return messages, found.next_offset

    def _report_damage(self, held: HeldQueue, offset: int, reason: str) -> None:
        log.error("a damaged record is skipped", group=self._group, queue=str(held.queue), offset=offset, error=reason)
