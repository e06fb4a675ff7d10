"""The gateway: Gantry over HTTP and WebSocket.

The gateway is stateless: it holds only connections to the brokers and a cache of API keys, so another gateway can take
over at any time. Metadata is in Postgres; no message waits for Postgres.
"""
