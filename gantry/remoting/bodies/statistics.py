"""The response to request 900033, Gantry's own: the traffic of a topic or a group."""

from typing import Final

from gantry.remoting.bodies.fastjson import JsonBody

STORED: Final = "STORED"
DELIVERED: Final = "DELIVERED"
SENT_BACK: Final = "SENT_BACK"
DEAD: Final = "DEAD"
ROWS_MAX: Final = 1_000
"""The maximum number of flows in a response."""


class FlowWindow(JsonBody, kw_only=True):
    """The traffic of one window. `elapsed_ms` is the time that it really covers."""

    bytes: int
    elapsed_ms: int
    messages: int


class FlowRow(JsonBody, kw_only=True):
    """One flow: its kind, the topic, the group (None for STORED), and its windows. SENT_BACK and DEAD count no bytes."""

    day: FlowWindow
    group: str | None
    hour: FlowWindow
    kind: str
    minute: FlowWindow
    topic: str


class FlowRows(JsonBody, kw_only=True):
    """900033: the flows, and whether there are more than ROWS_MAX."""

    is_truncated: bool
    rows: list[FlowRow]
