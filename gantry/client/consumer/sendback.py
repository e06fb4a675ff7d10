"""SendBack: gives a message that could not be processed back to its broker, for a later retry.

The broker that has the message stores it once more for the group (request 36). If it can't be asked, or refuses, the
client sends the message itself to the retry topic of the group, on any broker. If the first request got no answer, the
message may then be delivered twice.

Source: RocketMQ 5.3 DefaultMQPushConsumerImpl.sendMessageBack.
"""

from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, BrokerUnavailableError, NoAnswerError, NoRouteError
from gantry.client.producer import Producer
from gantry.client.sendrequest import EncodedSend, encode_message_properties
from gantry.model.delaylevel import DELAY_LEVELS_MS, level_of_delay
from gantry.model.message import Message, MessageQueue, StoredMessage
from gantry.model.names import CLIENT_INNER_PRODUCER_GROUP, retry_topic
from gantry.model.propertyname import PropertyName
from gantry.model.sysflag import COMPRESSED, COMPRESSION_MASK
from gantry.remoting.codes import RequestCode
from gantry.remoting.headers import ConsumerSendMsgBackHeader
from gantry.remoting.headers.group import GANTRY_FAILURES_MAX

FAILURES_MAX = 16
"""Number of retries of a message, if the consumer does not choose another one."""
TIMEOUT_MS = 5_000
DEAD = -1
"""The level that makes a dead letter of a message."""
FIRST_LEVEL = 3
"""Delay level after the first failure; each further failure takes the next level."""

_UNREACHED_ERRORS = (BrokerError, BrokerUnavailableError, NoAnswerError, NoRouteError)


class SendBack:
    """Sends messages of one consumer group back.

    Args:
        engine: The client engine.
        group: The consumer group.
        failures_max: Number of retries of a message before it becomes a dead letter; None for that of the group.

    Concurrency: the event loop's thread, any number of calls at once.
    """

    def __init__(self, engine: ClientEngine, group: str, *, failures_max: int | None = FAILURES_MAX) -> None:
        self._engine = engine
        self._group = group
        self._failures_max = failures_max
        self._producer = Producer(engine, CLIENT_INNER_PRODUCER_GROUP)

    async def send_back(
        self,
        message: StoredMessage,
        broker_name: str,
        *,
        delay_level: int = 0,
        delay_ms: int | None = None,
        failures: int = 1,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """Give a message back. On return, a broker has stored it for its next delivery, or as a dead letter.

        Args:
            message: The message as it was pulled.
            broker_name: Broker set from which it was pulled.
            delay_level: Level of the delay; 0: the broker decides; DEAD: make a dead letter of the message at once.
            delay_ms: The delay instead of a level. A broker that is not Gantry's takes the next longer level.
            failures: Number of failed deliveries of this record. It is more than 1 if it was tried again in place.
            timeout_ms: Time-out for the request, and for the message that the client sends instead.

        Raises:
            SendError: Neither way succeeded. The message can be sent back again.
            InvalidArgumentError: The message has too many properties for a retry.
            NotStartedError: The engine does not run.
        """
        if delay_ms is not None:
            delay_level = level_of_delay(delay_ms, DELAY_LEVELS_MS)
        header = ConsumerSendMsgBackHeader(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=self._failures_max,
            gantry_delay_ms=delay_ms,
            gantry_failures=None if failures == 1 else min(failures, GANTRY_FAILURES_MAX),
        )
        queue = MessageQueue(message.topic, broker_name, message.queue_id)
        try:
            address = await self._engine.queue_address(queue)
            await self._engine.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=timeout_ms)
        except _UNREACHED_ERRORS:
            await self._producer.send_prepared(self._retry(message, delay_level, failures), timeout_ms=timeout_ms)

    def _retry(self, message: StoredMessage, delay_level: int, failures_here: int) -> EncodedSend:
        """Return the message that goes to the retry topic."""
        failures = message.reconsume_times + failures_here
        # A broker makes a dead letter of a message that failed more often than the limit.
        failures_max = 0 if delay_level == DEAD else self._failures_max
        properties = dict(message.properties)
        properties.pop(PropertyName.TRAN_MSG, None)
        properties.setdefault(PropertyName.RETRY_TOPIC, message.topic)
        properties.setdefault(PropertyName.ORIGIN_MESSAGE_ID, message.message_id)
        properties[PropertyName.RECONSUME_TIME] = str(failures)
        if failures_max is not None:
            properties[PropertyName.MAX_RECONSUME_TIMES] = str(failures_max)
        properties[PropertyName.DELAY] = str(delay_level if delay_level > 0 else FIRST_LEVEL + message.reconsume_times)
        topic = retry_topic(self._group)
        message_id = properties.get(PropertyName.UNIQ_KEY)
        made_id = self._engine.unique_keys.make() if message_id is None else None
        encoded = encode_message_properties(Message(topic, message.body, properties), made_id)
        return EncodedSend(
            RequestCode.SEND_MESSAGE_V2,
            topic,
            message.body,
            encoded.decode(),
            message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
            message.flag,
            (message_id or made_id or "",),
            reconsume_times=failures,
            max_reconsume_times=failures_max,
        )
