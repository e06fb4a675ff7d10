"""The JSON form of brokers' settings."""

from collections.abc import Sequence
from typing import Any

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
