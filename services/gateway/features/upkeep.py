"""Upkeep: features without routes, which repair, sample and tidy up in the background."""

from typing import Any

from gantry.client.backlog import Backlog
from gantry.runtime.workers import ThreadWorker
from services.gateway.core import Core, Feature
from services.gateway.usecases.audit.retention import AuditRetention
from services.gateway.usecases.configs.reconciler import KindReconciler, Reconciler
from services.gateway.usecases.consuming.subscriptionmirror import Mirror
from services.gateway.usecases.sampling.lagseries import LagSeries
from services.gateway.usecases.sampling.retention import SampleRetention
from services.gateway.usecases.sampling.sampler import Sampler
from services.gateway.usecases.sampling.survey import SampleSurvey


def reconciliation_feature(core: Core) -> Feature:
    """Repair differences between the topics and groups of Postgres and those of the brokers."""
    each: list[KindReconciler[Any]] = [
        KindReconciler(core.topic_kind, core.metadata, core.brokers),
        KindReconciler(core.group_kind, core.metadata, core.brokers),
    ]
    interval_ms = core.settings.reconcile_interval_ms
    reconciler = Reconciler(each, core.metadata, core.metrics, interval_ms=interval_ms)
    return Feature(background={"reconciler": reconciler.run}, at_start=reconciler.declare)


def subscription_mirror_feature(core: Core) -> Feature:
    """Mirror the subscriptions of connected consumers into Postgres."""
    mirror = Mirror(
        core.consumers,
        core.group_kind,
        core.brokers,
        core.metadata,
        core.metrics,
        interval_ms=core.settings.mirror_interval_ms,
        keep_days=core.settings.subscription_keep_days,
    )
    return Feature(background={"mirror": mirror.run})


def audit_retention_feature(core: Core) -> Feature:
    """Delete old rows of the audit trail."""
    keep_days = core.settings.audit_keep_days
    retention = AuditRetention(core.metadata, core.metrics, clock=core.clock, keep_days=keep_days)
    return Feature(background={"audit_retention": retention.run})


def lag_sample_feature(core: Core) -> Feature:
    """Sample the offsets of all groups, so that lag has a history."""
    settings, metrics, clock = core.settings, core.metrics, core.clock
    worker = ThreadWorker("gateway.samples")
    survey = SampleSurvey(
        Backlog(core.engine),
        core.topic_kind,
        core.brokers,
        metrics,
        connected=core.consumers.subscribed_topics,
        has_consumed=core.recent_consumers.has_consumed,
        clock=clock,
    )
    retention = SampleRetention(
        core.metadata,
        metrics,
        worker=worker,
        clock=clock,
        raw_hours=settings.sample_raw_hours,
        keep_days=settings.sample_keep_days,
    )
    sampler = Sampler(
        survey,
        core.brokers,
        core.metadata,
        metrics,
        retention=retention,
        worker=worker,
        clock=clock,
        series=LagSeries(series_max=settings.lag_series_max),
        interval_ms=settings.sample_interval_ms,
    )
    return Feature(background={"sampler": sampler.run})
