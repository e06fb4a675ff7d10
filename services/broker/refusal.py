"""Refusals: a handler raises RefusalError, and the table of handlers makes the reply from it."""

from collections.abc import Mapping

from gantry.remoting.command import RemotingCommand

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def drained_remark(address: str) -> str:
    """Return RocketMQ's remark to a message for a broker that takes none, because brokerPermission lacks write.

    Clients read it: the message may be sent again later or elsewhere, unlike after any other NO_PERMISSION.
    """
    return f"the broker[{address}] sending message is forbidden"


def deleted_remark(group: str) -> str:
    """Return the remark to a request that would make a deleted group again for a member of it."""
    return (
        f"subscription group [{group}] was deleted while this client was a member of it; a client that connects again, "
        "or a request that creates the group, makes a new one"
    )


class RefusalError(Exception):
    """A request is refused. The reply has this response code and remark; nothing was stored or changed."""

    def __init__(self, code: int, remark: str, *, ext: Mapping[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark
        self.ext = ext

    def reply_to(self, request: RemotingCommand) -> RemotingCommand:
        """Return the reply for this refusal."""
        return RemotingCommand.response_to(
            request, self.code, remark=self.remark, ext=dict(self.ext) if self.ext else None
        )
