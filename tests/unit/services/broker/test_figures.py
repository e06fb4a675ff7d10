"""The broker's own figures, for tools (request 28) and for Prometheus."""

import asyncio
import json

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gantry.remoting.codes import RequestCode
from services.broker.runtimeinfo import _size, _span, schedule_offsets
from services.broker.timers import timers
from tests.support.brokerunit import BrokerUnit
from tests.support.heartbeats import consumer_beat


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (4608, "4.5 KiB"), (252 << 30, "252.0 GiB"), (1 << 61, "2048.0 PiB")],
)
def test_sizes_are_written_as_rocketmq_does(size_bytes: int, text: str) -> None:
    assert _size(size_bytes) == text


def test_spans_are_written_as_rocketmq_does() -> None:
    assert _span(187_999) == "[ 0 days, 0 hours, 3 minutes, 7 seconds ]"
    assert _span(90_061_000) == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"


def test_delay_levels_are_shown_with_their_queues() -> None:
    assert schedule_offsets({1: 13, 3: 14}, lambda queue_id: queue_id * 10) == {
        "scheduleMessageOffset_1": "13,0",
        "scheduleMessageOffset_3": "14,20",
    }


async def test_totals_at_the_turn_of_the_day_are_recorded() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        await unit.send()
        unit.clock.set_wall(unit.clock.now_ms() + 86_400_000)
        await asyncio.sleep(2)
        await unit.send()
        answer = await unit.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = json.loads(answer.body_bytes)["table"]
        assert (table["msgPutTotalTodayMorning"], table["msgPutTotalTodayNow"]) == ("1", "2")


async def test_every_timer_has_a_unique_name() -> None:
    async with BrokerUnit() as unit:
        names = [name for name, interval_ms, _ in timers(unit.broker) if interval_ms > 0]
        features = {"queue-locks", "transactions", "delay", "timer", "timer-rates"}
        assert {"tick", "maintain", "rates", "statistics", "client-expiry", "offsets"} | features <= set(names)
        assert len(set(names)) == len(names)


async def test_prometheus_gets_traffic_tables_and_health() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        await unit.send()
        await unit.pull()
        await unit.ask(RequestCode.HEART_BEAT, body=consumer_beat("1@2", "g", "T", producer_groups=("pg",)))
        registry = CollectorRegistry()
        registry.register(unit.broker.collector(unit.server.counters))
        text = generate_latest(registry).decode()
    base = 'cluster="C",node_id="broker-a",node_type="broker"'
    for line in [
        'rocketmq_messages_in_total{cluster="C",is_system="false",node_id="broker-a",node_type="broker",topic="T"} 1.0',
        f'rocketmq_messages_out_total{{cluster="C",consumer_group="g",is_retry="false",is_system="false",{base[12:]},topic="T"}} 1.0',
        f"rocketmq_consumer_connections{{{base}}} 1.0",
        f"rocketmq_producer_connections{{{base}}} 1.0",
        f"gantry_broker_put_latency_milliseconds_count{{{base}}} 1.0",
        f"gantry_broker_flush_latency_milliseconds_count{{{base}}} 1.0",
        f"gantry_broker_store_writable{{{base}}} 1.0",
        f"gantry_broker_store_lost_bytes{{{base}}} 0.0",
        f"gantry_broker_held_pulls{{{base}}} 0.0",
    ]:
        assert line in text, line
