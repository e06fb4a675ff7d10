"""Settings of the gateway with rules beyond "a number above 0"."""

import pytest

from services.gateway.settings import GatewaySettings


@pytest.mark.parametrize("interval_ms", [0, 100, 15_000, 45_000])
def test_samples_may_be_switched_off(interval_ms):
    GatewaySettings(sample_interval_ms=interval_ms).check()


def test_origins_are_as_browsers_write_them():
    GatewaySettings(cors_origins=("*", "https://console.example", "http://127.0.0.1:3000", "http://[::1]:3000")).check()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sample_interval_ms": 1}, "sample_interval_ms"),
        ({"sample_interval_ms": -1}, "sample_interval_ms"),
        ({"sample_interval_ms": 60_000}, "sample_interval_ms"),
        ({"sample_keep_days": 0}, "sample_keep_days"),
        ({"audit_keep_days": -1}, "audit_keep_days"),
        ({"subscription_keep_days": -1}, "subscription_keep_days"),
        ({"key_unsent_bytes_max": 0}, "key_unsent_bytes_max"),
        ({"mirror_interval_ms": 0}, "mirror_interval_ms"),
        ({"drain_ms": -1}, "drain_ms"),
        ({"connections_per_address_max": 0}, "connections_per_address_max"),
        ({"write_timeout_ms": 0}, "write_timeout_ms"),
        ({"listen": "8080"}, "listen"),
        ({"namesrv": ()}, "namesrv"),
        ({"cors_origins": ("https://Console.example",)}, "cors_origins"),
        ({"cors_origins": ("https://console.example/",)}, "cors_origins"),
        ({"cors_origins": ("console.example",)}, "cors_origins"),
    ],
)
def test_settings_out_of_range_are_named(settings, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        GatewaySettings(**settings).check()
