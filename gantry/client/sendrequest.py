"""The request of a send, and the meaning of its answer (pure).

A producer checks and encodes a message or a batch once (EncodedSend). It builds a request from it for each attempt, and
reads the position of the messages from the answer. The gateway makes EncodedSend itself.

The header is written directly as ext fields, under SEND_MESSAGE_V2's one-letter names, because this is the hot path of
the gateway. A test checks that the typed header (headers/send.py) writes the same fields.

Source: RocketMQ 5.3 DefaultMQProducerImpl.sendKernelImpl and MQClientAPIImpl.processSendResponse.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from gantry.client.errors import InvalidArgumentError, Outcome
from gantry.model.batch import encode_batch
from gantry.model.errors import InvalidMessageError
from gantry.model.message import Message, MessageQueue, encode_properties
from gantry.model.names import AUTO_CREATE_TOPIC, NOT_ALLOWED_SEND_TOPICS, PROPERTIES_BYTES_MAX
from gantry.model.propertyname import PropertyName
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.send import SentPosition, decode_positions

_UNIQ_KEY = PropertyName.UNIQ_KEY
_SHARDING_KEY = PropertyName.SHARDING_KEY
_INT32 = range(-(1 << 31), 1 << 31)


class SendStatus(enum.StrEnum):
    """The durability with which a broker stored a message, under RocketMQ's names.

    Attributes:
        SEND_OK: As durable as the broker's flush mode and role promise.
        FLUSH_DISK_TIMEOUT: Stored by the master; its flush to the disk did not end in time (SYNC_FLUSH).
        FLUSH_SLAVE_TIMEOUT: Stored by the master; no slave confirmed it in time (SYNC_MASTER).
        SLAVE_NOT_AVAILABLE: Stored by the master; it has no slave that keeps up (SYNC_MASTER).
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The position of a sent message.

    With SEND_OK, the outcome is `stored`: the message is as durable as the broker's flush mode promises. With any other
    status, the message has a position but may be lost together with the broker, so the outcome is `unknown`.

    Attributes:
        status: The durability that the broker reports.
        outcome: The outcome for the caller.
        message_id: The UNIQ_KEY, which the client gave the message before the send.
        stored_id: The broker's id: its address and the record's physical offset, in hex.
        queue: The queue that holds the message.
        queue_offset: The message's offset in this queue.
        transaction_id: The transaction's id that the broker returns; None for a batch, and if the answer has none.
        region_id: The broker's region; None if the answer has none.
        recall_handle: The text by which a message for a set time can be recalled; None if it can't be.
        is_replayed: Whether an earlier request stored the message: the topic has a duplicate window, and knew its key.
    """

    status: SendStatus
    outcome: Outcome
    message_id: str
    stored_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str | None = None
    recall_handle: str | None = None
    is_replayed: bool = False


class BatchSendResult(msgspec.Struct, frozen=True, gc=False):
    """The position of all messages of one request: they lie consecutively in one queue, from `first_offset` on.

    If the broker had some of them already, `positions` has the position of each message, and counts instead.

    It contains the same data as one SendResult for each message. The gateway uses it directly, because it writes
    thousands of results in its own format.
    """

    status: SendStatus
    outcome: Outcome
    message_ids: tuple[str, ...]
    stored_ids: list[str]
    queue: MessageQueue
    first_offset: int
    transaction_id: str | None = None
    region_id: str | None = None
    recall_handle: str | None = None
    is_traced: bool = True
    """Whether the broker wants trace data about its messages."""
    positions: list[SentPosition] | None = None

    def results(self) -> list[SendResult]:
        """Return one result for each message, in their order."""
        status, outcome, queue, first = self.status, self.outcome, self.queue, self.first_offset
        more = (self.transaction_id, self.region_id, self.recall_handle)
        if self.positions is not None:
            topic, broker = queue.topic, queue.broker_name
            return [
                SendResult(
                    status, outcome, message_id, stored_id, MessageQueue(topic, broker, at[0]), at[1], *more, at[2]
                )
                for message_id, stored_id, at in zip(self.message_ids, self.stored_ids, self.positions, strict=True)
            ]
        return [
            SendResult(status, outcome, message_id, stored_id, queue, first + at, *more)
            for at, (message_id, stored_id) in enumerate(zip(self.message_ids, self.stored_ids, strict=True))
        ]


class EncodedSend(NamedTuple):
    """A message or a batch that is checked and encoded, and can be sent to any queue of its topic.

    Attributes:
        code: The request code, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE.
        topic: The topic.
        body: The body, compressed if `sys_flag` says so, or the items of a batch (gantry.model.batch).
        properties: The encoded properties of a message; empty for a batch, whose items contain them.
        sys_flag: RocketMQ's MessageSysFlag bits, such as the compression; 0 for a batch.
        flag: The message's flag, which only applications use; 0 for a batch.
        message_ids: The UNIQ_KEY of each message.
        reconsume_times: Number of failed deliveries of a message that goes to a retry topic; 0 for all others.
        max_reconsume_times: Limit of these; None for all others.
    """

    code: int
    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    message_ids: tuple[str, ...]
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


# Response code → status and outcome, for the codes that mean that the messages have a position.
_STATUSES: dict[int, tuple[SendStatus, Outcome]] = {
    ResponseCode.SUCCESS: (SendStatus.SEND_OK, Outcome.STORED),
    ResponseCode.FLUSH_DISK_TIMEOUT: (SendStatus.FLUSH_DISK_TIMEOUT, Outcome.UNKNOWN),
    ResponseCode.FLUSH_SLAVE_TIMEOUT: (SendStatus.FLUSH_SLAVE_TIMEOUT, Outcome.UNKNOWN),
    ResponseCode.SLAVE_NOT_AVAILABLE: (SendStatus.SLAVE_NOT_AVAILABLE, Outcome.UNKNOWN),
}


def encode_message_properties(message: Message, message_id: str | None, ordering_key: str | None = None) -> bytes:
    """Return a message's encoded properties, with its id and, if it has one, its ordering key.

    Args:
        message: The message; its own properties stay.
        message_id: The UNIQ_KEY to add, or None if the message has one.
        ordering_key: The key that chose the message's queue. It becomes the property SHARDING_KEY, unless the message
            has one. None for no key.

    Raises:
        InvalidArgumentError: A property can't be encoded, or all together exceed PROPERTIES_BYTES_MAX.
    """
    properties = message.properties
    if ordering_key is not None and _SHARDING_KEY not in properties:
        properties = {**properties, _SHARDING_KEY: ordering_key}
    try:
        data = encode_properties(properties)
    except InvalidMessageError as error:
        raise InvalidArgumentError(error.field, error.value, error.reason) from None
    if message_id is not None:
        data += b"UNIQ_KEY\x01%b\x02" % message_id.encode()
    if len(data) > PROPERTIES_BYTES_MAX:
        raise InvalidArgumentError("properties", len(data), f"bytes are more than {PROPERTIES_BYTES_MAX}")
    return data


def check_body(body: bytes, bytes_max: int) -> None:
    """Raise InvalidArgumentError for an empty body, or for one of more than `bytes_max` bytes."""
    if not body:
        raise InvalidArgumentError("body", body, "is empty")
    if len(body) > bytes_max:
        raise InvalidArgumentError("body", len(body), f"bytes are more than {bytes_max}")


def check_flag(flag: int) -> None:
    """Raise InvalidArgumentError for a flag that has no place in the 32 bits of a record."""
    if flag not in _INT32:
        raise InvalidArgumentError("flag", flag, "is not a 32-bit number")


def check_send_topic(topic: str) -> None:
    """Raise InvalidArgumentError for a topic that only the broker writes to."""
    if topic in NOT_ALLOWED_SEND_TOPICS:
        raise InvalidArgumentError("topic", topic, "may not be sent to")


def prepare_batch(
    topic: str, items: Sequence[Message], message_ids: Sequence[str | None], *, body_bytes_max: int
) -> EncodedSend:
    """Check and encode a batch. Producer._prepare does this for a single message, whose body it may compress.

    Args:
        topic: The topic of all items.
        items: The messages, at least one.
        message_ids: The UNIQ_KEY for each message, or None if the message has one.
        body_bytes_max: Largest size of the whole encoded batch.

    Raises:
        InvalidArgumentError: An item is not valid (the field is `items[i].…`), or all together are too large.
    """
    if not items:
        raise InvalidArgumentError("items", items, "is empty")
    parts: list[tuple[int, bytes, bytes]] = []
    append = parts.append
    try:
        for item, message_id in zip(items, message_ids, strict=True):
            body = item.body
            if item.topic != topic or not body or len(body) > body_bytes_max or item.flag not in _INT32:
                _check_item(item, topic, body_bytes_max)
            append((item.flag, body, encode_message_properties(item, message_id)))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"items[{len(parts)}].{error.field}", error.value, error.reason) from None
    data = encode_batch(parts)
    if len(data) > body_bytes_max:
        raise InvalidArgumentError("items", len(data), f"bytes are more than {body_bytes_max}")
    ids: list[str] = []
    for item, message_id in zip(items, message_ids, strict=True):
        found = message_id or item.properties.get(_UNIQ_KEY)
        if found is None:
            raise InvalidArgumentError(f"items[{len(ids)}].properties", item.properties, f"has no {_UNIQ_KEY}")
        ids.append(found)
    return EncodedSend(RequestCode.SEND_BATCH_MESSAGE, topic, data, "", 0, 0, tuple(ids))


def build_request(
    prepared: EncodedSend,
    queue: MessageQueue,
    *,
    producer_group: str,
    now_ms: int,
    default_topic_queue_nums: int | None,
    one_way: bool = False,
) -> RemotingCommand:
    """Return the request that sends a message or a batch to a queue.

    Args:
        prepared: The message or batch.
        queue: The destination.
        producer_group: The producer group of the sender.
        now_ms: Wall time.
        default_topic_queue_nums: Number of queues with which a broker may create an unknown topic; None if the broker
            must not create it. The protocol has no field for "must not". It has a field for the topic that is the
            template of a new one. With None, this field names the unknown topic itself, which can't be a template.
        one_way: Whether no answer is wanted.
    """
    creates = default_topic_queue_nums is not None
    ext = {
        "a": producer_group,
        "b": prepared.topic,
        "c": AUTO_CREATE_TOPIC if creates else prepared.topic,
        "d": str(default_topic_queue_nums) if creates else "1",
        "e": str(queue.queue_id),
        "f": str(prepared.sys_flag) if prepared.sys_flag else "0",
        "g": str(now_ms),  # The born timestamp.
        "h": str(prepared.flag) if prepared.flag else "0",
        "i": prepared.properties,
        "j": str(prepared.reconsume_times) if prepared.reconsume_times else "0",
        "k": "false",  # unitMode.
        "m": "true" if prepared.code == RequestCode.SEND_BATCH_MESSAGE else "false",
        "n": queue.broker_name,
    }
    if prepared.max_reconsume_times is not None:
        ext["l"] = str(prepared.max_reconsume_times)
    return RemotingCommand.request(prepared.code, body=prepared.body, ext=ext, one_way=one_way)


def read_result(prepared: EncodedSend, queue: MessageQueue, response: RemotingCommand) -> BatchSendResult | None:
    """Return the position of the messages from the broker's answer.

    Args:
        prepared: The message or batch that was sent.
        queue: The queue that the request named.
        response: The broker's answer.

    Returns:
        The position, or None if the broker refused the messages: the response code has no SendStatus.

    Raises:
        ValueError: The code has a SendStatus, but the answer lacks the position, or has it for another number of
            messages. The text is a clause for an error that names the broker: "its answer …".
    """
    status = _STATUSES.get(response.code)
    if status is None:
        return None
    ext: Mapping[str, str] = response.ext_fields
    try:
        first, queue_id, stored = int(ext["queueOffset"]), int(ext["queueId"]), ext["msgId"]
    except KeyError as error:
        raise ValueError(f"its answer has no {error.args[0]}") from None
    if queue_id != queue.queue_id:  # The broker chooses a queue if the request has a negative queue id.
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    ids, region_id, is_traced = prepared.message_ids, ext.get("MSG_REGION"), ext.get("TRACE_ON") != "false"
    if len(ids) == 1:
        more = (ext.get("transactionId"), region_id, ext.get("recallHandle"))
        replayed = [SentPosition(queue_id, first, True)] if ext.get("gantryReplayed") == "true" else None
        return BatchSendResult(*status, ids, [stored], queue, first, *more, is_traced, replayed)
    stored_ids = stored.split(",")
    if len(stored_ids) != len(ids):
        raise ValueError(f"its answer names {len(stored_ids)} stored messages for the {len(ids)} sent")
    positions = ext.get("gantryPositions")
    places = None if positions is None else decode_positions(positions, len(ids))
    return BatchSendResult(*status, ids, stored_ids, queue, first, None, region_id, None, is_traced, places)


def _check_item(item: Message, topic: str, body_bytes_max: int) -> None:
    if item.topic != topic:
        raise InvalidArgumentError("topic", item.topic, f"is not the batch's topic {topic!r}")
    check_flag(item.flag)
    check_body(item.body, body_bytes_max)
