"""A name server and a broker as real processes, and a client that sends them commands of the protocol."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gantry.model.message import encode_properties
from gantry.model.record import iter_records
from gantry.remoting.aio import Handler, RemotingClient
from gantry.remoting.bodies import TopicRouteData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import GetRouteInfoHeader
from gantry.runtime.clock import SystemClock
from tests.support.brokerunit import pull_header, send_header
from tests.support.serviceprocess import ServiceProcess

# Small, so that starting a broker does not mean allocating a gigabyte.
SMALL_STORE: Mapping[str, str] = {
    "GANTRY_BROKER_MAPPED_FILE_SIZE_COMMIT_LOG": str(4 << 20),
    "GANTRY_BROKER_MAPPED_FILE_SIZE_CONSUME_QUEUE": "60000",
    "GANTRY_BROKER_MAX_HASH_SLOT_NUM": "1000",
    "GANTRY_BROKER_MAX_INDEX_NUM": "4000",
}
WAIT_TIMEOUT_S = 20.0


class NamesrvProcess(ServiceProcess):
    """`python -m services.namesrv` on any free port, or on a port that it had before."""

    def __init__(self, directory: Path, *arguments: str, port: int = 0) -> None:
        super().__init__(
            "namesrv",
            directory,
            *("--listen", f"127.0.0.1:{port}", "--data", str(directory / "namesrv"), "--metrics-port", "off"),
            *arguments,
        )


class BrokerProcess(ServiceProcess):
    """`python -m services.broker` over `directory/store`; may be killed and started again, on the same port."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        namesrv: str = "",
        name: str = "broker-a",
        port: int = 0,
        store: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.store = store or directory / "store"
        super().__init__(
            "broker",
            directory,
            *("--namesrv", namesrv, "--name", name, "--cluster", "C", "--listen", f"127.0.0.1:{port}"),
            *("--fast-port", "off", "--metrics-port", "off", "--store", str(self.store), *arguments),
            environment={**SMALL_STORE, **(environment or {})},
        )

    def kept(self, name: str) -> Any:
        """Return one of the store's config files that are strict JSON."""
        return json.loads((self.store / "config" / name).read_text())


class Peer:
    """A client of one broker, or of a name server."""

    def __init__(self, address: str, handlers: Mapping[int, Handler] | None = None) -> None:
        self.address = address
        self.client = RemotingClient(clock=SystemClock(), handlers=handlers)

    async def ask(
        self,
        code: int,
        header: Any = None,
        *,
        body: bytes | None = None,
        ext: dict[str, str] | None = None,
        address: str | None = None,
        timeout_ms: int = 20_000,
    ) -> RemotingCommand:
        """Send a request and return the answer."""
        request = RemotingCommand.request(code, header, body=body, ext=ext)
        return await self.client.invoke(address or self.address, request, timeout_ms=timeout_ms)

    async def send(self, topic: str = "T", body: bytes = b"hello", **changes: Any) -> RemotingCommand:
        """Send one message."""
        return await self.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic, **changes), body=body)

    async def pull(self, topic: str = "T", offset: int = 0, **changes: Any) -> RemotingCommand:
        """Pull once."""
        return await self.ask(RequestCode.PULL_MESSAGE, pull_header(topic, offset, **changes))

    async def read_all(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """Return the bodies of everything in a queue."""
        bodies: list[bytes] = []
        offset = 0
        while True:
            answer = await self.pull(topic, offset, queue_id=queue_id)
            if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
                return bodies
            bodies += [message.body for message in iter_records(answer.body_bytes)]
            offset = int(answer.ext_fields["nextBeginOffset"])

    async def make_topic(self, topic: str = "T", queues: int = 4, perm: int = 6, *, attributes: str = "") -> None:
        """Create or change a topic as a tool would."""
        ext = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
            "perm": str(perm), "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        if attributes:
            ext["attributes"] = attributes
        answer = await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def route(self, topic: str, namesrv: str) -> list[str]:
        """Return the addresses of a topic's brokers; empty if the name server knows none."""
        answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic=topic), address=namesrv)
        if answer.code != ResponseCode.SUCCESS:
            return []
        route = TopicRouteData.decode(answer.body_bytes).route
        return [address for data in route.broker_datas for address in data.broker_addrs.values()]


@asynccontextmanager
async def peer_of(address: str, handlers: Mapping[int, Handler] | None = None) -> AsyncIterator[Peer]:
    """Open a client, and close it at the end of the block."""
    peer = Peer(address, handlers)
    try:
        yield peer
    finally:
        await peer.client.close()


async def wait_until(condition: Any, what: str) -> None:
    """Wait until an async condition holds."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while not await condition():
        assert time.monotonic() < deadline, f"not within {WAIT_TIMEOUT_S} s: {what}"
        await asyncio.sleep(0.05)


def properties_text(**properties: str) -> str:
    """Return properties in the format of a send."""
    return encode_properties(properties).decode()
