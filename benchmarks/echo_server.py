"""The baseline for remoting: the broker's server class without a broker.

`python -m benchmarks.echo_server READY_FILE` answers every SEND_MESSAGE_V2 with the fields and the body of the request.
"""

import sys

from gantry.remoting.aio.channel import Channel
from gantry.remoting.aio.server import RemotingServer
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.clock import SystemClock
from gantry.runtime.lifecycle import Lifecycle, run_service


def echo(channel: Channel, request: RemotingCommand) -> RemotingCommand:
    """Return the fields and the body of the request."""
    return RemotingCommand.response_to(request, ResponseCode.SUCCESS, ext=request.ext_fields, body=request.body)


async def serve(lifecycle: Lifecycle) -> None:
    """Run until a signal stops the process."""
    server = RemotingServer(name="echo", handlers={RequestCode.SEND_MESSAGE_V2: echo}, clock=SystemClock())
    address = await server.start("127.0.0.1", 0)
    lifecycle.ready({"address": str(address)})
    await lifecycle.wait_for_stop()
    await server.stop()


if __name__ == "__main__":
    sys.exit(run_service("echo", serve, ready_file=sys.argv[1]))
