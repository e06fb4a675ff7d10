"""The one place that builds a gateway: the core, and the list of its features."""

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from services.gateway.app import make_application
from services.gateway.core import Core, Feature, build_core
from services.gateway.features.alerts import alert_feature
from services.gateway.features.audit import audit_feature
from services.gateway.features.brokers import broker_feature
from services.gateway.features.cluster import cluster_feature
from services.gateway.features.console import console_feature
from services.gateway.features.deadletters import dead_letter_feature
from services.gateway.features.groups import group_feature
from services.gateway.features.jobs import job_feature
from services.gateway.features.keys import key_feature
from services.gateway.features.limits import limit_feature
from services.gateway.features.lives import life_feature
from services.gateway.features.objectives import objective_feature
from services.gateway.features.producergroups import producer_group_feature
from services.gateway.features.read import read_feature
from services.gateway.features.receiving import receiving_feature
from services.gateway.features.reports import report_feature
from services.gateway.features.scheduled import scheduled_feature
from services.gateway.features.send import send_feature
from services.gateway.features.service import service_feature
from services.gateway.features.shrinking import shrink_feature
from services.gateway.features.statistics import statistics_feature
from services.gateway.features.stream import stream_feature
from services.gateway.features.topics import topic_feature
from services.gateway.features.transactions import transaction_feature
from services.gateway.features.upkeep import (
    audit_retention_feature,
    lag_sample_feature,
    reconciliation_feature,
    subscription_mirror_feature,
)
from services.gateway.features.users import user_feature
from services.gateway.settings import GatewaySettings

FEATURES: Final[Sequence[Callable[[Core], Feature]]] = (
    send_feature,
    receiving_feature,
    read_feature,
    topic_feature,
    shrink_feature,
    group_feature,
    dead_letter_feature,
    scheduled_feature,
    life_feature,
    transaction_feature,
    objective_feature,
    cluster_feature,
    broker_feature,
    statistics_feature,
    report_feature,
    alert_feature,
    job_feature,
    key_feature,
    user_feature,
    audit_feature,
    limit_feature,
    service_feature,
    stream_feature,
    producer_group_feature,
    console_feature,
    reconciliation_feature,
    subscription_mirror_feature,
    audit_retention_feature,
    lag_sample_feature,
)
"""All features. Starlette tries routes in this order, so the most frequent come first."""


class Gateway:
    """The parts of one gateway.

    Attributes:
        core: Parts that several features share.
        routes: Routes of all features.
    """

    def __init__(self, core: Core, features: Sequence[Feature]) -> None:
        self.core = core
        self.routes: list[BaseRoute] = [route for feature in features for route in feature.routes]
        self._features = features

    def application(self) -> Starlette:
        """Return the ASGI application. Its lifespan starts and stops the parts."""
        core = self.core
        return make_application(
            self.routes,
            core.callers,
            core.metrics,
            clock=core.clock,
            limits=core.limits,
            access_log=core.settings.access_log,
            cors_origins=core.settings.cors_origins,
            is_public_contract=core.settings.public_contract,
            is_stopping=lambda: core.health.is_stopping,
            lifespan=self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Start the parts, and stop them at the end of the block. Background work is the caller's to run."""
        try:
            if await self.core.start():
                for feature in self._features:
                    if feature.at_start is not None:
                        await feature.at_start()
            yield
        finally:
            await self.core.stop()

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the work that runs as long as the gateway does, by name."""
        core = self.core
        work = {"keys": core.key_store.run, "engine": core.engine.wait_for_failure, "due_work": core.due_work.run}
        for feature in self._features:
            assert not work.keys() & feature.background.keys(), "two features have a background work of one name"
            work.update(feature.background)
        return {name: run() for name, run in work.items()}

    async def close_open(self, *, timeout_ms: int) -> None:
        """End what features have open, such as streams; before the server stops."""
        for feature in self._features:
            if feature.at_stop is not None:
                await feature.at_stop(timeout_ms)


def build(settings: GatewaySettings, *, clock: Clock | None = None, rng: Rng | None = None) -> Gateway:
    """Build a gateway; opens no connection.

    Raises:
        StartupError: The URL of the database can't be read, or openapi.json is missing.
    """
    core = build_core(settings, process_id=os.getpid(), clock=clock, rng=rng)
    return Gateway(core, [feature(core) for feature in FEATURES])
