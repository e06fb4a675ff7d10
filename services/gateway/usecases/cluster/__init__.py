"""Brokers and name servers: requests to all of them, views of the cluster, health."""
