"""The JSON form of brokers' settings, and of what was removed on them."""

from collections.abc import Collection, Sequence
from typing import Any

from gantry.remoting.bodies.cleaning import Cleaned
from services.gateway.usecases.operations.settings import Setting


def settings_view(broker: str, settings: Sequence[Setting]) -> dict[str, Any]:
    """Return a broker's settings in the contract's form."""
    return {
        "broker": broker,
        "items": [
            {
                "name": setting.name,
                "value": setting.value,
                "default": setting.default,
                "live": setting.is_live,
                "changed": setting.is_changed,
            }
            for setting in settings
        ],
    }


def cleaned_view(broker: str, what: Collection[str], cleaned: Cleaned, *, dry_run: bool) -> dict[str, Any]:
    """Return what was removed in the contract's form; null for what was not asked for."""
    log = {
        "files": cleaned.log_files,
        "bytes": cleaned.log_bytes,
        "min_physical_offset": str(cleaned.min_physical_offset),
    }
    # A broker learns which files of queues are no longer needed only by removing them.
    queues = {"files": None if dry_run else cleaned.queue_files}
    return {
        "broker": broker,
        "dry_run": dry_run,
        "expired_files": log if "expired_files" in what else None,
        "expired_queues": queues if "expired_queues" in what else None,
        "unused_topics": cleaned.topics if "unused_topics" in what else None,
    }
