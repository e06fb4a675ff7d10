"""Heart-beats: tell every broker the producer and consumer groups of each client id.

Theory of operation. A broker forgets a client 120 s after its last heart-beat, and at once when the connection that
carried the heart-beat ends. Then the other members of the client's groups take over its queues. So every broker gets a
heart-beat of every client id each 30 s. It gets another one within a second if the last one failed or its connection
broke. `_reached` stores which client ids each broker knows; everything else follows from it.

One engine sends heart-beats of many client ids over the same connections: a gateway has one client id for each of its
streams.

Concurrency: the event loop's thread.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from gantry.client.errors import InvalidArgumentError, NoAnswerError, NotStartedError
from gantry.model.group import SubscriptionData
from gantry.model.route import MASTER_ID, BrokerData
from gantry.remoting.bodies.heartbeat import ConsumerData, HeartbeatData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.client import UnregisterClientHeader
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger

log = logger("client.heartbeats")

# Delay before the next heart-beat to a broker after a heart-beat failed.
RETRY_INTERVAL_S = 1.0

Invoke = Callable[[str, RemotingCommand], Awaitable[RemotingCommand]]


@dataclass(slots=True)
class _Group:
    consumer: ConsumerData
    subscriptions: dict[str, SubscriptionData]


@dataclass(slots=True)
class _Client:
    producers: set[str] = field(default_factory=set)
    groups: dict[str, _Group] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        return not self.producers and not self.groups

    def encode(self, client_id: str) -> bytes:
        return HeartbeatData(
            client_id=client_id,
            producer_groups=tuple(sorted(self.producers)),
            consumers=tuple(
                replace(group.consumer, subscriptions=tuple(group.subscriptions.values()))
                for group in self.groups.values()
            ),
        ).encode()


class Heartbeats:
    """Sends the heart-beats of all client ids to all brokers."""

    def __init__(
        self, invoke: Invoke, brokers: Callable[[], Mapping[str, BrokerData]], tasks: TaskSet, *, interval_ms: int
    ) -> None:
        """Make the heart-beats.

        Args:
            invoke: Sends a request to an address and returns its answer; raises NoAnswerError.
            brokers: Returns the broker sets that are known now.
            tasks: Runs what tells the brokers that a client has left.
            interval_ms: Interval of the heart-beats to every broker.
        """
        self._invoke = invoke
        self._brokers = brokers
        self._tasks = tasks
        self._interval_s = interval_ms / 1000
        self._clients: dict[str, _Client] = {}
        self._reached: dict[str, set[str]] = {}
        # As above, with the client ids that are about to get another heart-beat: a broker must be told of their end.
        self._told: dict[str, set[str]] = {}
        self._versions: dict[str, int] = {}
        self._wake = asyncio.Event()

    def add_producer(self, client_id: str, group: str) -> None:
        """Add a client id as a producer of a group."""
        self._clients.setdefault(client_id, _Client()).producers.add(group)
        self._forget_reached(client_id)
        self._wake.set()

    def check_unused(self, client_id: str, group_name: str, topics: Iterable[str]) -> None:
        """Raise InvalidArgumentError if a client id already has one of these topics in a group.

        Two members with one id would both take the share that the group gives to this id.
        """
        client = self._clients.get(client_id)
        group = None if client is None else client.groups.get(group_name)
        for topic in topics:
            if group is not None and topic in group.subscriptions:
                raise InvalidArgumentError(
                    "client_id", client_id, f"consumes topic {topic} in group {group_name} already"
                )

    async def put_consumer(self, client_id: str, consumer: ConsumerData) -> None:
        """Add a client id as a consumer of a group.

        The group keeps the subscriptions that the client id has already. Return when each broker has answered or can't
        be reached. Brokers that can't be reached get a heart-beat later.
        """
        client = self._clients.setdefault(client_id, _Client())
        group = client.groups.get(consumer.group_name)
        if group is None:
            group = client.groups[consumer.group_name] = _Group(consumer, {})
        group.subscriptions.update({one.topic: one for one in consumer.subscriptions})
        self._forget_reached(client_id)
        await self.send_now(client_id)

    async def remove_producer(self, client_id: str, group: str) -> None:
        """Leave a producer group and tell the brokers that can be reached. They are told even if this is cancelled."""
        client = self._clients.get(client_id)
        if client is not None:
            client.producers.discard(group)
            await self._wait_for(
                self._unregister(client_id, client, UnregisterClientHeader(client_id=client_id, producer_group=group))
            )

    async def remove_consumer(self, client_id: str, group_name: str, topics: Collection[str]) -> None:
        """Remove subscriptions. If none is left, leave the group.

        Return when each broker that can be reached was told. They are told even if this is cancelled.
        """
        await self._wait_for(self.drop_consumer(client_id, group_name, topics))

    def drop_consumer(self, client_id: str, group_name: str, topics: Collection[str]) -> "asyncio.Task[None] | None":
        """Remove subscriptions at once, as `remove_consumer`. Return the task that tells the brokers, if there is one."""
        client = self._clients.get(client_id)
        group = None if client is None else client.groups.get(group_name)
        if client is None or group is None:
            return None
        for topic in topics:
            group.subscriptions.pop(topic, None)
        if group.subscriptions:
            self._forget_reached(client_id)
            return self._tasks.spawn(self._send_rest(client_id))
        del client.groups[group_name]
        return self._unregister(
            client_id, client, UnregisterClientHeader(client_id=client_id, consumer_group=group_name)
        )

    async def send_now(self, client_id: str) -> None:
        """Send a heart-beat of one client id to all brokers now; return when each has answered or can't be reached."""
        missing = {address: [client_id] for address in self._addresses_for(client_id)}
        if not await self._send_all(missing, again=True):
            self._wake.set()

    async def _send_rest(self, client_id: str) -> None:
        with suppress(NotStartedError):  # The connections end with the engine, and then brokers forget the client.
            await self.send_now(client_id)

    def connection_lost(self, address: str) -> None:
        """Record that a connection broke, so that its broker has forgotten the client ids."""
        self._told.pop(address, None)
        if self._reached.pop(address, None):
            self._wake.set()

    def brokers_changed(self) -> None:
        """Wake the sender, because there may be new brokers."""
        if self._clients:
            self._wake.set()

    def broker_version(self, address: str) -> int | None:
        """Return the version in a broker's last answer, or None before its first answer."""
        return self._versions.get(address)

    async def run(self) -> None:
        """Send heart-beats, forever."""
        loop = asyncio.get_running_loop()
        all_due_at = loop.time() + self._interval_s
        while True:
            if loop.time() >= all_due_at:
                self._reached.clear()
                all_due_at = loop.time() + self._interval_s
            self._wake.clear()
            all_sent = await self._send_all(self._missing())
            wait_s = all_due_at - loop.time()
            if not all_sent:
                await asyncio.sleep(min(RETRY_INTERVAL_S, max(0.0, wait_s)))
                continue
            try:
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _forget_reached(self, client_id: str) -> None:
        for client_ids in self._reached.values():
            client_ids.discard(client_id)

    def _addresses_for(self, client_id: str) -> list[str]:
        client = self._clients.get(client_id)
        if client is None:
            return []
        # Slaves serve only consumers, so they get no heart-beat of a client that only produces.
        return [
            address
            for broker in self._brokers().values()
            for broker_id, address in broker.broker_addrs.items()
            if broker_id == MASTER_ID or client.groups
        ]

    def _missing(self) -> dict[str, list[str]]:
        missing: dict[str, list[str]] = {}
        for client_id in self._clients:
            for address in self._addresses_for(client_id):
                if client_id not in self._reached.get(address, ()):
                    missing.setdefault(address, []).append(client_id)
        return missing

    async def _send_all(self, missing: Mapping[str, Iterable[str]], *, again: bool = False) -> bool:
        sent = await asyncio.gather(*(self._send_to(address, ids, again=again) for address, ids in missing.items()))
        return all(sent)

    async def _send_to(self, address: str, client_ids: Iterable[str], *, again: bool) -> bool:
        for client_id in client_ids:
            client = self._clients.get(client_id)
            # Another task may have sent the heart-beat by now.
            if client is None or (not again and client_id in self._reached.get(address, ())):
                continue
            body = client.encode(client_id)
            # Record the client id before the answer: if the connection breaks meanwhile, `connection_lost` removes it
            # again.
            reached = self._reached.setdefault(address, set())
            reached.add(client_id)
            told = self._told.setdefault(address, set())
            told.add(client_id)
            try:
                response = await self._invoke(address, RemotingCommand.request(RequestCode.HEART_BEAT, body=body))
            except NoAnswerError as error:
                reached.discard(client_id)
                told.discard(client_id)
                log.warning("heart-beat failed", address=address, client_id=client_id, error=str(error))
                return False
            self._versions[address] = response.version
            if response.code != ResponseCode.SUCCESS:
                log.warning(
                    "heart-beat refused",
                    address=address,
                    client_id=client_id,
                    code=response.code,
                    remark=response.remark,
                )
        return True

    def _unregister(
        self, client_id: str, client: _Client, header: UnregisterClientHeader
    ) -> "asyncio.Task[None] | None":
        addresses = [address for address, client_ids in self._told.items() if client_id in client_ids]
        if client.is_idle:
            self._clients.pop(client_id, None)
            self._forget_reached(client_id)
            for client_ids in self._told.values():
                client_ids.discard(client_id)

        async def unregister(address: str) -> None:
            try:
                await self._invoke(address, RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header))
            except (NoAnswerError, NotStartedError) as error:
                # The broker forgets the client by itself, after 120 s at the latest.
                log.info("unregistering failed", address=address, client_id=client_id, error=str(error))

        async def unregister_all() -> None:
            await asyncio.gather(*(unregister(address) for address in addresses))

        return self._tasks.spawn(unregister_all()) if addresses else None

    @staticmethod
    async def _wait_for(telling: "asyncio.Task[None] | None") -> None:
        if telling is not None:
            # Neither the cancellation of the caller ends the task, nor the end of the engine's tasks the caller.
            await asyncio.wait({telling})
