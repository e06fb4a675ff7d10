"""Registration: tells every name server who this broker is and which topics it has.

Each name server has its own task, so that an unreachable one does not delay the others. The broker sends a full
registration at the start, every `register_name_server_period` ms, and whenever it does not know the state of the name
server. That is the case if the name server refused a registration, or if the connection was lost, since the name server
may have restarted. A changed topic is sent at once and alone, unless a full registration is due anyway. With thousands
of topics, a full registration for each new one would be megabytes.

A full registration never holds exactly one topic, since a broker has its system topics. If an unknown broker registers
exactly one topic, name servers refuse it: they take this for a change that came too early.

Concurrency: the loop's thread only.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from gantry.model.topic import DataVersion, TopicConfig
from gantry.remoting.bodies import KVTable, RegisterBrokerBody, TopicConfigSerializeWrapper
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import BodyError, RemotingError
from gantry.remoting.headers import Header, RegisterBrokerHeader, UnregisterBrokerHeader
from gantry.runtime.telemetry import logger
from services.broker.identity import BrokerIdentity
from services.broker.registry.topics import TopicTable, with_perm_of_broker
from services.broker.settings import LiveSettings

log = logger("broker.registration")

# The delay after a failure: short enough that a name server that comes back soon knows this broker, long enough not to
# fill its log.
RETRY_DELAY_MS = 3_000
# The longest time that a tool that changes a topic waits for unreachable name servers.
ANNOUNCE_TIMEOUT_MS = 3_000
UNREGISTER_TIMEOUT_MS = 1_000
ORDER_TOPICS_BYTES_MAX = 1024 * 1024
"""Largest list of order topics that the broker reads from an answer; decoding it takes a few milliseconds."""
SLICE_TOPICS = 256
"""Number of topics that are encoded in one turn of the loop; takes about half a millisecond."""
# The shortest sleep that the event loop can make.
_PAUSE_S = 0.001
_CRC_MASK = 0x7FFF_FFFF


class Caller(Protocol):
    """The methods of RemotingClient that registration needs."""

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        """Send a request and return its reply."""
        ...

    def connected(self, address: str) -> object | None:
        """Return the open connection to an address, if there is one."""
        ...


class _NameServer:
    """The state of one name server, as far as the broker knows it."""

    __slots__ = ("address", "changed", "is_known", "needs_full", "sent_version", "wake", "was_asked")

    def __init__(self, address: str) -> None:
        self.address = address
        self.needs_full = True
        self.changed: set[str] = set()
        self.sent_version: DataVersion | None = None
        self.is_known = False
        self.wake = asyncio.Event()
        self.was_asked = asyncio.Event()


class RegistrationBody:
    """The body of a full registration, encoded once for each version of the topic table.

    It goes out every 30 s to each name server. The encoded text of each topic is kept. Changed topics are encoded in
    slices, and other work of the loop runs between them. With 50,000 topics, encoding all of them takes a hundred
    milliseconds. Joining their texts takes some more.
    """

    def __init__(self, topics: TopicTable, live_settings: LiveSettings) -> None:
        self._topics = topics
        self._live_settings = live_settings
        self._permission: int | None = None
        """The perm of the broker that the texts contain."""
        self._texts: dict[str, msgspec.Raw] = {}
        self._changed: dict[str, None] = {}
        self._made: tuple[DataVersion, bytes] | None = None
        self._making = asyncio.Lock()

    def topic_changed(self, topic: str) -> None:
        """Note that a topic is new, changed or deleted."""
        self._changed[topic] = None

    async def current(self) -> tuple[DataVersion, bytes]:
        """Return the version of the topic table and the body for this version."""
        async with self._making:
            while True:
                permission = self._live_settings.current.broker_permission
                if self._permission != permission:
                    self._permission = permission
                    self._texts.clear()
                    self._changed.update(dict.fromkeys(self._topics.all()))
                    self._made = None
                for _ in range(min(SLICE_TOPICS, len(self._changed))):
                    self._encode(self._changed.popitem()[0], self._permission)
                if self._changed:
                    await asyncio.sleep(_PAUSE_S)
                    continue
                version = self._topics.version
                if self._made is None or self._made[0] != version:
                    self._made = (version, RegisterBrokerBody.join(version, self._texts))
                return self._made

    def _encode(self, topic: str, permission: int) -> None:
        config = self._topics.find(topic)
        if config is None:
            self._texts.pop(topic, None)
        else:
            self._texts[topic] = RegisterBrokerBody.encode_topic(with_perm_of_broker(config, permission))


class Registration:
    """Keeps the registrations at all name servers up to date.

    Args:
        on_order_topics: Called with the names of the topics for which a name server has an order configuration.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        *,
        identity: BrokerIdentity,
        topics: TopicTable,
        live_settings: LiveSettings,
        client: Caller,
        period_ms: int,
        timeout_ms: int,
        on_order_topics: Callable[[Iterable[str]], None] = lambda topics: None,
    ) -> None:
        self._servers = {address: _NameServer(address) for address in addresses}
        self._identity = identity
        self._topics = topics
        self._live_settings = live_settings
        self._client = client
        self._period_ms = period_ms
        self._timeout_ms = timeout_ms
        self._on_order_topics = on_order_topics
        self._full_body = RegistrationBody(topics, live_settings)
        self._waiters: list[asyncio.Future[None]] = []
        self._is_stopping = False
        self.failures = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        return tuple(self._servers)

    @property
    def registered_count(self) -> int:
        """Number of name servers that accepted the latest registration."""
        return sum(server.is_known for server in self._servers.values())

    def topic_changed(self, topic: str) -> None:
        """Announce a new, changed or deleted topic. All changes of one turn of the loop go out together."""
        self._full_body.topic_changed(topic)
        for server in self._servers.values():
            server.changed.add(topic)
            server.wake.set()

    def connection_lost(self, address: str) -> None:
        """Note that the connection to a name server is lost, so that its state is unknown."""
        server = self._servers.get(address)
        if server is not None and not self._is_stopping:
            # The name server may have restarted. Else it removed this broker when the connection closed.
            server.needs_full = True
            server.wake.set()

    def permission_changed(self, now_ms: int) -> None:
        """Announce that the perm of the broker has changed, and so the perm of all its topics."""
        self._topics.touch(now_ms)
        for server in self._servers.values():
            server.needs_full = True
            server.wake.set()

    async def ask(self, code: int, header: Header) -> RemotingCommand | None:
        """Send a request to the name servers, one after the other. Return the first reply; None if there is none."""
        for address in self._servers:
            try:
                command = RemotingCommand.request(code, header)
                return await self._client.invoke(address, command, timeout_ms=self._timeout_ms)
            except RemotingError:
                continue
        return None

    async def wait_until_announced(self) -> None:
        """Wait until every registered name server has the current topics, at most ANNOUNCE_TIMEOUT_MS."""
        if self._is_current():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await asyncio.wait({waiter}, timeout=ANNOUNCE_TIMEOUT_MS / 1000)
        waiter.cancel()

    async def first_round(self) -> None:
        """Wait until each name server was tried once, at most ANNOUNCE_TIMEOUT_MS. Failures are retried later."""
        waiting = {asyncio.ensure_future(server.was_asked.wait()) for server in self._servers.values()}
        if waiting:
            await asyncio.wait(waiting, timeout=ANNOUNCE_TIMEOUT_MS / 1000)
        for waiter in waiting:
            waiter.cancel()

    async def maintain(self, address: str) -> None:
        """Keep the registration at one name server up to date, until the task is cancelled."""
        server = self._servers[address]
        while True:
            await self._register(server)
            server.was_asked.set()
            delay_ms = self._period_ms if server.is_known else min(RETRY_DELAY_MS, self._period_ms)
            try:
                async with asyncio.timeout(delay_ms / 1000):
                    await server.wake.wait()
            except TimeoutError:
                server.needs_full = True
            # Wait one more turn of the loop, so that several changed topics go out together.
            await asyncio.sleep(0)

    async def unregister_all(self) -> None:
        """Unregister from every name server that has an open connection."""
        self._is_stopping = True
        await asyncio.gather(*(self._unregister(server) for server in self._servers.values()))

    async def _register(self, server: _NameServer) -> None:
        server.wake.clear()
        changed, server.changed = server.changed, set()
        failure: str | None = "not asked"
        version = self._topics.version
        if server.is_known and not server.needs_full:
            failure = await self._send(server, self._partial(changed))
        if failure is not None:
            # This is the first registration, or a full one is due, or the name server refused a change because it has
            # forgotten this broker.
            server.needs_full = False
            version, body = await self._full_body.current()
            failure = await self._send(server, body)
        if failure is None:
            if not server.is_known:
                log.info("registered", namesrv=server.address, broker=self._identity.name)
            server.sent_version = version
        else:
            if server.is_known or not server.was_asked.is_set():
                log.warning("not registered", namesrv=server.address, reason=failure)
            self.failures += 1
            server.needs_full = True
        server.is_known = failure is None
        self._notify_waiters()

    async def _send(self, server: _NameServer, body: bytes) -> str | None:
        """Send one registration. Return the reason if it failed, else None."""
        identity = self._identity
        header = RegisterBrokerHeader(
            broker_name=identity.name,
            broker_addr=identity.address,
            cluster_name=identity.cluster,
            ha_server_addr=identity.ha_address,
            broker_id=identity.broker_id,
            enable_acting_master=False,
            compressed=False,
            body_crc32=zlib.crc32(body) & _CRC_MASK,
        )
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body=body)
        try:
            answer = await self._client.invoke(server.address, request, timeout_ms=self._timeout_ms)
        except RemotingError as error:
            return str(error)
        if answer.code != ResponseCode.SUCCESS:
            return f"answered {answer.code}: {answer.remark}"
        if answer.body:
            self._read_order_topics(server, answer.body_bytes)
        return None

    def _read_order_topics(self, server: _NameServer, body: bytes) -> None:
        """Read the order configurations in the answer to a registration. The registration is valid without them."""
        if len(body) > ORDER_TOPICS_BYTES_MAX:
            log.warning("too many order topics", namesrv=server.address, size=len(body), most=ORDER_TOPICS_BYTES_MAX)
            return
        try:
            order_topics = KVTable.decode(body).table
        except BodyError as error:
            log.warning("order topics not read", namesrv=server.address, reason=str(error))
            return
        self._on_order_topics(order_topics)

    async def _unregister(self, server: _NameServer) -> None:
        identity = self._identity
        header = UnregisterBrokerHeader(
            broker_name=identity.name,
            broker_addr=identity.address,
            cluster_name=identity.cluster,
            broker_id=identity.broker_id,
        )
        if self._client.connected(server.address) is None:
            return
        request = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header)
        try:
            await self._client.invoke(server.address, request, timeout_ms=UNREGISTER_TIMEOUT_MS)
        except RemotingError as error:
            # The name server removes this broker anyway: when the connection closes, or after 120 s.
            log.warning("not unregistered", namesrv=server.address, reason=str(error))

    def _partial(self, changed: set[str]) -> bytes:
        found = (self._topics.find(topic) for topic in changed)
        return self._encode(config for config in found if config is not None)

    def _encode(self, configs: Iterable[TopicConfig]) -> bytes:
        permission = self._live_settings.current.broker_permission
        table = {config.topic_name: with_perm_of_broker(config, permission) for config in configs}
        return RegisterBrokerBody(TopicConfigSerializeWrapper(table, self._topics.version)).encode()

    def _is_current(self) -> bool:
        """Return whether every registered name server has the current topics."""
        version = self._topics.version
        return all(not server.is_known or server.sent_version == version for server in self._servers.values())

    def _notify_waiters(self) -> None:
        if self._is_current():
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
