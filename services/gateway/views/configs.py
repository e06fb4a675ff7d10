"""The JSON form of topics and groups."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from gantry.model.group import SubscriptionGroup
from gantry.model.topic import TopicConfig
from services.gateway.schemas.configs import observed_group, observed_topic
from services.gateway.usecases.configs.configuration import Configuration
from services.gateway.views.metadata import metadata_view
from services.gateway.views.optional import moment_view

ObservedState = TypeVar("ObservedState")


def topic_view(topic: Configuration[TopicConfig]) -> dict[str, Any]:
    """Return a topic in the contract's form."""
    return {"topic": topic.name, **_facts(topic, observed_topic)}


def group_view(group: Configuration[SubscriptionGroup]) -> dict[str, Any]:
    """Return a group in the contract's form."""
    return {"group": group.name, **_facts(group, observed_group)}


def _facts(
    config: Configuration[ObservedState], observed_view: Callable[[ObservedState], dict[str, Any]]
) -> dict[str, Any]:
    row = config.row
    return {
        **msgspec.to_builtins(config.settings),
        "state": config.state.value,
        "pending": config.pending,
        "origin": _origin(config),
        "observed": [{"broker": broker, **observed_view(there)} for broker, there in config.observed.items()],
        "metadata": metadata_view(is_available=config.is_metadata_available),
        "created_at": moment_view(None if row is None else row.created_at),
        "updated_at": moment_view(None if row is None else row.updated_at),
    }


def _origin(config: Configuration[Any]) -> str:
    if config.row is not None:
        return config.row.origin
    return "broker" if config.is_metadata_available else "unknown"
