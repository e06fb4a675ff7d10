"""The gateway: Gantry over HTTP and WebSocket.

A stateless front: it holds connections to the brokers and a cache of API keys, and nothing that another gateway
could not take over. Metadata is in Postgres, which no message ever waits for.
"""
