"""The JSON form of the cluster's members."""

from typing import Any

from services.gateway.usecases.cluster.members import BrokerState, ClusterState, NameServerState, StoreFigures
from services.gateway.views.metadata import metadata_view
from services.gateway.views.optional import offset_view, time_view


def cluster_view(cluster: ClusterState) -> dict[str, Any]:
    """Return the cluster in the contract's form."""
    return {
        "name_servers": [_name_server_view(server) for server in cluster.name_servers],
        "brokers": [_broker_view(broker) for broker in cluster.brokers],
        "metadata": metadata_view(is_available=cluster.is_metadata_available),
    }


def _name_server_view(server: NameServerState) -> dict[str, Any]:
    return {"address": server.address, "reachable": server.failure is None, "detail": server.failure}


def _broker_view(broker: BrokerState) -> dict[str, Any]:
    missing = "name servers do not list it at the moment" if broker.is_missing else None
    return {
        "cluster": broker.cluster,
        "broker": broker.broker,
        "broker_id": broker.broker_id,
        "role": "master" if broker.is_master else "slave",
        "address": broker.address,
        "reachable": broker.failure is None,
        "detail": missing if broker.failure is None else broker.failure,
        "drained": broker.is_drained,
        "version": broker.version,
        "store": None if broker.store is None else store_view(broker.store),
    }


def store_view(store: StoreFigures) -> dict[str, Any]:
    """Return a store's figures in the contract's form."""
    return {
        "disk_ratio": store.disk_ratio,
        "min_physical_offset": offset_view(store.min_physical_offset),
        "max_physical_offset": offset_view(store.max_physical_offset),
        "dispatch_behind_bytes": store.dispatch_behind_bytes,
        "earliest_stored_at": time_view(store.earliest_stored_at_ms),
        "booted_at": time_view(store.booted_at_ms),
        "flush_behind_bytes": store.flush_behind_bytes,
        "writable": store.is_writable,
        "reason": store.reason,
        "put_tps": store.put_tps,
        "get_tps": store.get_tps,
        "put_latency_p99_ms": store.put_latency_p99_ms,
        "messages_put_today": store.messages_put_today,
        "messages_got_today": store.messages_got_today,
    }
