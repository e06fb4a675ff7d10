"""Views that combine the answers of brokers about themselves and their consumers."""

from gantry.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from gantry.remoting.bodies.connections import ClientConnection, ConsumerConnection
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.cluster.health import FailedPart, judge
from services.gateway.usecases.cluster.members import read_store_figures
from services.gateway.usecases.consuming.consumers import connected_clients, sightings_of
from services.gateway.views.cluster import store_view
from services.gateway.views.consumers import client_view
from services.gateway.views.health import readiness_view


def connection(*clients: str, expression: str = "*", version: int = 1) -> ConsumerConnection:
    return ConsumerConnection(
        connections=tuple(
            ClientConnection(client_addr=f"10.0.0.1:{number}", client_id=client, language="JAVA", version=479)
            for number, client in enumerate(clients)
        ),
        subscriptions={"T": SubscriptionData("T", expression, sub_version=version)},
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=MessageModel.CLUSTERING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    )


def test_an_instance_on_two_brokers_is_one_instance():
    views = [client_view(client) for client in connected_clients({"a": connection("c1", "c2"), "b": connection("c2")})]
    assert [(view["client_id"], view["brokers"], view["version"]) for view in views] == [
        ("c1", ["a"], "V5_3_3"),
        ("c2", ["a", "b"], "V5_3_3"),
    ]
    assert views[0]["message_model"] == "CLUSTERING"


def test_brokers_with_different_filters_are_two_sightings():
    same = sightings_of([connection("c1"), connection("c1", "c2", version=5)])
    assert [(seen.expression, seen.clients, seen.sub_version) for seen in same] == [("*", ("c1", "c2"), 5)]
    differ = sightings_of([connection("c1"), connection("c1", expression="AA")])
    assert [seen.expression for seen in differ] == ["*", "AA"]
    assert sightings_of([ConsumerConnection()]) == []


def test_a_store_is_shown_with_the_reported_fields():
    facts = {"commitLogDiskRatio": "0.19", "commitLogMaxOffset": "733", "putTps": "1.5 2 3", "msgPutTotalTodayNow": "5"}
    facts |= {"gantryFlushBehindBytes": "17", "gantryStoreWritable": "false", "gantryStoreReason": "disk full"}
    facts |= {"getTransferredTps": "2.5 2 3", "putLatency99": "1.25", "msgGetTotalTodayNow": "9"}
    facts |= {"msgPutTotalTodayMorning": "2", "earliestMessageTimeStamp": "-1", "bootTimestamp": "1"}
    view = store_view(read_store_figures(facts))
    assert view == {
        "disk_ratio": 0.19,
        "min_physical_offset": None,
        "max_physical_offset": "733",
        "dispatch_behind_bytes": None,
        "earliest_stored_at": None,
        "booted_at": "1970-01-01T00:00:00.001Z",
        "flush_behind_bytes": 17,
        "writable": False,
        "reason": "disk full",
        "put_tps": 1.5,
        "get_tps": 2.5,
        "put_latency_p99_ms": 1.25,
        "messages_put_today": 3,
        "messages_got_today": None,
    }
    unreadable = read_store_figures({"putTps": "?", "commitLogDiskRatio": "x", "commitLogMaxOffset": "-5"})
    assert set(store_view(unreadable).values()) == {None}


def test_readiness_follows_from_the_worst_missing_part():
    metadata, brokers = FailedPart("metadata", "away", is_fatal=False), FailedPart("brokers", "none", is_fatal=True)
    assert readiness_view(judge([])) == {"status": "ready", "reasons": []}
    assert readiness_view(judge([metadata]))["status"] == "degraded"
    both = readiness_view(judge([metadata, brokers]))
    assert both["status"] == "unready"
    assert both["reasons"] == [{"part": "metadata", "detail": "away"}, {"part": "brokers", "detail": "none"}]


def test_metrics_are_in_the_format_of_prometheus():
    metrics = GatewayMetrics()
    metrics.observe("GET", "/v1/topics", 200, 3)
    metrics.observe("GET", "/v1/topics", 404, 40_000)
    metrics.sent["stored"] += 2
    metrics.refused_connection("slow_head")
    metrics.count("reconcile_put", 3)
    metrics.gauges["streams"] = 4
    text = metrics.render().decode()
    for line in (
        'gantry_gateway_requests_total{method="GET",path="/v1/topics",status="200"} 1.0',
        'gantry_gateway_request_seconds_bucket{le="0.005",method="GET",path="/v1/topics"} 1.0',
        'gantry_gateway_request_seconds_bucket{le="+Inf",method="GET",path="/v1/topics"} 2.0',
        'gantry_gateway_request_seconds_sum{method="GET",path="/v1/topics"} 40.003',
        'gantry_gateway_sent_messages_total{outcome="stored"} 2.0',
        'gantry_gateway_refused_connections_total{reason="slow_head"} 1.0',
        "gantry_gateway_reconcile_put_total 3.0",
        "gantry_gateway_streams 4.0",
    ):
        assert line in text
