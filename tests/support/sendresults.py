"""Results of sends, as fakes of the gateway's sending return them."""

from gantry.client.errors import Outcome
from gantry.client.sendrequest import BatchSendResult, SendStatus
from gantry.model.message import MessageQueue
from services.gateway.usecases.sending.results import BatchReport, batch_report, placed_messages


def stored_messages(topic: str, count: int) -> BatchReport:
    """Return the report of so many messages that lie in one queue, from its start."""
    ids = ("7F" * 16,) * count
    queue = MessageQueue(topic, "broker-a", 0)
    placement = BatchSendResult(SendStatus.SEND_OK, Outcome.STORED, ids, ["AB" * 16] * count, queue, 0)
    return batch_report(list(placed_messages(placement)))
