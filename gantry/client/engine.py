"""ClientEngine: the connections, routes and heart-beats of a process, shared by all producers and consumers.

Concurrency: the event loop's thread. Every call may be cancelled. If other callers wait for the same result, the work
goes on for them.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from gantry.client.bulk import is_bulk
from gantry.client.errors import BrokerError, BrokerUnavailableError, NoRouteError, NotStartedError, no_answer
from gantry.client.heartbeats import Heartbeats
from gantry.client.nameservers import NameServers
from gantry.client.replies import Replies
from gantry.client.resetnotices import ResetNotices
from gantry.client.routecache import PublishInfo, as_new_topic, publish_info
from gantry.client.routes import Routes
from gantry.client.runninginfo import RunningInfos
from gantry.client.sendrequest import BatchSendResult, EncodedSend
from gantry.client.settings import ClientSettings
from gantry.client.transactionchecks import TransactionChecks
from gantry.model.message import MessageQueue
from gantry.model.names import AUTO_CREATE_TOPIC
from gantry.model.route import BrokerData, TopicRoute
from gantry.model.uniqkey import UniqueKeyGenerator
from gantry.remoting.aio import Channel, Handler, RemotingClient
from gantry.remoting.bodies.route import ClusterInfo
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import RequestFailedError
from gantry.remoting.headers.client import NotifyConsumerIdsChangedHeader
from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from gantry.runtime.tasks import TaskScope, TaskSet
from gantry.runtime.telemetry import logger

log = logger("client.engine")

# After a failure, the client does not ask again for a route that is younger than this.
ROUTE_AGE_MIN_MS = 1_000

P = ParamSpec("P")
R = TypeVar("R")


class Transport(Protocol):
    """The part of gantry.remoting.aio.RemotingClient that the engine uses; tests pass a scripted one."""

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        """Send a request and return its answer. Raises RequestFailedError."""
        ...

    async def invoke_one_way(self, address: str, command: RemotingCommand, *, timeout_ms: int = 3_000) -> None:
        """Send a request that gets no answer. Raises RequestFailedError."""
        ...

    async def connect(self, address: str, *, timeout_ms: int) -> object:
        """Return the open connection to an address, and open one if there is none. Raises RequestFailedError."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class SendObserver(Protocol):
    """Gets each send that a broker has answered (tracer.py)."""

    def sent(self, group: str, prepared: EncodedSend, result: BatchSendResult, *, at_ms: int, cost_ms: int) -> None:
        """Note a send of a producer group that began at `at_ms` (wall ms) and took `cost_ms`. Must not wait or fail."""
        ...


MakeTransport = Callable[[Mapping[int, Handler], Callable[[str], None]], Transport]
"""Makes a transport from handlers for the brokers' requests and a callback for lost connections."""


class ClientEngine:
    """The engine. A process has one for each cluster."""

    def __init__(
        self, settings: ClientSettings, *, clock: Clock, rng: Rng, make_transport: MakeTransport | None = None
    ) -> None:
        """Make an engine; `make_transport` is for tests.

        Raises:
            InvalidArgumentError: A setting is not valid.
            StartupError: The TLS files can't be read.
        """
        settings.check()
        self.settings = settings
        self.clock = clock
        self.rng = rng
        process_id = settings.process_id or rng.below(1 << 16)
        salt = rng.below(1 << 32)
        self.client_id = f"{settings.client_ip}@{settings.instance_name or f'{process_id}#{salt:08x}'}"
        self.unique_keys = UniqueKeyGenerator(clock, settings.client_ip, process_id, salt)
        self.tasks = TaskSet("client", _log_failure)
        self.name_servers = NameServers(settings.namesrv, self._call_namesrv, rng.below)
        self.heartbeats = Heartbeats(
            self._invoke_heartbeat, self.brokers, self.tasks, interval_ms=settings.heartbeat_interval_ms
        )
        self.routes = Routes(
            self.name_servers,
            self.tasks,
            clock=clock,
            interval_ms=settings.poll_namesrv_interval_ms,
            topics_max=settings.topics_max,
            on_brokers_changed=self.heartbeats.brokers_changed,
        )
        self.running_infos = RunningInfos()
        self.resets = ResetNotices()
        self.replies = Replies()
        self.transaction_checks = TransactionChecks(self.tasks)
        self.send_observer: SendObserver | None = None
        handlers: dict[int, Handler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._consumer_ids_changed,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_infos.answer,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.resets.answer,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.replies.answer,
            RequestCode.CHECK_TRANSACTION_STATE: self.transaction_checks.answer,
        }
        make = make_transport or self._make_transport
        self.transport = make(handlers, self.heartbeats.connection_lost)
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._scope: TaskScope | None = None

    async def start(self) -> None:
        """Start to refresh routes and to send heart-beats. This opens no connection by itself."""
        assert self._scope is None, "started twice"
        self._scope = TaskScope("client")
        await self._scope.__aenter__()
        self._scope.spawn("routes", self.routes.keep())
        self._scope.spawn("heartbeats", self.heartbeats.run())

    async def stop(self) -> None:
        """End all background work and close the connections; waiting requests fail. This holds if it is cancelled, too."""
        if self._scope is not None:
            scope, self._scope = self._scope, None
            try:
                await self.tasks.cancel()
            finally:
                try:
                    await scope.__aexit__(None, None, None)
                finally:
                    await self.transport.close()

    async def wait_for_failure(self) -> None:
        """Wait until background work fails, and raise its error. The service that owns the engine calls this."""
        self.check_running()
        assert self._scope is not None
        await self._scope.wait_for_failure()

    async def in_thread(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run long work in a thread of the engine."""
        self.check_running()
        assert self._scope is not None
        return await self._scope.in_thread("work", work, *args, **kwargs)

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        """Send a request to an address and return its answer, with any response code.

        Raises:
            NotStartedError: The engine does not run.
            NoAnswerError: There is no answer; the subclass gives the reason.
        """
        self.check_running()
        try:
            return await self.transport.invoke(address, command, timeout_ms=timeout_ms)
        except RequestFailedError as error:
            raise no_answer(error) from None

    async def invoke_one_way(self, address: str, command: RemotingCommand) -> None:
        """Send a request that gets no answer. Raises NotStartedError, NoAnswerError."""
        self.check_running()
        try:
            await self.transport.invoke_one_way(address, command)
        except RequestFailedError as error:
            raise no_answer(error) from None

    async def reach(self, address: str, *, timeout_ms: int) -> None:
        """Make sure that there is a connection to an address; this costs nothing if there is one already.

        Raises:
            NotStartedError: The engine does not run.
            NoAnswerError: There is no connection, and none can be opened in time.
        """
        self.check_running()
        try:
            await self.transport.connect(address, timeout_ms=timeout_ms)
        except RequestFailedError as error:
            raise no_answer(error) from None

    async def call(
        self, address: str, code: int, header: Any = None, *, body: bytes | None = None, timeout_ms: int | None = None
    ) -> RemotingCommand:
        """Send a request and return its answer if the code is SUCCESS.

        Raises:
            BrokerError: The answer has another code.
            NoAnswerError: There is no answer.
        """
        command = RemotingCommand.request(code, header, body=body)
        timeout_ms = self.settings.admin_timeout_ms if timeout_ms is None else timeout_ms
        response = await self.invoke(address, command, timeout_ms=timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, address)
        return response

    def check_running(self) -> None:
        """Raise NotStartedError unless the engine runs."""
        if self._scope is None:
            raise NotStartedError("the client engine is not running")

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return the route of a topic.

        Args:
            topic: Name of the topic.
            refresh: Whether to ask a name server even if the route is known, and to fail if none answers.

        Raises:
            InvalidArgumentError: The name is not a valid topic name.
            NoRouteError: No name server knows the topic.
            BrokerError, NoAnswerError: No name server gave an answer, and the route is not known.
        """
        self.check_running()
        return (await self.routes.get(topic, refresh=refresh)).route

    async def publish_info(self, topic: str, *, refresh: bool = False) -> PublishInfo:
        """Return a topic's publish info. For an unknown topic, build it from TBW102 if the settings allow that.

        Raises:
            InvalidArgumentError, NoRouteError, BrokerError, NoAnswerError: As `route`.
        """
        self.check_running()
        try:
            return (await self.routes.get(topic, refresh=refresh)).publish
        except NoRouteError:
            if not self.settings.auto_create_topics:
                raise
            default = await self.routes.get(AUTO_CREATE_TOPIC)
            made = as_new_topic(default.route, self.settings.default_topic_queue_nums)
            if not made.queue_datas:
                raise
            # The cache takes the topic only after a broker has created it and a name server returns its route.
            return publish_info(topic, made, {queue.broker_name: queue.write_queue_nums for queue in made.queue_datas})

    def cached_publish_info(self, topic: str) -> PublishInfo | None:
        """Return a topic's publish info from the cache, or None if the client has to ask a name server."""
        entry = self.routes.cached(topic)
        return None if entry is None else entry.publish

    async def subscribe_queues(self, topic: str, *, refresh: bool = False) -> tuple[MessageQueue, ...]:
        """Return the readable queues of a topic, sorted. Raises the same errors as `route`."""
        self.check_running()
        return (await self.routes.get(topic, refresh=refresh)).subscribe_queues

    def set_desired_queues(self, topic: str, write_queue_nums: Mapping[str, int]) -> None:
        """Set the broker sets that should hold a topic, with their write queues, whether the sets are up or not.

        Ordering keys are spread over these queues even before the client has seen any of the sets up.
        """
        self.routes.cache.set_desired(topic, write_queue_nums)

    def known_broker_sets(self, topic: str) -> frozenset[str]:
        """Return the broker sets that routes (old ones too) or the desired state name for a topic."""
        return self.routes.cache.broker_sets(topic)

    def known_write_queues(self, topic: str) -> Mapping[str, int]:
        """Return the number of write queues of a topic on each set that `known_broker_sets` returns."""
        return self.routes.cache.write_queue_nums(topic)

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        self.routes.cache.forget(topic)

    def brokers(self) -> Mapping[str, BrokerData]:
        """Return the broker sets in the routes in use."""
        return self.routes.cache.brokers

    def master_address(self, broker_name: str) -> str:
        """Return the address of a set's master. Raises BrokerUnavailableError if none is known."""
        broker = self.routes.cache.brokers.get(broker_name)
        address = None if broker is None else broker.master_address
        if address is None:
            raise BrokerUnavailableError(broker_name)
        return address

    def read_address(self, broker_name: str, broker_id: int = 0) -> str:
        """Return an address at which to read a set's queues: the requested member, else the master, else any slave.

        Raises:
            BrokerUnavailableError: No member of the set is known.
        """
        broker = self.routes.cache.brokers.get(broker_name)
        if broker is None or not broker.broker_addrs:
            raise BrokerUnavailableError(broker_name)
        addresses = broker.broker_addrs
        return addresses.get(broker_id) or broker.master_address or addresses[min(addresses)]

    async def queue_address(self, queue: MessageQueue, *, broker_id: int | None = None) -> str:
        """Return the address for requests about a queue. If it is not known, ask once for a newer route.

        Args:
            queue: The queue.
            broker_id: Preferred member of the set; another readable member will do. None means that only the master
                will do.

        Raises:
            BrokerUnavailableError: There is no such address now.
            InvalidArgumentError, NoRouteError, BrokerError, NoAnswerError: As `route`.
        """
        self.check_running()
        entry = self.routes.cached(queue.topic) or await self.routes.get(queue.topic)
        try:
            return self._member_address(queue.broker_name, broker_id)
        except BrokerUnavailableError:
            if self.clock.monotonic_ms() - entry.refreshed_at_ms < ROUTE_AGE_MIN_MS:
                raise
        await self.routes.get(queue.topic, refresh=True)
        return self._member_address(queue.broker_name, broker_id)

    async def cluster_info(self) -> ClusterInfo:
        """Return all registered broker sets. Raises BrokerError, NoAnswerError."""
        self.check_running()
        return await self.routes.cluster_info()

    def listen(self, group: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever a broker reports that a group's members have changed.

        Returns:
            A function that ends the calls.
        """
        listeners = self._listeners.setdefault(group, [])
        listeners.append(changed)

        def stop() -> None:
            listeners.remove(changed)
            if not listeners and self._listeners.get(group) is listeners:
                del self._listeners[group]

        return stop

    def _member_address(self, broker_name: str, broker_id: int | None) -> str:
        return self.master_address(broker_name) if broker_id is None else self.read_address(broker_name, broker_id)

    def _make_transport(self, handlers: Mapping[int, Handler], lost: Callable[[str], None]) -> Transport:
        return RemotingClient(
            clock=self.clock,
            limits=self.settings.limits,
            tls=self.settings.tls,
            handlers=handlers,
            on_channel_closed=lambda address, _: lost(address),
            is_bulk=is_bulk,
        )

    def _call_namesrv(self, address: str, code: int, header: Any, body: bytes | None) -> Awaitable[RemotingCommand]:
        return self.call(address, code, header, body=body, timeout_ms=self.settings.namesrv_timeout_ms)

    def _invoke_heartbeat(self, address: str, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        return self.invoke(address, command, timeout_ms=self.settings.heartbeat_timeout_ms)

    def _consumer_ids_changed(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        group = NotifyConsumerIdsChangedHeader.from_ext(command.ext_fields).consumer_group
        for changed in list(self._listeners.get(group, ())):
            changed()
        # Java brokers send this request one-way and expect no answer. An answer does no harm to other brokers.
        return None if command.is_one_way else RemotingCommand.response_to(command, ResponseCode.SUCCESS)


def _log_failure(error: BaseException) -> None:
    log.error("a task of the client failed", exc_info=error)
