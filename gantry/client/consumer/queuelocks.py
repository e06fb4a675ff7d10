"""The queue locks of one member of a group that consumes in order.

Theory of operation. A broker gives each queue to one client of a group. It keeps a lock for 60 s after the last renewal.
The member renews its locks every 20 s, and trusts a lock for 30 s only. So a member that can't reach a broker stops
before another member can get the queue:

    lock ──20 s──▶ renew ──▶ …      the broker refuses: another member has the queue          ──▶ lost
                     │              no answer: again each second, until 30 s after the lock   ──▶ lost

The time of a lock counts from before the request, because the broker may have taken it at any time since then.

Source: RocketMQ 5.3 RebalanceImpl.

Concurrency: the event loop's thread.
"""

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from gantry.client.answers import read_body
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.message import MessageQueue
from gantry.remoting.bodies import LockedQueues, LockRequest
from gantry.remoting.codes import RequestCode
from gantry.runtime.telemetry import logger

log = logger("client.locks")

RENEWAL_MS: Final = 20_000
VALID_MS: Final = 30_000
RETRY_MS: Final = 1_000
TIMEOUT_MS: Final = 1_000
"""Time-out of a request, as in RocketMQ."""


class MemberLocks:
    """The locks of a member, on all brokers."""

    def __init__(self, engine: ClientEngine, group: str, client_id: str) -> None:
        self._engine = engine
        self._group = group
        self._client_id = client_id
        # Monotonic time of the request that took or renewed the lock.
        self._locked_ms: dict[MessageQueue, int] = {}

    async def lock(self, queues: Collection[MessageQueue]) -> tuple[set[MessageQueue], ClientError | None]:
        """Lock queues, or renew their locks. Return the locked ones, and the error of a broker that did not answer."""
        names = sorted({queue.broker_name for queue in queues})
        found = await asyncio.gather(
            *(self._lock([queue for queue in queues if queue.broker_name == name]) for name in names)
        )
        locked = {queue for each in found if not isinstance(each, ClientError) for queue in each}
        return locked, next((each for each in found if isinstance(each, ClientError)), None)

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Give queues back. The locks on a broker that can't be reached expire by themselves."""
        for queue in queues:
            self._locked_ms.pop(queue, None)

        async def unlock_on(name: str) -> None:
            body = self._body(queue for queue in queues if queue.broker_name == name)
            try:
                address = self._engine.master_address(name)
                await self._engine.call(address, RequestCode.UNLOCK_BATCH_MQ, body=body, timeout_ms=TIMEOUT_MS)
            except ClientError as error:
                log.info("queues not unlocked", group=self._group, broker=name, error=str(error))

        await asyncio.gather(*(unlock_on(name) for name in {queue.broker_name for queue in queues}))

    async def unlock_all(self) -> None:
        """Give all queues back."""
        await self.unlock(list(self._locked_ms))

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether the member may trust its lock of a queue."""
        at_ms = self._locked_ms.get(queue)
        return at_ms is not None and self._engine.clock.monotonic_ms() - at_ms < VALID_MS

    async def renew(self) -> list[MessageQueue]:
        """Renew the locks that are due. Return the queues that were lost: refused, or not renewed in time."""
        now_ms = self._engine.clock.monotonic_ms()
        due = [queue for queue, at_ms in self._locked_ms.items() if now_ms - at_ms >= RENEWAL_MS]
        if due:
            await self.lock(due)
        now_ms = self._engine.clock.monotonic_ms()
        lost = [queue for queue in due if now_ms - self._locked_ms.get(queue, now_ms - VALID_MS) >= VALID_MS]
        for queue in lost:
            self._locked_ms.pop(queue, None)
        return lost

    def next_renewal_ms(self) -> int:
        """Return the time until the next renewal is due, at least RETRY_MS."""
        now_ms = self._engine.clock.monotonic_ms()
        return max(RETRY_MS, RENEWAL_MS - now_ms + min(self._locked_ms.values(), default=now_ms))

    async def _lock(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue] | ClientError:
        """Lock queues of one broker, and forget those that another member has."""
        now_ms = self._engine.clock.monotonic_ms()
        try:
            address = await self._engine.queue_address(next(iter(queues)))
            body = self._body(queues)
            response = await self._engine.call(address, RequestCode.LOCK_BATCH_MQ, body=body, timeout_ms=TIMEOUT_MS)
            locked = set(read_body(LockedQueues.decode, response, address).queues) & set(queues)
        except ClientError as error:
            return error
        for queue in queues:
            if queue in locked:
                self._locked_ms[queue] = now_ms
            else:
                self._locked_ms.pop(queue, None)
        return locked

    def _body(self, queues: Iterable[MessageQueue]) -> bytes:
        return LockRequest(self._client_id, self._group, tuple(queues)).encode()
