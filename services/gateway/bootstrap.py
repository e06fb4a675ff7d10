"""The one place that builds the gateway and wires it together."""

import os
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp

from gantry.client.backlog import Backlog
from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.model.group import SubscriptionGroup
from gantry.model.topic import TopicConfig
from gantry.runtime.clock import Clock, SystemClock
from gantry.runtime.errors import StartupError
from gantry.runtime.rng import Rng
from gantry.runtime.workers import ThreadWorker
from services.gateway.auth.keycache import FileKeyCache
from services.gateway.auth.keyring import KeyRing
from services.gateway.auth.keystore import KeyStore
from services.gateway.auth.tickets import Tickets
from services.gateway.db.engine import Database
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.settings import GatewaySettings
from services.gateway.usecases.alerts.delivery import LEASE_SPARE_MS, SendPolicy
from services.gateway.usecases.alerts.listing import Alerts
from services.gateway.usecases.alerts.sender import WebhookSender
from services.gateway.usecases.alerts.webhooks import Webhooks
from services.gateway.usecases.audit.retention import AuditTidy
from services.gateway.usecases.audit.trail import Audit
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.cluster.health import Health
from services.gateway.usecases.cluster.views import Cluster
from services.gateway.usecases.configs.configs import Configs
from services.gateway.usecases.configs.kinds import GroupKind, TopicKind
from services.gateway.usecases.configs.presence import Presence
from services.gateway.usecases.configs.reconciler import KindReconciler, Reconciler
from services.gateway.usecases.consuming.consumers import Consumers
from services.gateway.usecases.consuming.offsets import GroupOffsets
from services.gateway.usecases.consuming.subscriptionmirror import Mirror
from services.gateway.usecases.keys import Keys
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.reading.lookup import Lookup
from services.gateway.usecases.reading.read import QueueReader
from services.gateway.usecases.reports.laghistory import LagHistory
from services.gateway.usecases.reports.objectives import Objectives
from services.gateway.usecases.reports.rows import ReportRows
from services.gateway.usecases.reports.runs import Reports
from services.gateway.usecases.sampling.lagseries import LagSeries
from services.gateway.usecases.sampling.retention import SampleTidy
from services.gateway.usecases.sampling.sampler import Sampler
from services.gateway.usecases.sampling.survey import SampleLook
from services.gateway.usecases.sending.send import SendMessages
from services.gateway.ws.consumers import GroupConsumers
from services.gateway.ws.endpoint import StreamEndpoint

PRODUCER_GROUP: Final = "GANTRY_GATEWAY"
KEY_CACHE_FILE: Final = "gateway-keys.json"
FIRST_KEY_FILE: Final = "first-api-key"

_HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the application is made of."""

    settings: GatewaySettings
    clock: Clock
    metrics: GatewayMetrics
    limits: Limits
    contract: bytes
    engine: ClientEngine
    producer: Producer
    metadata: Metadata
    keys: KeyRing
    key_store: KeyStore
    tickets: Tickets
    health: Health
    sending: SendMessages
    reader: QueueReader
    lookup: Lookup
    topics: Configs[TopicConfig]
    groups: Configs[SubscriptionGroup]
    objectives: Objectives
    offsets: GroupOffsets
    consumers: Consumers
    cluster: Cluster
    key_admin: Keys
    audit: Audit
    audit_tidy: AuditTidy
    reports: Reports
    report_rows: ReportRows
    lag_history: LagHistory
    alerts: Alerts
    webhooks: Webhooks
    webhook_sender: WebhookSender
    reconciler: Reconciler
    mirror: Mirror
    sampler: Sampler
    stream: StreamEndpoint

    @property
    def stream_app(self) -> ASGIApp:
        """Return the WebSocket's application."""
        return self.stream

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what runs for as long as the gateway does, by name."""
        return {
            "keys": self.key_store.run(),
            "reconciler": self.reconciler.run(),
            "mirror": self.mirror.run(),
            "sampler": self.sampler.run(),
            "audit_tidy": self.audit_tidy.run(),
            "webhooks": self.webhook_sender.run(),
            "engine": self.engine.wait_for_failure(),
        }

    async def start(self) -> None:
        """Start the client engine and fill the key ring; brokers and Postgres may be away."""
        await self.engine.start()
        await self.producer.start()
        self.key_store.load_cache()
        if await self.key_store.refresh():
            await self.reconciler.declare()

    async def stop(self) -> None:
        """Close what start opened, after the last request was answered."""
        await self.reader.close()
        await self.producer.close()
        await self.engine.stop()
        if self.metadata.database is not None:
            await self.metadata.database.close()


def build(settings: GatewaySettings, *, clock: Clock | None = None, rng: Rng | None = None) -> Dependencies:
    """Build a gateway; connects to nobody.

    Raises:
        StartupError: The database's URL can't be read, or the contract is not where it should be.
    """
    clock, rng = clock or SystemClock(), rng or Rng()
    metrics, limits = GatewayMetrics(), Limits(settings, clock)
    metrics.limits = limits
    engine = ClientEngine(_client_settings(settings), clock=clock, rng=rng)
    producer = Producer(engine, PRODUCER_GROUP)
    metadata, keys = Metadata(_database(settings, clock)), KeyRing()
    key_store = _key_store(settings, keys, metadata, clock)
    tickets = Tickets(keys, limits.tickets, clock=clock)
    brokers = Brokers(engine, clock=clock)
    health = Health(engine, metadata, clock=clock, keys_loaded=lambda: keys.is_loaded)
    topic_kind, group_kind = TopicKind(engine), GroupKind(engine)
    known_topics = Presence(topic_kind, metadata, brokers, engine)
    known_groups = Presence(group_kind, metadata, brokers, engine)
    reader = _reader(engine, brokers, metrics, health, clock=clock, topics=known_topics)
    sending = SendMessages(producer, engine, metrics, topics=known_topics)
    groups = Configs(group_kind, metadata, brokers, engine, presence=known_groups, clock=clock)
    consumers = Consumers(engine, brokers, metadata, clock=clock)
    return Dependencies(
        settings=settings,
        clock=clock,
        metrics=metrics,
        limits=limits,
        contract=find_contract(),
        engine=engine,
        producer=producer,
        metadata=metadata,
        keys=keys,
        key_store=key_store,
        tickets=tickets,
        health=health,
        sending=sending,
        reader=reader,
        lookup=Lookup(engine, brokers, reader, metrics, topics=known_topics),
        topics=Configs(topic_kind, metadata, brokers, engine, presence=known_topics, clock=clock),
        groups=groups,
        objectives=Objectives(metadata, groups, clock=clock),
        offsets=GroupOffsets(engine, brokers, reader, consumers, metadata),
        consumers=consumers,
        cluster=Cluster(engine, brokers, metadata),
        key_admin=Keys(metadata, keys, key_store),
        audit=Audit(metadata),
        audit_tidy=AuditTidy(metadata, metrics, clock=clock, keep_days=settings.audit_keep_days),
        reports=Reports(metadata, clock=clock),
        report_rows=ReportRows(metadata, clock=clock),
        lag_history=LagHistory(metadata, clock=clock, in_thread=engine.in_thread),
        alerts=Alerts(metadata),
        webhooks=Webhooks(metadata, clock=clock, networks=settings.private_networks),
        webhook_sender=_webhook_sender(settings, metadata, metrics, clock=clock, rng=rng),
        reconciler=_reconciler(settings, (topic_kind, group_kind), metadata, brokers, metrics),
        mirror=_mirror(settings, consumers, group_kind, brokers, metadata=metadata, metrics=metrics),
        sampler=_sampler(settings, engine, brokers, consumers, metadata, metrics=metrics, clock=clock),
        stream=StreamEndpoint(
            keys=keys,
            tickets=tickets,
            consumers=GroupConsumers(engine, groups.consume_timeout_ms, explained=reader.explained),
            publisher=sending,
            quotas=limits,
            metrics=metrics,
            clock=clock,
            rng=rng,
            client_ip=settings.client_ip,
        ),
    )


def find_contract() -> bytes:
    """Return openapi.json: beside this module in a wheel, in `openapi/` in the repository.

    Raises:
        StartupError: It is in neither place.
    """
    for path in (_HERE / "openapi" / "openapi.json", _HERE.parents[1] / "openapi" / "openapi.json"):
        if path.exists():
            return path.read_bytes()
    raise StartupError("openapi.json is missing from the installation: run `make contract`, or install Gantry again")


def _reader(
    engine: ClientEngine,
    brokers: Brokers,
    metrics: GatewayMetrics,
    health: Health,
    *,
    clock: Clock,
    topics: Presence[Any],
) -> QueueReader:
    return QueueReader(engine, brokers, metrics, clock=clock, topics=topics, is_stopping=lambda: health.is_stopping)


def _client_settings(settings: GatewaySettings) -> ClientSettings:
    return ClientSettings(
        namesrv=settings.namesrv,
        client_ip=settings.client_ip,
        process_id=os.getpid(),
        send_timeout_ms=settings.send_timeout_ms,
        admin_timeout_ms=settings.broker_timeout_ms,
        # A body is compressed by whoever wants it so; here it would cost every sender its latency.
        compress_over_bytes=0,
    )


def _database(settings: GatewaySettings, clock: Clock) -> Database | None:
    if settings.database_url is None:
        return None
    try:
        return Database.open(settings.database_url, clock=clock)
    except ValueError as error:
        raise StartupError(f"--database: {error}") from None


def _reconciler(
    settings: GatewaySettings,
    kinds: tuple[TopicKind, GroupKind],
    metadata: Metadata,
    brokers: Brokers,
    metrics: GatewayMetrics,
) -> Reconciler:
    topics, groups = kinds
    each: list[KindReconciler[Any]] = [
        KindReconciler(topics, metadata, brokers),
        KindReconciler(groups, metadata, brokers),
    ]
    return Reconciler(each, metadata, metrics, interval_ms=settings.reconcile_interval_ms)


def _webhook_sender(
    settings: GatewaySettings, metadata: Metadata, metrics: GatewayMetrics, *, clock: Clock, rng: Rng
) -> WebhookSender:
    return WebhookSender(
        metadata,
        metrics,
        clock=clock,
        rng=rng,
        networks=settings.private_networks,
        policy=SendPolicy(
            timeout_ms=settings.webhook_timeout_ms,
            give_up_ms=settings.webhook_give_up_ms,
            lease_ms=settings.webhook_timeout_ms + LEASE_SPARE_MS,
        ),
    )


def _mirror(
    settings: GatewaySettings,
    consumers: Consumers,
    groups: GroupKind,
    brokers: Brokers,
    *,
    metadata: Metadata,
    metrics: GatewayMetrics,
) -> Mirror:
    interval_ms, keep_days = settings.mirror_interval_ms, settings.subscription_keep_days
    return Mirror(consumers, groups, brokers, metadata, metrics, interval_ms=interval_ms, keep_days=keep_days)


def _sampler(
    settings: GatewaySettings,
    engine: ClientEngine,
    brokers: Brokers,
    consumers: Consumers,
    metadata: Metadata,
    *,
    metrics: GatewayMetrics,
    clock: Clock,
) -> Sampler:
    worker = ThreadWorker("gateway.samples")
    return Sampler(
        SampleLook(
            Backlog(engine),
            TopicKind(engine),
            brokers,
            metrics,
            connected=consumers.subscribed_topics,
            clock=clock,
        ),
        brokers,
        metadata,
        metrics,
        tidy=SampleTidy(
            metadata,
            metrics,
            worker=worker,
            clock=clock,
            raw_hours=settings.sample_raw_hours,
            keep_days=settings.sample_keep_days,
        ),
        worker=worker,
        clock=clock,
        series=LagSeries(series_max=settings.lag_series_max),
        interval_ms=settings.sample_interval_ms,
    )


def _key_store(settings: GatewaySettings, keys: KeyRing, metadata: Metadata, clock: Clock) -> KeyStore:
    folder = Path(settings.data_dir)
    return KeyStore(
        keys,
        metadata.database,
        FileKeyCache(str(folder / KEY_CACHE_FILE)),
        clock=clock,
        interval_ms=settings.key_poll_interval_ms,
        first_key_file=settings.first_key_file or str(folder / FIRST_KEY_FILE),
        keep_first_key_file=settings.keep_first_key_file,
    )
