"""Builds the feature "delay levels": the send hook, the delivery, its timers and figures."""

from collections.abc import Mapping

from gantry.model.delaylevel import parse_delay_levels
from gantry.model.propertyname import PropertyName
from gantry.remoting.aio import Handler
from services.broker.assembly import Broker
from services.broker.delay.delivery import INTERVAL_MS, DelayedDelivery
from services.broker.delay.levels import divert, find_place
from services.broker.metrics import Figure
from services.broker.newmessage import NewMessage, QuickPlace
from services.broker.settings import LiveSettings
from services.broker.store.messagestore import MessageStore


class DelayLevels:
    """The current lengths of the delay levels. They follow the setting `messageDelayLevel`, which request 25 changes."""

    def __init__(self, live_settings: LiveSettings, store: MessageStore) -> None:
        self._live_settings = live_settings
        self._store = store
        self._text = ""
        self._delays_ms: tuple[int, ...] = ()

    def delays_ms(self) -> tuple[int, ...]:
        """Return the lengths in ms; the first one belongs to level 1."""
        text = self._live_settings.current.message_delay_level
        if text != self._text:
            self._text, self._delays_ms = text, parse_delay_levels(text)
            self._store.set_delay_levels(self._delays_ms)
        return self._delays_ms


class DelayFeature:
    """Delay levels. It answers no requests of its own."""

    def __init__(self, broker: Broker) -> None:
        self.levels = DelayLevels(broker.core.live_settings, broker.store)
        offsets = broker.tables.delay_offsets
        self.delivery = DelayedDelivery(
            store=broker.store,
            cold=broker.core.cold,
            waiters=broker.core.waiters,
            topics=broker.tables.topics,
            offsets=offsets,
            stats=broker.stats,
            clock=broker.clock,
            delays_ms=self.levels.delays_ms,
        )
        broker.special_properties.add(PropertyName.DELAY)
        broker.send_hooks.append(self.divert)
        broker.quick_hooks[PropertyName.DELAY] = self.find_place
        broker.timers.append(("delay", INTERVAL_MS, self.delivery.run))
        broker.timers.append(("delay-offsets", broker.settings.flush_delay_offset_interval, offsets.save))
        broker.figures += (
            Figure(
                "gantry_broker_delayed_messages", "Messages that wait for their level.", self.delivery.waiting_count
            ),
            Figure("gantry_broker_delay_late_ms", "How long the first due message is overdue.", self.delivery.late_ms),
            Figure(
                "gantry_broker_delayed_delivered", "Delivered messages.", lambda: self.delivery.delivered_count, True
            ),
            Figure(
                "gantry_broker_delayed_discarded", "Messages given up.", lambda: self.delivery.discarded_count, True
            ),
        )

    def divert(self, message: NewMessage) -> None:
        """Store a message with a delay level in the schedule topic."""
        divert(message, len(self.levels.delays_ms()))

    def find_place(self, topic: str, queue_id: int, level: str, properties: str, unique_key: str) -> QuickPlace | None:
        """Return where a message with a delay level waits. This is the quick hook."""
        return find_place(topic, queue_id, level, len(self.levels.delays_ms()))

    def handlers(self) -> Mapping[int, Handler]:
        """Return no handlers."""
        return {}


def build(broker: Broker) -> DelayFeature:
    """Build the feature from the broker's parts."""
    return DelayFeature(broker)
