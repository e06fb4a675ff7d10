"""The cluster in JSON, byte by byte."""

from services.gateway.asgi.answer import encode_json
from services.gateway.usecases.cluster.members import BrokerState, ClusterState, NameServerState, read_store_figures
from services.gateway.views.cluster import cluster_view


def test_members_that_answer_and_members_that_do_not():
    store = read_store_figures({"commitLogMinOffset": "0", "commitLogMaxOffset": "733"})
    cluster = ClusterState(
        name_servers=[NameServerState("ns:1", None), NameServerState("ns:2", "connection refused")],
        brokers=[
            BrokerState("C", "a", 0, "a:1", is_missing=True, is_drained=True, version="V5_3_3", store=store),
            BrokerState("C", "a", 1, "a:2", is_missing=True, failure="connection refused"),
        ],
        is_metadata_available=False,
    )
    assert encode_json(cluster_view(cluster)) == (
        b'{"name_servers":[{"address":"ns:1","reachable":true,"detail":null},'
        b'{"address":"ns:2","reachable":false,"detail":"connection refused"}],'
        b'"brokers":[{"cluster":"C","broker":"a","broker_id":0,"role":"master","address":"a:1","reachable":true,'
        b'"detail":"name servers do not list it at the moment","drained":true,"version":"V5_3_3",'
        b'"store":{"disk_ratio":null,"min_physical_offset":"0","max_physical_offset":"733",'
        b'"dispatch_behind_bytes":null,"earliest_stored_at":null,"booted_at":null,"flush_behind_bytes":null,'
        b'"writable":null,"reason":null,"put_tps":null,"get_tps":null,"put_latency_p99_ms":null,'
        b'"messages_put_today":null,"messages_got_today":null}},'
        b'{"cluster":"C","broker":"a","broker_id":1,"role":"slave","address":"a:2","reachable":false,'
        b'"detail":"connection refused","drained":null,"version":null,"store":null}],"metadata":"unavailable"}'
    )
