"""The send hook of messages for a set time: it stores them under the timer's topic, where they wait.

Source: RocketMQ 5.3 broker/util/HookUtils. Remarks and codes are its.
"""

from collections.abc import Mapping

from gantry.model.names import PROPERTIES_BYTES_MAX, TIMER_TOPIC, TRANS_HALF_TOPIC, is_retry_topic
from gantry.model.propertyname import PropertyName
from gantry.model.recallhandle import RecallHandle, encode_recall_handle
from gantry.model.sysflag import TRANSACTION_PREPARED
from gantry.remoting.codes import ResponseCode
from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from gantry.storeformat.timerfiles import SECOND_MS
from services.broker.newmessage import NewMessage
from services.broker.refusal import RefusalError
from services.broker.settings import INT32_MAX, BrokerSettings
from services.broker.timer.request import (
    drop_requests,
    find_delivery_ms,
    has_delay_level,
    waiting_second_ms,
)
from services.broker.timer.waiting import Waiting

SPECIAL_PROPERTIES = frozenset(
    {
        PropertyName.TIMER_DELAY_SEC,
        PropertyName.TIMER_DELAY_MS,
        PropertyName.TIMER_DELIVER_MS,
        PropertyName.TIMER_DEL_UNIQKEY,
        PropertyName.START_DELIVER_TIME,
    }
)
"""The properties of messages that the hook must see."""

_PER_MILLE = 1000
# The delivered message has up to three more properties, and a checksum.
_ROOM_BYTES = 160


class TimerHook:
    """Decides whether a message waits, and until when.

    Concurrency: the loop's thread.
    """

    def __init__(self, settings: BrokerSettings, *, broker_name: str, waiting: Waiting, clock: Clock, rng: Rng) -> None:
        self._is_enabled = settings.timer_wheel_enable
        self._delay_max_ms = settings.timer_max_delay_sec * SECOND_MS
        self._slot_max = settings.timer_congest_num_each_slot
        self._broker_name = broker_name
        self._waiting = waiting
        self._clock = clock
        self._rng = rng

    def __call__(self, message: NewMessage) -> None:
        """Store a message that asks for a time under the timer's topic. Raises RefusalError."""
        properties = message.properties
        # The first bit of both means that the message is no part of its topic, or not yet.
        if message.sys_flag & TRANSACTION_PREPARED:
            return
        if has_delay_level(properties):
            if message.topic != TRANS_HALF_TOPIC:
                drop_requests(properties)
            return
        if message.topic == TIMER_TOPIC or PropertyName.TIMER_OUT_MS in properties:
            return
        now_ms = self._clock.now_ms()
        delivery_ms = self._delivery_ms(properties, now_ms)
        # A half message waits after its commit. It is checked here, because a commit that is refused would be lost.
        if delivery_ms is not None and delivery_ms > now_ms and message.topic != TRANS_HALF_TOPIC:
            self._store_for_later(message, waiting_second_ms(delivery_ms))

    def _delivery_ms(self, properties: Mapping[str, str], now_ms: int) -> int | None:
        """Return the time for which a message asks, None for none. Raises RefusalError: it can't wait until then."""
        try:
            delivery_ms = find_delivery_ms(properties, now_ms)
        except ValueError as error:
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {error}") from None
        if delivery_ms is None:
            return None
        if not self._is_enabled:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        is_past = delivery_ms <= now_ms
        if delivery_ms - now_ms > self._delay_max_ms or (is_past and PropertyName.TIMER_DEL_UNIQKEY in properties):
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL,
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{self._delay_max_ms}ms; or if set del msg, the delay time should be bigger than the current time; "
                f"the delay is {delivery_ms - now_ms}ms",
            )
        return delivery_ms

    def _store_for_later(self, message: NewMessage, second_ms: int) -> None:
        self._check_congestion(second_ms)
        properties, topic = message.properties, message.topic
        properties[PropertyName.TIMER_OUT_MS] = str(second_ms)
        properties[PropertyName.REAL_TOPIC] = topic
        properties[PropertyName.REAL_QID] = str(message.queue_id)
        size = sum(len(f"{name}{value}".encode(errors="replace")) + 2 for name, value in properties.items())
        if size > PROPERTIES_BYTES_MAX - _ROOM_BYTES:
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"timer message illegal, its properties have {size} bytes, at most "
                f"{PROPERTIES_BYTES_MAX - _ROOM_BYTES} leave room for those of the delivery",
            )
        message.topic, message.queue_id = TIMER_TOPIC, 0
        if not is_retry_topic(topic):
            handle = RecallHandle(topic, self._broker_name, second_ms + 1, properties[PropertyName.UNIQ_KEY])
            message.recall_handle = encode_recall_handle(handle)

    def _check_congestion(self, second_ms: int) -> None:
        """Refuse a message for a second for which too many wait: the more of them, the more often."""
        limit = self._slot_max
        if limit >= INT32_MAX:
            return
        waiting = self._waiting.congestion(second_ms)
        beyond = waiting - limit
        if beyond > 0 and (beyond >= limit or self._rng.below(_PER_MILLE) * (limit + 0.1) > _PER_MILLE * beyond):
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {2 * limit} or the current value is greater "
                f"than {limit} and less than {2 * limit}, trigger random flow control; {waiting} wait for this second",
            )
