"""Replies to acknowledgements and to changed invisible times, once it is known whether their records are durable."""

from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.pop import ChangeInvisibleTimeResponseHeader
from services.broker.durabilitywaiters import Outcome
from services.broker.refusal import RefusalError


def refuse_undurable(outcome: Outcome) -> RefusalError:
    """Return the refusal of a request whose record may not be durable."""
    return RefusalError(
        ResponseCode.SYSTEM_ERROR, f"it is unknown whether the broker has kept it: {outcome.value}; try again"
    )


def reply_acked(
    outcome: Outcome, channel: Channel, request: RemotingCommand, failed: RefusalError | None, body: bytes | None = None
) -> None:
    """Answer an acknowledgement; `failed` is the refusal of its record."""
    if failed is None and outcome is not Outcome.DURABLE:
        failed = refuse_undurable(outcome)
    if failed is None:
        channel.reply(request, RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body))
    else:
        channel.reply(request, failed.reply_to(request))


def reply_changed(
    outcome: Outcome, channel: Channel, request: RemotingCommand, response: ChangeInvisibleTimeResponseHeader
) -> None:
    """Answer a change of an invisible time."""
    if outcome is Outcome.DURABLE:
        channel.reply(request, RemotingCommand.response_to(request, ResponseCode.SUCCESS, response))
    else:
        channel.reply(request, refuse_undurable(outcome).reply_to(request))
