"""Requests of clients that consume in order: lock queues (41), unlock queues (42).

RocketMQ's `lockInStrictMode` asks a majority of a broker's replicas. A broker without replicas is a majority by itself,
so `onlyThisBroker` makes no difference here.
"""

from collections.abc import Mapping

from gantry.model import names
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies import LockedQueues, LockRequest
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.clock import Clock
from services.broker.assembly import Broker
from services.broker.metrics import Figure
from services.broker.processors.clients import CLIENT_ID_LENGTH_MAX
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.queuelocks import QueueLocks

QUEUES_OF_REQUEST_MAX = 10_000
"""Largest number of queues that one request locks or unlocks; takes about ten milliseconds."""
_EXPIRY_INTERVAL_MS = 10_000


class QueueLockProcessor:
    """Answers 41 and 42.

    Concurrency: the loop's thread only.
    """

    def __init__(self, locks: QueueLocks, clock: Clock) -> None:
        self._locks = locks
        self._clock = clock

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return replying_to_refusals({RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock})

    def lock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """41: lock queues or renew their locks. The reply has the queues that the client has locked now."""
        wanted = _checked(LockRequest.decode(request.body_bytes))
        locked = self._locks.lock(wanted.consumer_group, wanted.client_id, wanted.queues, self._clock.monotonic_ms())
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=LockedQueues(locked).encode())

    def unlock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """42: remove the locks that the client has. The locks of other clients stay."""
        wanted = _checked(LockRequest.decode(request.body_bytes))
        self._locks.unlock(wanted.consumer_group, wanted.client_id, wanted.queues)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)


def _checked(wanted: LockRequest) -> LockRequest:
    names.check_group(wanted.consumer_group, field="consumerGroup")
    if not 0 < len(wanted.client_id) <= CLIENT_ID_LENGTH_MAX:
        raise RefusalError(
            ResponseCode.INVALID_PARAMETER,
            f"clientId has {len(wanted.client_id)} characters, 1 to {CLIENT_ID_LENGTH_MAX} are allowed",
        )
    if len(wanted.queues) > QUEUES_OF_REQUEST_MAX:
        raise RefusalError(
            ResponseCode.INVALID_PARAMETER,
            f"mqSet has {len(wanted.queues)} queues, at most {QUEUES_OF_REQUEST_MAX} are allowed",
        )
    for queue in wanted.queues:
        names.check_topic(queue.topic, length_max=names.RETRY_TOPIC_LENGTH_MAX)
    return wanted


def build(broker: Broker) -> QueueLockProcessor:
    """Build the processor from the broker's parts."""
    tables, clock = broker.tables, broker.clock
    locks = tables.queue_locks

    def topic_changed(topic: str) -> None:
        if tables.topics.find(topic) is None:
            locks.drop_topic(topic)

    def group_changed(group: str) -> None:
        if tables.groups.find(group) is None:
            locks.drop_group(group)

    broker.on_topic_changed.append(topic_changed)
    broker.on_group_changed.append(group_changed)
    broker.timers.append(("queue-locks", _EXPIRY_INTERVAL_MS, lambda: locks.expire(clock.monotonic_ms())))
    broker.figures += (
        Figure("gantry_broker_queue_locks", "Queues locked for consumption in order.", lambda: locks.count),
        Figure(
            "gantry_broker_refused_queue_locks",
            "Locks refused because another client has the queue.",
            lambda: locks.refused,
            is_counter=True,
        ),
        Figure(
            "gantry_broker_taken_over_queue_locks",
            "Expired locks that another client took.",
            lambda: locks.taken_over,
            is_counter=True,
        ),
    )
    return QueueLockProcessor(locks, clock)
