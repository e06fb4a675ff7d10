"""The baseline for remoting: the same server class, frames and replies, with nothing behind them.

`python -m benchmarks.echo_server READY_FILE` answers every SEND_MESSAGE_V2 with a reply like a broker's.
"""

import sys

from gantry.remoting.aio.channel import Channel
from gantry.remoting.aio.server import RemotingServer
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.clock import SystemClock
from gantry.runtime.lifecycle import Lifecycle, run_service

REPLY = {
    "msgId": "7F00000100002A9F00000000000004D2",
    "queueId": "0",
    "queueOffset": "1042",
    "transactionId": "0" * 32,
    "MSG_REGION": "DefaultRegion",
    "TRACE_ON": "true",
}


def echo(channel: Channel, request: RemotingCommand) -> RemotingCommand:
    """Answer as if the message had been stored."""
    return RemotingCommand.response_to(request, ResponseCode.SUCCESS, ext=REPLY)


async def serve(lifecycle: Lifecycle) -> None:
    """Run until told to stop."""
    server = RemotingServer(name="echo", handlers={RequestCode.SEND_MESSAGE_V2: echo}, clock=SystemClock())
    address = await server.start("127.0.0.1", 0)
    lifecycle.ready({"address": str(address)})
    await lifecycle.wait_for_stop()
    await server.stop()


if __name__ == "__main__":
    sys.exit(run_service("echo", serve, ready_file=sys.argv[1]))
