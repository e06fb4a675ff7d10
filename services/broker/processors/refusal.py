"""How a handler says no: it raises, and the table turns that into the reply."""

from collections.abc import Mapping

from gantry.remoting.command import RemotingCommand

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class RefusalError(Exception):
    """The request is answered with this response code and remark; nothing was stored or changed."""

    def __init__(self, code: int, remark: str, *, ext: Mapping[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark
        self.ext = ext

    def reply_to(self, request: RemotingCommand) -> RemotingCommand:
        """Return the reply that says so."""
        return RemotingCommand.response_to(
            request, self.code, remark=self.remark, ext=dict(self.ext) if self.ext else None
        )
