"""WebSocket `/v1/stream`: push consumption and publishing over one connection.

`frames`, `messagewriter`, `inflight`, `subscription` and `session` are pure: frames and pulled records go in, frames
and effects come out. `endpoint` and `connection` carry the effects out.
"""
