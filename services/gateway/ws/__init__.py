"""WebSocket `/v1/stream`: push consumption and publishing over one connection.

`frames`, `messagewriter`, `inflight`, `subscription` and `session` are pure: frames and pulled records go in, frames
and orders come out. `endpoint` is what carries the orders out.
"""
