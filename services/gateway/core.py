"""The core of a gateway: the parts that several features share.

A feature is a function that takes the core, builds its own parts, and returns them as a `Feature`: routes, background
work, and hooks for start and stop. bootstrap.py has the list of all features.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from starlette.routing import BaseRoute

from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.client.tracer import Tracer
from gantry.model.group import SubscriptionGroup
from gantry.model.topic import TopicConfig
from gantry.runtime.clock import Clock, SystemClock
from gantry.runtime.errors import StartupError
from gantry.runtime.rng import Rng
from services.gateway.auth.callers import Callers
from services.gateway.auth.keycache import FileKeyCache
from services.gateway.auth.keyring import KeyRing
from services.gateway.auth.keystore import KeyStore
from services.gateway.auth.passwords import Passwords
from services.gateway.auth.receiptkey import ReceiptKey
from services.gateway.auth.sessionring import SessionRing
from services.gateway.auth.sessionstore import SessionStore
from services.gateway.auth.tickets import Tickets
from services.gateway.db.engine import Database
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.settings import GatewaySettings
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.cluster.health import Health
from services.gateway.usecases.configs.configs import Configs
from services.gateway.usecases.configs.kinds import GroupKind, TopicKind
from services.gateway.usecases.configs.presence import Presence
from services.gateway.usecases.consuming.consumers import Consumers
from services.gateway.usecases.consuming.recentconsumers import RecentConsumers
from services.gateway.usecases.duework import DueWork
from services.gateway.usecases.jobs.jobs import Jobs
from services.gateway.usecases.jobs.runner import JobKind
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.reading.read import QueueReader
from services.gateway.usecases.sending.send import SendMessages
from services.gateway.usecases.sending.windows import TopicWindows
from services.gateway.usecases.transactions.checking import Asker

PRODUCER_GROUP: Final = "GANTRY_GATEWAY"
KEY_CACHE_FILE: Final = "gateway-keys.json"
FIRST_KEY_FILE: Final = "first-api-key"
RECEIPT_KEY_FILE: Final = "gateway-receipt-key"
FIRST_PASSWORD_FILE: Final = "first-admin-password"  # noqa: S105 - a file name.

Background = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Feature:
    """The parts of one feature.

    Attributes:
        routes: Routes of Starlette. An `Operation` passes the gate, which authenticates its caller; the endpoint of any
            other route, such as a WebSocket, must authenticate its callers itself.
        background: Work that runs as long as the gateway does, by name.
        at_start: Runs once at start, if Postgres answers.
        at_stop: Ends what is open; its argument is the time for that in ms. Runs before the server stops.
    """

    routes: Sequence[BaseRoute] = ()
    background: Mapping[str, Background] = field(default_factory=dict)
    at_start: Callable[[], Awaitable[None]] | None = None
    at_stop: Callable[[int], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class Core:
    """The shared parts of one gateway.

    A feature that has a kind of job adds it to `job_kinds`, and queues jobs with `jobs`. One that can ask the producers
    of a group about an open transaction adds itself to `askers`, which are asked in their order.
    """

    settings: GatewaySettings
    clock: Clock
    rng: Rng
    metrics: GatewayMetrics
    limits: Limits
    engine: ClientEngine
    producer: Producer
    tracer: Tracer | None
    metadata: Metadata
    keys: KeyRing
    key_store: KeyStore
    receipt_key: ReceiptKey
    callers: Callers
    passwords: Passwords
    session_store: SessionStore
    tickets: Tickets
    brokers: Brokers
    health: Health
    topic_kind: TopicKind
    group_kind: GroupKind
    topics: Configs[TopicConfig]
    groups: Configs[SubscriptionGroup]
    known_topics: Presence[TopicConfig]
    sending: SendMessages
    reader: QueueReader
    consumers: Consumers
    recent_consumers: RecentConsumers
    jobs: Jobs
    due_work: DueWork
    job_kinds: dict[str, JobKind]
    askers: list[Asker]

    async def start(self) -> bool:
        """Start the client engine and fill the key ring; brokers and Postgres may be away.

        Returns:
            Whether Postgres answered.
        """
        await self.engine.start()
        await self.producer.start()
        if self.tracer is not None:
            await self.tracer.start()
        self.key_store.load_cache()
        return await self.key_store.refresh()

    async def stop(self) -> None:
        """Close everything that start opened, after the last request was answered."""
        await self.reader.close()
        await self.producer.close()
        if self.tracer is not None:
            await self.tracer.close()
        await self.engine.stop()
        if self.metadata.database is not None:
            await self.metadata.database.close()


def build_core(
    settings: GatewaySettings, *, process_id: int, clock: Clock | None = None, rng: Rng | None = None
) -> Core:
    """Build the core; opens no connection.

    Args:
        settings: Settings of the gateway.
        process_id: Id of this process, for message ids.
        clock: Source of time; the system's by default.
        rng: Source of randomness; the system's by default.

    Raises:
        StartupError: The URL of the database can't be read.
    """
    clock, rng = clock or SystemClock(), rng or Rng()
    metrics, limits = GatewayMetrics(), Limits(settings, clock)
    metrics.limits = limits
    engine = ClientEngine(_client_settings(settings, process_id), clock=clock, rng=rng)
    producer = Producer(engine, PRODUCER_GROUP)
    receipt_key = ReceiptKey(str(Path(settings.data_dir) / RECEIPT_KEY_FILE))
    metadata, keys, passwords = Metadata(_database(settings, clock)), KeyRing(clock), Passwords()
    sessions = SessionRing(clock)
    session_store = _session_store(settings, sessions, metadata, passwords)
    key_store = _key_store(settings, keys, receipt_key, metadata, clock)
    callers = Callers(keys, sessions, session_store, key_store)
    brokers = Brokers(engine, clock=clock)
    health = Health(engine, metadata, clock=clock, keys_loaded=lambda: keys.is_loaded)
    windows = TopicWindows(engine)
    topic_kind, group_kind = TopicKind(engine, on_change=windows.forget), GroupKind(engine)
    known_topics = Presence(topic_kind, metadata, brokers, engine)
    jobs = Jobs(metadata)
    known_groups = Presence(group_kind, metadata, brokers, engine)
    return Core(
        settings=settings,
        clock=clock,
        rng=rng,
        metrics=metrics,
        limits=limits,
        engine=engine,
        producer=producer,
        tracer=Tracer(engine) if settings.trace_messages else None,
        metadata=metadata,
        keys=keys,
        key_store=key_store,
        receipt_key=receipt_key,
        callers=callers,
        passwords=passwords,
        session_store=session_store,
        tickets=Tickets(callers, limits.tickets, clock=clock),
        brokers=brokers,
        health=health,
        topic_kind=topic_kind,
        group_kind=group_kind,
        topics=Configs(topic_kind, metadata, brokers, engine, presence=known_topics, clock=clock),
        groups=Configs(group_kind, metadata, brokers, engine, presence=known_groups, clock=clock),
        known_topics=known_topics,
        sending=SendMessages(producer, engine, metrics, topics=known_topics, windows=windows),
        reader=QueueReader(
            engine, brokers, metrics, clock=clock, topics=known_topics, is_stopping=lambda: health.is_stopping
        ),
        consumers=Consumers(engine, brokers, metadata, clock=clock),
        recent_consumers=RecentConsumers(clock),
        jobs=jobs,
        due_work=DueWork(metadata, jobs=jobs.due),
        job_kinds={},
        askers=[],
    )


def _client_settings(settings: GatewaySettings, process_id: int) -> ClientSettings:
    return ClientSettings(
        namesrv=settings.namesrv,
        client_ip=settings.client_ip,
        process_id=process_id,
        send_timeout_ms=settings.send_timeout_ms,
        admin_timeout_ms=settings.broker_timeout_ms,
        # Callers compress bodies themselves; here it would cost every sender its latency.
        compress_over_bytes=0,
    )


def _database(settings: GatewaySettings, clock: Clock) -> Database | None:
    if settings.database_url is None:
        return None
    try:
        return Database.open(settings.database_url, clock=clock)
    except ValueError as error:
        raise StartupError(f"--database: {error}") from None


def _session_store(
    settings: GatewaySettings, ring: SessionRing, metadata: Metadata, passwords: Passwords
) -> SessionStore:
    return SessionStore(
        ring,
        metadata.database,
        passwords,
        interval_ms=settings.key_poll_interval_ms,
        first_password_file=settings.first_password_file or str(Path(settings.data_dir) / FIRST_PASSWORD_FILE),
    )


def _key_store(
    settings: GatewaySettings, keys: KeyRing, receipt_key: ReceiptKey, metadata: Metadata, clock: Clock
) -> KeyStore:
    folder = Path(settings.data_dir)
    return KeyStore(
        keys,
        metadata.database,
        FileKeyCache(str(folder / KEY_CACHE_FILE)),
        clock=clock,
        interval_ms=settings.key_poll_interval_ms,
        first_key_file=settings.first_key_file or str(folder / FIRST_KEY_FILE),
        keep_first_key_file=settings.keep_first_key_file,
        receipt_key=receipt_key,
    )
