"""Wires a broker's parts around a store that has started. It opens no sockets and starts no tasks.

The only files it touches are config/*.json. bootstrap.py adds what belongs to a process: addresses, listening, timers
and signals.
"""

from collections.abc import Callable

from gantry.model.names import SCHEDULE_TOPIC
from gantry.model.topic import TopicConfig
from gantry.model.uniqkey import UniqueKeyGenerator
from gantry.remoting.aio import Channel, Counters, Handler
from gantry.runtime.files import FileSystem
from services.broker.core import Core, Runtime
from services.broker.duplicates.window import DuplicateWindows
from services.broker.identity import BrokerIdentity
from services.broker.liveconfig import LiveConfig, StartCheck
from services.broker.metrics import BrokerCollector
from services.broker.notifications import GroupNotifications
from services.broker.offsetcommits import OffsetCommits
from services.broker.offsetresets import OffsetResets
from services.broker.registration import Caller, Registration
from services.broker.registry import documents
from services.broker.registry.configfile import ConfigFile
from services.broker.registry.persistence import Persistence
from services.broker.resetfence import ResetFence
from services.broker.runtimeinfo import RuntimeInfo, schedule_offsets
from services.broker.seams import FeatureSeams
from services.broker.settings import BrokerSettings
from services.broker.stats import BrokerStats
from services.broker.store.messagestore import MessageStore
from services.broker.tables import Tables
from services.broker.topicdeletion import TopicDeletion


class Broker(FeatureSeams):
    """The parts of a running broker that all features share.

    Attributes:
        handlers: Handlers of the features, by request code.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        identity: BrokerIdentity,
        runtime: Runtime,
        core: Core,
        store: MessageStore,
        *,
        client: Caller,
        build_handlers: Callable[["Broker"], dict[int, Handler]],
        unique_keys: UniqueKeyGenerator,
        physical_memory_bytes: int,
        next_start: StartCheck | None = None,
    ) -> None:
        """Create and connect all parts. Raises StartupError if a config file can't be read."""
        super().__init__()
        clock = runtime.clock
        self.settings = settings
        self.identity = identity
        self.core = core
        self.store = store
        self.clock = clock
        self.tables = tables = Tables(settings, identity, files=store.files, clock=clock)
        tables.clamp_offsets(store.max_offset)
        self.fence = ResetFence(tables.offsets, clock, tables.consumers.has_connection_in)
        self.commits = OffsetCommits(
            topics=tables.topics, offsets=tables.offsets, store=store, fence=self.fence, clock=clock
        )
        self.resets = self._resets()
        self.windows = DuplicateWindows(tables.topics, core.live_settings, clock, runtime.rng)
        self.stats = BrokerStats(identity.cluster, clock.now_ms())
        self.persistence = Persistence(runtime.run_in_thread)
        tables.keep(self.persistence)
        self.registration = Registration(
            settings.name_servers(),
            identity=identity,
            topics=tables.topics,
            live_settings=core.live_settings,
            client=client,
            period_ms=settings.register_name_server_period,
            timeout_ms=settings.register_broker_timeout_mills,
            on_order_topics=lambda topics: tables.topics.mark_ordered(topics, clock.now_ms()),
        )
        self.deletion = TopicDeletion(
            topics=tables.topics,
            offsets=tables.offsets,
            store=store,
            stats=self.stats,
            clock=clock,
            saved=lambda: self._saved(documents.TOPICS_FILE),
        )
        self.notifications = GroupNotifications(tables.consumers, tables.groups, core.live_settings, runtime.loop)
        self.config = self._config(next_start)
        self.persistence.add(
            documents.SETTINGS_FILE,
            ConfigFile(store.files, documents.config_path(settings.store_path_root_dir, documents.SETTINGS_FILE)),
            self.config.text,
        )
        self.runtime_info = self._figures(store.files)
        self.rng = runtime.rng
        self.unique_keys = unique_keys
        self.recent_bytes = physical_memory_bytes * settings.access_message_in_memory_max_ratio // 100
        self.handlers = build_handlers(self)
        tables.topics.on_change = self._topic_changed
        tables.groups.on_change = self._group_changed
        # The files may lack topics and groups that this start added. Both tables are saved soon. After a crash before
        # that, the next start adds them again.
        self.persistence.mark(documents.TOPICS_FILE)
        self.persistence.mark(documents.GROUPS_FILE)
        self.deletion.finish_unsaved(self.save_all)

    def disconnected(self, channel: Channel) -> None:
        """Forget everything that belongs to a connection: its held pulls, reads, producers, senders and consumers."""
        self.core.long_polling.forget(channel)
        self.core.cold.forget(channel)
        self.fence.forget(channel)
        self.tables.groups.dismissed.forget_connection(channel)
        self.tables.producers.drop_connection(channel)
        self.tables.senders.drop_connection(channel)
        for group in self.tables.consumers.drop_connection(channel):
            self.notifications.notify(group)

    def expire_clients(self) -> None:
        """Remove instances that have been silent for too long, and close connections that have no instance left."""
        tables, timeout_ms = self.tables, self.core.live_settings.current.channel_expired_timeout
        now_ms = self.clock.monotonic_ms()
        groups, connections = tables.consumers.expire(now_ms, timeout_ms)
        connections |= tables.producers.expire(now_ms, timeout_ms)
        for group in groups:
            self.notifications.notify(group)
        for connection in connections:
            if not tables.consumers.has_connection(connection) and not tables.producers.has_connection(connection):
                connection.close(f"no heart-beat for {timeout_ms} ms")

    def save_offsets(self) -> None:
        """Request a save of the offsets if any was committed since the last save."""
        if self.tables.offsets.is_dirty:
            self.tables.offsets.is_dirty = False
            self.persistence.mark(documents.OFFSETS_FILE)
        if self.tables.offsets.resets.is_dirty:
            self.tables.offsets.resets.is_dirty = False
            self.persistence.mark(documents.RESETS_FILE)

    def save_all(self) -> None:
        """Save all tables that have changed, in the caller's thread. This is the last step before the store stops.

        Raises:
            OSError: The disk failed.
        """
        self.save_offsets()
        self.tables.delay_offsets.save()
        self.persistence.write_all()

    async def create_topic(self, config: TopicConfig) -> None:
        """Create a topic unless it exists, and wait until it is on disk. Raises NotSavedError."""
        if self.tables.topics.find(config.topic_name) is None:
            self.tables.topics.put(config, self.clock.now_ms())
        await self.persistence.durable(documents.TOPICS_FILE)

    async def wait_until_topics_announced(self) -> None:
        """Wait until topics and offsets are on disk and the name servers know the topics. Raises NotSavedError."""
        await self._saved(documents.TOPICS_FILE)
        await self.registration.wait_until_announced()

    async def wait_until_groups_saved(self) -> None:
        """Wait until groups, their retry topics and offsets are on disk. Raises NotSavedError."""
        await self.persistence.durable(documents.TOPICS_FILE)
        await self._saved(documents.GROUPS_FILE)

    async def wait_until_group_saved(self, group: str) -> None:
        """Wait until a group that may be new is on disk. Raises NotSavedError."""
        created = self.tables.groups.created
        ticket = created.get(group)
        if ticket is not None:
            await self.wait_until_groups_saved()
            if created.get(group) is ticket:
                del created[group]

    async def wait_until_offsets_saved(self) -> None:
        """Wait until resets and offsets are on disk. Raises NotSavedError."""
        self.save_offsets()
        await self.persistence.durable(documents.RESETS_FILE)
        await self.persistence.durable(documents.OFFSETS_FILE)

    def collect_runtime_info(self) -> dict[str, str]:
        """Return the figures of request 28."""
        delivered = self.tables.delay_offsets.offsets
        delays = schedule_offsets(delivered, lambda queue_id: self.store.max_offset(SCHEDULE_TOPIC, queue_id))
        figures = self.runtime_info.collect() | delays
        for more in self.runtime_figures:
            figures.update(more())
        return figures

    def collector(self, counters: Counters) -> BrokerCollector:
        """Return the collector that exports the broker's state to Prometheus; `counters` are those of the server."""
        core, tables = self.core, self.tables
        return BrokerCollector(
            identity=self.identity,
            stats=self.stats,
            waiters=core.waiters,
            long_polling=core.long_polling,
            cold=core.cold,
            overload=core.overload,
            lag=core.lag,
            topics=tables.topics,
            groups=tables.groups,
            producers=tables.producers,
            consumers=tables.consumers,
            registration=self.registration,
            persistence=self.persistence,
            refused_commits=lambda: self.commits.refused_count,
            state=self.store.state,
            counters=counters,
            connections_max=self.settings.server_connections_max,
            figures=self.figures,
        )

    def finish(self) -> None:
        """Let the features append what they hold in memory. Called once, when no more requests arrive."""
        for work in self.at_stop:
            work()

    def _topic_changed(self, topic: str) -> None:
        for changed in self.on_topic_changed:
            changed(topic)
        if self.tables.topics.find(topic) is None:
            self.tables.senders.forget(topic)
        self.persistence.mark(documents.TOPICS_FILE)
        self.registration.topic_changed(topic)

    def _group_changed(self, group: str) -> None:
        for changed in self.on_group_changed:
            changed(group)
        self.persistence.mark(documents.GROUPS_FILE)

    async def _saved(self, name: str) -> None:
        """Wait until a table and the offsets are on disk.

        The offsets of a deleted topic or group must not survive on disk. A new topic or group of the same name would
        start from them and skip its first messages.
        """
        self.save_offsets()
        await self.persistence.durable(name)
        await self.persistence.durable(documents.OFFSETS_FILE)

    def _resets(self) -> OffsetResets:
        return OffsetResets(
            self.identity.name,
            offsets=self.tables.offsets,
            consumers=self.tables.consumers,
            fence=self.fence,
            long_polling=self.core.long_polling,
            clock=self.clock,
            callbacks=self.on_offsets_reset,
            save=self.wait_until_offsets_saved,
        )

    def _config(self, next_start: StartCheck | None) -> LiveConfig:
        return LiveConfig(
            self.settings,
            self.tables.kept,
            live_settings=self.core.live_settings,
            persistence=self.persistence,
            clock=self.clock,
            effective={"brokerIP1": self.identity.host, "listenPort": str(self.identity.port)},
            next_start=next_start,
            on_permission=lambda: self.registration.permission_changed(self.clock.now_ms()),
        )

    def _figures(self, files: FileSystem) -> RuntimeInfo:
        core, root_dir = self.core, self.settings.store_path_root_dir
        return RuntimeInfo(
            stats=self.stats,
            waiters=core.waiters,
            long_polling=core.long_polling,
            lag=core.lag,
            live_settings=core.live_settings,
            clock=self.clock,
            root_dir=root_dir,
            state=self.store.state,
            earliest_stored_at=self.store.earliest_stored_at,
            disk_usage=lambda: files.disk_usage(root_dir),
            connections_max=self.settings.server_connections_max,
        )
