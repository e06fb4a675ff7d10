"""The protocol over asyncio: a server, a client, and the channel that both use."""

from gantry.remoting.aio.channel import Channel, Handler, Reply
from gantry.remoting.aio.client import RemotingClient
from gantry.remoting.aio.limits import ChannelLimits, ClientLimits, Counters, ServerLimits
from gantry.remoting.aio.server import RemotingServer
from gantry.remoting.aio.tls import ClientTlsSettings, TlsMode, TlsSettings

__all__ = [
    "Channel",
    "ChannelLimits",
    "ClientLimits",
    "ClientTlsSettings",
    "Counters",
    "Handler",
    "RemotingClient",
    "RemotingServer",
    "Reply",
    "ServerLimits",
    "TlsMode",
    "TlsSettings",
]
