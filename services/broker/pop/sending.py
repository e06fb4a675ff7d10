"""Records as the response to a pop has them."""

from gantry.model.address import pack_host
from gantry.model.message import encode_properties
from gantry.model.names import TOPIC_LENGTH_MAX
from gantry.model.popreceipt import NOT_RETRY, PopReceipt, encode_pop_receipt
from gantry.model.propertyname import PropertyName
from gantry.model.record import decode_record, encode_record
from services.broker.pop.checkpoints import CheckPoint


def as_sent(record: bytes, topic: str, point: CheckPoint, retry: str, broker_name: str) -> bytes:
    """Return a record as the response has it: a retry appears under its original topic, with its receipt."""
    if retry == NOT_RETRY:
        return record
    message = decode_record(record, check_crc=False)
    receipt = PopReceipt(
        point.key.start_offset, point.key.popped_at_ms, point.invisible_ms, point.revive_queue_id, retry, broker_name,
        message.queue_id, message.queue_offset,
    )  # fmt: skip
    properties = encode_properties({**message.properties, PropertyName.POP_CK: encode_pop_receipt(receipt)})
    name = topic.encode()
    return encode_record(
        message.queue_id, message.flag, message.queue_offset, message.physical_offset, message.sys_flag,
        message.born_at_ms, pack_host(message.born_host), message.stored_at_ms, pack_host(message.store_host),
        message.reconsume_times, message.prepared_transaction_offset, message.body, name, properties, message.body_crc,
        1 if len(name) <= TOPIC_LENGTH_MAX else 2, False,
    )  # fmt: skip
