"""Builds the feature "delay levels": the send hook, the delivery, its timers and figures."""

from collections.abc import Mapping

from gantry.model.delaylevel import parse_delay_levels
from gantry.model.names import SCHEDULE_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.remoting.aio import Handler
from services.broker.assembly import Broker
from services.broker.delay.delivery import INTERVAL_MS, DelayedDelivery
from services.broker.delay.levels import divert, usual_levels
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
        self._usual: dict[str, tuple[int, int]] = {}

    def delays_ms(self) -> tuple[int, ...]:
        """Return the lengths in ms; the first one belongs to level 1."""
        if self._live_settings.current.message_delay_level != self._text:
            self._follow()
        return self._delays_ms

    def find(self, level: str) -> tuple[int, int] | None:
        """Return queue and delay in ms of a level; None if it is 0, unusual or higher than the highest one."""
        if self._live_settings.current.message_delay_level != self._text:
            self._follow()
        return self._usual.get(level)

    def _follow(self) -> None:
        self._text = self._live_settings.current.message_delay_level
        self._delays_ms = parse_delay_levels(self._text)
        self._usual = usual_levels(self._delays_ms)
        self._store.set_delay_levels(self._delays_ms)


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
        found = self.levels.find(level)
        if found is None:
            return None
        more = f"REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02".encode()
        return SCHEDULE_TOPIC, found[0], more, None, found[1]

    def handlers(self) -> Mapping[int, Handler]:
        """Return no handlers."""
        return {}


def build(broker: Broker) -> DelayFeature:
    """Build the feature from the broker's parts."""
    return DelayFeature(broker)
