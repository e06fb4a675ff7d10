"""A receiver of webhooks that answers as a test says, and a sender in a process of its own.

python -m tests.support.webhooks POSTGRES_URL LEASE_MS
"""

import asyncio
import ipaddress
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from services.gateway.db.engine import Database
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.alerts.delivery import SendPolicy
from services.gateway.usecases.alerts.sender import WebhookSender
from services.gateway.usecases.metadata import Metadata
from services.gateway.views.webhooks import delivery_body

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]


@dataclass(frozen=True)
class Received:
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


ScriptedAnswer = int | Callable[[Received], Awaitable[int]]


@dataclass
class Receiver:
    """An HTTP server on loopback; `answers` are the statuses of its first answers, then it answers 204."""

    answers: list[ScriptedAnswer] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    tls: Any = None

    async def __aenter__(self) -> Self:
        self._news = asyncio.Condition()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def until(self, count: int) -> None:
        """Wait until `count` requests have arrived."""
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(lambda: len(self.received) >= count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = [line.partition(": ") for line in head.split("\r\n")[1:-2]]
            headers = {name.lower(): value for name, _, value in lines}
            body = await reader.readexactly(int(headers["content-length"]))
            request = Received(headers, body)
            answer = self.answers.pop(0) if self.answers else 204
            async with self._news:
                self.received.append(request)
                self._news.notify_all()
            status = answer if isinstance(answer, int) else await answer(request)
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def make_sender(database: Database, **policy: int) -> WebhookSender:
    return WebhookSender(
        Metadata(database),
        GatewayMetrics(),
        clock=SystemClock(),
        rng=Rng(),
        networks=LOOPBACK,
        policy=SendPolicy(**policy),
        render=delivery_body,
        due=asyncio.Event(),
    )


async def _main(url: str, lease_ms: int) -> None:
    await make_sender(Database.open(url, clock=SystemClock()), lease_ms=lease_ms).run()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
