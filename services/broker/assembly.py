"""Wires a broker's parts around a store that has started; no sockets, no files but config/*.json, no tasks.

What a service process adds — addresses, listening, timers, signals — is bootstrap's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gantry.model.names import SCHEDULE_TOPIC
from gantry.model.topic import DataVersion, TopicConfig
from gantry.model.uniqkey import UniqueKeyMaker
from gantry.remoting.aio import Channel, Counters, Handler
from gantry.remoting.bodies import DelayOffsetWrapper
from gantry.remoting.replies import SendReplies
from gantry.runtime.clock import Clock
from gantry.runtime.files import FileSystem
from gantry.runtime.rng import Rng
from services.broker.groupcommit import GroupCommit
from services.broker.identity import BrokerIdentity
from services.broker.liveconfig import LiveConfig
from services.broker.longpolling import LongPolling
from services.broker.metrics import BrokerCollector
from services.broker.notifications import GroupNotifications
from services.broker.overload import Overload, StandingLag
from services.broker.policy import Policy
from services.broker.processors.backlog import BacklogProcessor
from services.broker.processors.brokeradmin import BrokerAdminProcessor
from services.broker.processors.clients import ClientProcessor
from services.broker.processors.connections import ConnectionProcessor
from services.broker.processors.groupadmin import GroupAdminProcessor
from services.broker.processors.offset import OffsetProcessor
from services.broker.processors.pull import PullProcessor
from services.broker.processors.query import QueryProcessor
from services.broker.processors.send import SendProcessor, note_peer
from services.broker.processors.sendgate import SendGate
from services.broker.processors.sendproperties import SendProperties
from services.broker.processors.statistics import StatisticsProcessor
from services.broker.processors.table import handlers
from services.broker.processors.topicadmin import TopicAdminProcessor
from services.broker.registration import Caller, Registration
from services.broker.registry import documents
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.groups import GroupTable, system_groups
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.persistence import Persistence, RunInThread
from services.broker.registry.producers import ProducerTable
from services.broker.registry.topics import TopicTable, system_topics
from services.broker.runtimeinfo import RuntimeInfo, schedule_offsets
from services.broker.settings import BrokerSettings
from services.broker.stats import BrokerStats
from services.broker.store.messagestore import MessageStore


@dataclass(slots=True)
class Doors:
    """How the parts reach the outside."""

    files: FileSystem
    clock: Clock
    rng: Rng
    loop: asyncio.AbstractEventLoop
    run_in_thread: RunInThread


class Core:
    """What the store calls into, so it has to be there before the store starts."""

    def __init__(self, settings: BrokerSettings, doors: Doors, store: Callable[[], MessageStore]) -> None:
        self.policy = Policy()
        self.policy.follow(settings)
        self.lag = StandingLag()
        self.overload = Overload(self.policy, self.lag)
        self.long_polling = LongPolling(doors.clock.monotonic_ms())
        self.replies = SendReplies(region_id=settings.region_id, trace_on=settings.trace_on)
        self.commit = GroupCommit(
            write_out=lambda: store().write_out(),
            request_flush=lambda: store().request_flush(),
            dispatch=lambda: store().dispatch(),
            sync_flush=settings.store().is_sync_flush,
            replies=self.replies,
            clock=doors.clock,
            policy=self.policy,
            overload=self.overload,
            on_readable=self.long_polling.wake,
            loop=doors.loop,
        )


class Tables:
    """What the broker knows beside the messages, read from the store's config files."""

    def __init__(self, settings: BrokerSettings, identity: BrokerIdentity, policy: Policy, doors: Doors) -> None:
        """Read the files. Raises StartupError for one that can't be read."""
        root, files = settings.store_path_root_dir, doors.files
        self.topics = TopicTable()
        self.groups = GroupTable()
        self.offsets = OffsetTable()
        self.producers = ProducerTable()
        self.consumers = ConsumerTable()
        documents.load_topics(files, root, self.topics)
        documents.load_groups(files, root, self.groups)
        documents.load_offsets(files, root, self.offsets)
        self.delay_offsets: DelayOffsetWrapper = documents.load_delay_offsets(files, root)
        self.kept = documents.load_kept_settings(files, root)
        self.topics.add_missing(
            system_topics(
                identity,
                policy,
                cluster_topic=settings.cluster_topic_enable,
                broker_topic=settings.broker_topic_enable,
                trace_topic=settings.msg_trace_topic_name if settings.trace_topic_enable else None,
            )
        )
        self.groups.add_missing(system_groups())
        # A name server that knew this address with another store must see that the table is a new one.
        born = DataVersion(timestamp=doors.clock.now_ms())
        for table in (self.topics, self.groups, self.offsets):
            if table.version == DataVersion():
                table.version = born

    def keep(self, persistence: Persistence, root: str) -> None:
        """Have the tables written to their files."""
        topics, groups, offsets = self.topics, self.groups, self.offsets
        for name, snapshot in (
            (documents.TOPICS_FILE, lambda: documents.topics_document(*topics.snapshot())),
            (documents.GROUPS_FILE, lambda: documents.groups_document(*groups.snapshot())),
            (documents.OFFSETS_FILE, lambda: documents.offsets_document(offsets.version, offsets.snapshot())),
        ):
            persistence.add(name, documents.config_path(root, name), snapshot)


class Broker:
    """All parts of a running broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        identity: BrokerIdentity,
        doors: Doors,
        core: Core,
        store: MessageStore,
        *,
        client: Caller,
        unique_keys: UniqueKeyMaker,
        physical_memory_bytes: int,
    ) -> None:
        """Wire everything. Raises StartupError for a config file that can't be read."""
        clock = doors.clock
        self.settings = settings
        self.identity = identity
        self.core = core
        self.store = store
        self.clock = clock
        self.tables = tables = Tables(settings, identity, core.policy, doors)
        self.stats = BrokerStats(identity.cluster, clock.now_ms())
        self.persistence = Persistence(doors.files, doors.run_in_thread)
        tables.keep(self.persistence, settings.store_path_root_dir)
        self.registration = Registration(
            settings.name_servers(),
            identity=identity,
            topics=tables.topics,
            policy=core.policy,
            client=client,
            period_ms=settings.register_name_server_period,
            timeout_ms=settings.register_broker_timeout_mills,
        )
        self.notifications = GroupNotifications(tables.consumers, tables.groups, core.policy, doors.loop)
        self.config = self._config()
        self.persistence.add(
            documents.SETTINGS_FILE,
            documents.config_path(settings.store_path_root_dir, documents.SETTINGS_FILE),
            self.config.snapshot,
        )
        self.runtime_info = self._figures(doors.files)
        self.gate = SendGate(
            topics=tables.topics,
            groups=tables.groups,
            stats=self.stats,
            policy=core.policy,
            clock=clock,
            rng=doors.rng,
            create_topic=self._create_topic,
        )
        recent_bytes = physical_memory_bytes * settings.access_message_in_memory_max_ratio // 100
        self.handlers = self._handlers(unique_keys, recent_bytes)
        tables.topics.on_change = self._topic_changed
        tables.groups.on_change = lambda group: self.persistence.mark(documents.GROUPS_FILE)
        # What was not in the files is in them soon; after a crash before that it is simply added again.
        self.persistence.mark(documents.TOPICS_FILE)
        self.persistence.mark(documents.GROUPS_FILE)

    def connected(self, channel: Channel) -> None:
        """Take note of a new connection."""
        note_peer(channel)

    def disconnected(self, channel: Channel) -> None:
        """Forget everything that hung on a connection."""
        self.core.long_polling.forget(channel)
        self.tables.producers.drop_connection(channel)
        for group in self.tables.consumers.drop_connection(channel):
            self.notifications.notify(group)

    def expire_clients(self) -> None:
        """Remove instances that have been silent for too long; close connections that none is left on."""
        tables, timeout_ms = self.tables, self.core.policy.channel_expired_timeout
        now_ms = self.clock.monotonic_ms()
        groups, connections = tables.consumers.expire(now_ms, timeout_ms)
        connections |= tables.producers.expire(now_ms, timeout_ms)
        for group in groups:
            self.notifications.notify(group)
        for connection in connections:
            if not tables.consumers.has_connection(connection) and not tables.producers.has_connection(connection):
                connection.close(f"no heart-beat for {timeout_ms} ms")

    def save_offsets(self) -> None:
        """Have the offsets written if any was committed."""
        if self.tables.offsets.is_dirty:
            self.persistence.mark(documents.OFFSETS_FILE)

    def collector(self, counters: Counters) -> BrokerCollector:
        """Return what shows the broker to Prometheus; `counters` are the server's."""
        core, tables = self.core, self.tables
        return BrokerCollector(
            identity=self.identity,
            stats=self.stats,
            commit=core.commit,
            long_polling=core.long_polling,
            overload=core.overload,
            lag=core.lag,
            topics=tables.topics,
            groups=tables.groups,
            producers=tables.producers,
            consumers=tables.consumers,
            registration=self.registration,
            persistence=self.persistence,
            state=self.store.state,
            counters=counters,
        )

    def _topic_changed(self, topic: str) -> None:
        self.gate.topic_changed(topic)
        self.persistence.mark(documents.TOPICS_FILE)
        self.registration.topic_changed(topic)

    async def _create_topic(self, config: TopicConfig) -> None:
        if self.tables.topics.find(config.topic_name) is None:
            self.tables.topics.put(config, self.clock.now_ms())
        await self.persistence.durable(documents.TOPICS_FILE)

    async def _topics_made_known(self) -> None:
        await self._saved(documents.TOPICS_FILE)
        await self.registration.announced()

    async def _groups_saved(self) -> None:
        await self._saved(documents.GROUPS_FILE)

    async def _saved(self, name: str) -> None:
        """Wait until a table is on the disk, and the offsets with it.

        Those of a deleted topic or group must not come back for another one of its name, whose first messages would
        then be passed over.
        """
        self.save_offsets()
        await self.persistence.durable(name)
        await self.persistence.durable(documents.OFFSETS_FILE)

    def _config(self) -> LiveConfig:
        return LiveConfig(
            self.settings,
            self.tables.kept,
            policy=self.core.policy,
            persistence=self.persistence,
            clock=self.clock,
            effective={"brokerIP1": self.identity.host, "listenPort": str(self.identity.port)},
            on_permission=lambda: self.registration.permission_changed(self.clock.now_ms()),
        )

    def _figures(self, files: FileSystem) -> RuntimeInfo:
        core, root_dir = self.core, self.settings.store_path_root_dir
        return RuntimeInfo(
            stats=self.stats,
            commit=core.commit,
            long_polling=core.long_polling,
            lag=core.lag,
            policy=core.policy,
            clock=self.clock,
            root_dir=root_dir,
            state=self.store.state,
            earliest_stored_at=self.store.earliest_stored_at,
            disk_usage=lambda: files.disk_usage(root_dir),
        )

    def _runtime_info(self) -> dict[str, str]:
        delivered = self.tables.delay_offsets.offset_table
        delays = schedule_offsets(delivered, lambda queue_id: self.store.max_offset(SCHEDULE_TOPIC, queue_id))
        return self.runtime_info.collect() | delays

    def _handlers(self, unique_keys: UniqueKeyMaker, recent_bytes: int) -> Mapping[int, Handler]:
        tables, core, stats, store = self.tables, self.core, self.stats, self.store
        identity, policy, clock = self.identity, core.policy, self.clock
        topics, groups, offsets, consumers = tables.topics, tables.groups, tables.offsets, tables.consumers
        made_known: Callable[[], Awaitable[None]] = self._topics_made_known
        return handlers(
            send=self._sender(unique_keys),
            pull=PullProcessor(
                topics=topics,
                groups=groups,
                consumers=consumers,
                offsets=offsets,
                store=store,
                long_polling=core.long_polling,
                overload=core.overload,
                stats=stats,
                policy=policy,
                identity=identity,
                clock=clock,
            ),
            offset=OffsetProcessor(
                topics=topics, groups=groups, offsets=offsets, store=store, clock=clock, recent_bytes=recent_bytes
            ),
            query=QueryProcessor(store=store, policy=policy),
            clients=ClientProcessor(
                producers=tables.producers,
                consumers=consumers,
                topics=topics,
                groups=groups,
                policy=policy,
                clock=clock,
                notify_group=self.notifications.notify,
            ),
            topics=TopicAdminProcessor(
                topics=topics,
                offsets=offsets,
                consumers=consumers,
                store=store,
                stats=stats,
                identity=identity,
                clock=clock,
                made_known=made_known,
            ),
            groups=GroupAdminProcessor(
                groups=groups,
                offsets=offsets,
                delay_offsets=tables.delay_offsets,
                stats=stats,
                clock=clock,
                saved=self._groups_saved,
            ),
            statistics=StatisticsProcessor(
                topics=topics,
                offsets=offsets,
                consumers=consumers,
                store=store,
                stats=stats,
                identity=identity,
                clock=clock,
            ),
            backlog=BacklogProcessor(topics=topics, store=store, identity=identity, clock=clock),
            connections=ConnectionProcessor(
                producers=tables.producers, consumers=consumers, offsets=offsets, identity=identity
            ),
            broker=BrokerAdminProcessor(config=self.config, runtime_info=self._runtime_info),
        )

    def _sender(self, unique_keys: UniqueKeyMaker) -> SendProcessor:
        return SendProcessor(
            gate=self.gate,
            properties=SendProperties(self.identity, unique_keys.make),
            commit=self.core.commit,
            store=self.store,
            stats=self.stats,
            policy=self.core.policy,
            identity=self.identity,
        )
