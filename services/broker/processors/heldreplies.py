"""Replies to sends that are held back until their messages are as durable as the flush mode promises."""

from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.replies import SendReplies
from services.broker.durabilitywaiters import Outcome
from services.broker.processors.sendparts import OUTCOME_CODES

# Python 3.11 calls a function for each access to a member of an enum by its class.
_DURABLE = Outcome.DURABLE
_NOT_WRITTEN = Outcome.NOT_WRITTEN
# Channel, request without its content, stored message id (a batch has all ids, separated by commas), queue id, queue
# offset, unique key and recall handle. A plain tuple, because the broker makes one for every message.
HeldReply = tuple[Channel, RemotingCommand, str, int, int, str, str | None]


class HeldReplies:
    """Sends the replies.

    Concurrency: the loop's thread.
    """

    def __init__(self, replies: SendReplies) -> None:
        self._replies = replies

    def complete(self, outcome: Outcome, reply: HeldReply) -> None:
        """Reply to a send whose message is as durable as it will be. `DurabilityWaiters.wait_with` calls this.

        By now the request has lost its content, because the CommitLog has the message. Otherwise a flush that takes a
        second would keep the bodies of that second in memory.
        """
        channel, request, message_id, queue_id, queue_offset, unique_key, recall_handle = reply
        if outcome is _DURABLE and recall_handle is None:
            frame = self._replies.frame(request, message_id, queue_id, queue_offset, unique_key)
            channel.reply_frame(request, frame)
        elif outcome is _NOT_WRITTEN:
            remark = "the message could not be written; whether it is stored is unknown"
            channel.reply(request, RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark=remark))
        else:
            command = self._replies.command(
                request,
                message_id,
                queue_id,
                queue_offset,
                unique_key,
                code=0 if outcome is _DURABLE else OUTCOME_CODES[outcome],
                recall_handle=recall_handle,
            )
            channel.reply(request, command)
