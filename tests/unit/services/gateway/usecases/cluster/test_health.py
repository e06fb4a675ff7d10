"""Readiness soon reports unreachable brokers, and costs little for any number of probes."""

import asyncio

import pytest

from gantry.client.engine import ClientEngine
from gantry.model.route import BrokerData
from gantry.remoting.codes import RequestCode
from services.gateway.usecases.cluster.brokers import MISSING_KEPT_MS
from services.gateway.usecases.cluster.health import CACHED_MS, Health
from services.gateway.usecases.metadata import Metadata
from services.gateway.views.health import readiness_view
from tests.support.scriptedpeer import ScriptedCluster, ScriptedTransport
from tests.support.virtualtime import VirtualClock


@pytest.fixture
def health(engine: ClientEngine, clock: VirtualClock, cluster: ScriptedCluster) -> Health:
    cluster.topic("T", "a", "b")
    return Health(engine, Metadata(None), clock=clock, keys_loaded=lambda: True)


async def look(health: Health) -> tuple[str, str]:
    """Return the status as with a database, and the details about brokers."""
    readiness = readiness_view(await health.readiness())
    of_brokers = [reason["detail"] for reason in readiness["reasons"] if reason["part"] == "brokers"]
    if readiness["status"] == "degraded" and not of_brokers:
        return "ready", ""
    return readiness["status"], "".join(of_brokers)


async def later(health: Health) -> tuple[str, str]:
    await asyncio.sleep(CACHED_MS / 1_000)
    return await look(health)


async def test_a_dead_broker_is_reported_before_name_servers_notice(
    health: Health, transport: ScriptedTransport, cluster: ScriptedCluster
) -> None:
    assert await look(health) == ("ready", "")
    transport.down("b:10911")
    status, detail = await later(health)
    assert status == "degraded"
    assert detail.startswith("broker b: ")
    assert "connection refused" in detail
    # Name servers drop the broker, and it is still reported as away.
    gone = cluster.registered.pop("b")
    assert await later(health) == ("degraded", "broker b: it is no longer registered")
    cluster.registered["b"] = gone
    transport.at("b:10911", {RequestCode.HEART_BEAT: lambda request: None})
    assert await later(health) == ("ready", "")
    del cluster.registered["b"]
    await later(health)
    await asyncio.sleep(MISSING_KEPT_MS / 1_000)
    assert await later(health) == ("ready", "")


async def test_without_a_usable_broker_the_gateway_is_unready(
    health: Health, transport: ScriptedTransport, cluster: ScriptedCluster
) -> None:
    for address in ("a:10911", "b:10911"):
        transport.down(address)
    status, detail = await look(health)
    assert (status, detail.count("connection refused")) == ("unready", 2)
    cluster.registered.clear()
    assert await later(health) == ("unready", "no broker is registered")


async def test_probes_cost_nothing_while_all_brokers_answer(
    health: Health, transport: ScriptedTransport, clock: VirtualClock
) -> None:
    for _ in range(300):
        await health.readiness()
        await asyncio.sleep(10 / 1_000)
    looks = transport.sent(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert (len(looks) <= 4, sorted(transport.dials)) == (True, ["a:10911", "b:10911"])
    transport.down("b:10911")
    transport.dials.clear()
    for _ in range(300):
        await health.readiness()
        await asyncio.sleep(10 / 1_000)
    assert len(transport.dials) <= 4


async def test_a_host_that_does_not_answer_does_not_delay_probes(
    health: Health, transport: ScriptedTransport, clock: VirtualClock
) -> None:
    transport.latency_s["b:10911"] = 60.0
    asked_ms = clock.monotonic_ms()
    status, detail = await look(health)
    assert (status, "no connection within" in detail) == ("degraded", True)
    assert clock.monotonic_ms() - asked_ms < 500


async def test_long_lists_are_cut(health: Health, cluster: ScriptedCluster) -> None:
    for number in range(30):
        cluster.registered[f"x{number:02}"] = BrokerData("C", f"x{number:02}", {1: f"x{number}:1"})
    status, detail = await look(health)
    assert (status, detail.count(";"), detail.endswith("; and 20 more")) == ("degraded", 10, True)
