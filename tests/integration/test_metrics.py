"""The metrics server on a real port."""

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from gantry.runtime.errors import StartupError
from gantry.runtime.metrics import start_metrics_server


def test_metrics_are_shown_until_the_server_stops():
    registry = CollectorRegistry()
    Counter("gantry_test_seen", "What was seen.", registry=registry).inc(3)
    server = start_metrics_server("127.0.0.1", 0, registry=registry)
    url = f"http://127.0.0.1:{server.port}/metrics"
    assert "gantry_test_seen_total 3.0" in httpx.get(url, trust_env=False).text
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


def test_a_port_in_use_is_one_line_with_advice():
    first = start_metrics_server("127.0.0.1", 0, registry=CollectorRegistry())
    try:
        with pytest.raises(StartupError, match=f"metrics on 127.0.0.1:{first.port}: another process has this port"):
            start_metrics_server("127.0.0.1", first.port, registry=CollectorRegistry())
    finally:
        first()


def test_a_host_that_is_not_local_is_refused():
    with pytest.raises(StartupError, match=r"metrics on 192\.0\.2\.1:0: can't listen there"):
        start_metrics_server("192.0.2.1", 0, registry=CollectorRegistry())
