"""The seams between a broker and its features: the lists to which a feature adds its own parts when it is built."""

from collections.abc import Awaitable, Callable, Mapping

from services.broker.metrics import Figure
from services.broker.newmessage import QuickHook, SendHook
from services.broker.offsetresets import OnReset

Timer = tuple[str, int, Callable[[], Awaitable[None] | None]]
"""Name, interval in ms, and work of a timer. The timer waits for the end of work that is a coroutine."""


class FeatureSeams:
    """The parts of all features.

    Attributes:
        on_topic_changed: Callbacks, called with the name of a topic that was created, changed or deleted.
        on_group_changed: Callbacks, called with the name of a consumer group that was created, changed or deleted.
        on_offsets_reset: Callbacks, called with each reset of committed offsets (offsetresets.py): topic, group, and the
            new offset of each queue. They run in the same turn of the loop, before any other request is answered.
        figures: Metrics.
        runtime_figures: Functions that return figures for request 28.
        timers: Timers.
        at_stop: Callbacks, called once when the broker stops, before offsets and tables are saved.
        send_hooks: Hooks for special messages, in the order in which they run.
        special_properties: Names of the properties that make a message special (newmessage.py).
        quick_hooks: Quick hooks by the name of their property, which is special, too.
    """

    def __init__(self) -> None:
        self.on_topic_changed: list[Callable[[str], None]] = []
        self.on_group_changed: list[Callable[[str], None]] = []
        self.on_offsets_reset: list[OnReset] = []
        self.figures: list[Figure] = []
        self.runtime_figures: list[Callable[[], Mapping[str, str]]] = []
        self.timers: list[Timer] = []
        self.at_stop: list[Callable[[], None]] = []
        self.send_hooks: list[SendHook] = []
        self.special_properties: set[str] = set()
        self.quick_hooks: dict[str, QuickHook] = {}
