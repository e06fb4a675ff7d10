"""One delivery to a webhook: signed, sent to an address that was checked, and how it went.

Source: Standard Webhooks 1.0, symmetric signatures: `webhook-id`, `webhook-timestamp` (seconds) and `webhook-signature`,
which is `v1,` and the base64 of HMAC-SHA256 over `ID.TIMESTAMP.BODY`.
"""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import anyio
import httpx

from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from services.gateway.db.webhooks import Claimed
from services.gateway.schemas.webhooks import Network, is_allowed, key_of

USER_AGENT: Final = "gantry-webhooks"
ERROR_CHARACTERS_MAX: Final = 300
LookUp = Callable[[str, int], Awaitable[list[str]]]
"""Host and port → addresses; raises OSError."""

LOOKUPS_MAX: Final = 2
"""At once: uvloop looks names up in four threads, which the connections to brokers need, too."""

LEASE_SPARE_MS: Final = 50_000
"""By how much a lease is longer than an attempt: until its outcome is written, even by a slow Postgres."""


@dataclass(frozen=True, slots=True)
class SendPolicy:
    """How deliveries are tried; lengths of time in ms.

    Attributes:
        timeout_ms: For one attempt, from the look-up of the name to the head of the answer.
        pause_ms: Before the second attempt; doubled before each further one, and moved by up to a fifth.
        pause_ms_max: The longest pause.
        give_up_ms: The age at which a delivery is not tried any more.
        lease_ms: How long a delivery belongs to the gateway that took it; longer than an attempt.
    """

    timeout_ms: int = 10_000
    pause_ms: int = 5_000
    pause_ms_max: int = 3_600_000
    give_up_ms: int = 86_400_000
    lease_ms: int = 10_000 + LEASE_SPARE_MS

    @property
    def give_up(self) -> timedelta:
        """When to give up, from when it was to be told first."""
        return timedelta(milliseconds=self.give_up_ms)

    @property
    def lease(self) -> timedelta:
        """For how long a delivery is taken."""
        return timedelta(milliseconds=self.lease_ms)

    def pause(self, attempts: int, rng: Rng) -> timedelta:
        """Return how long to wait after the `attempts`-th attempt."""
        assert attempts >= 1
        base_ms = min(self.pause_ms_max, self.pause_ms << min(attempts - 1, 30))
        return timedelta(milliseconds=rng.jitter_ms(base_ms))


@dataclass(frozen=True, slots=True)
class Sent:
    """How an attempt went: `error` None where the webhook has it; `status` None where it did not answer."""

    status: int | None
    error: str | None


class AddressRefusedError(Exception):
    """None of a name's addresses may be sent to; the message says which there are."""


def signature(secret: str, delivery_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    signed = b"%s.%d.%s" % (delivery_id.encode(), timestamp_s, body)
    return "v1," + base64.b64encode(hmac.new(key_of(secret), signed, hashlib.sha256).digest()).decode()


class WebhookClient:
    """Sends deliveries.

    A name is looked up for each attempt, and the connection goes to the very address that was checked; the certificate must
    be the name's. Nothing is redirected, no proxy is asked, and the body of the answer is not read.

    Concurrency: one event loop, any number of tasks.
    """

    def __init__(
        self,
        policy: SendPolicy,
        *,
        clock: Clock,
        networks: Sequence[Network],
        look_up: LookUp,
        transport: httpx.AsyncBaseTransport,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._networks = networks
        self._look_up = look_up
        self._http = httpx.AsyncClient(
            transport=transport,
            trust_env=False,
            follow_redirects=False,
            timeout=policy.timeout_ms / 1_000,
            headers={"user-agent": USER_AGENT},
        )

    async def close(self) -> None:
        """Close what is open."""
        await self._http.aclose()

    async def send(self, claimed: Claimed) -> Sent:
        """Make one attempt; never raises but for cancellation."""
        try:
            async with asyncio.timeout(self._policy.timeout_ms / 1_000):
                status = await self._post(claimed)
        except TimeoutError:
            return Sent(None, f"no answer within {self._policy.timeout_ms} ms")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, AddressRefusedError, UnicodeError) as error:
            return Sent(None, (str(error) or type(error).__name__)[:ERROR_CHARACTERS_MAX])
        return Sent(status, None if 200 <= status < 300 else f"answered {status}")

    async def _post(self, claimed: Claimed) -> int:
        url = httpx.URL(claimed.url)
        address = await self._checked_address(url)
        timestamp_s, body = self._clock.now_ms() // 1_000, claimed.body.encode()
        headers = {
            "host": url.netloc.decode("ascii"),
            "content-type": "application/json",
            "webhook-id": str(claimed.id),
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": signature(claimed.secret, str(claimed.id), timestamp_s, body),
        }
        async with self._http.stream(
            "POST",
            url.copy_with(host=address),
            content=body,
            headers=headers,
            extensions={"sni_hostname": url.host},
        ) as answer:
            return answer.status_code

    async def _checked_address(self, url: httpx.URL) -> str:
        """Return an address of the URL's host that may be sent to. Raises OSError, AddressRefusedError."""
        addresses = await self._look_up(url.host, url.port or (443 if url.scheme == "https" else 80))
        for address in addresses:
            if is_allowed(ipaddress.ip_address(address.partition("%")[0]), self._networks):
                return address
        raise AddressRefusedError(f"{url.host} is {', '.join(addresses)}, and nothing is sent to what is not public")


class NameServices:
    """The system's look-up of names, a few at a time."""

    def __init__(self) -> None:
        self._lookups = asyncio.Semaphore(LOOKUPS_MAX)

    async def look_up(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host. Raises OSError."""
        async with self._lookups:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in found]


async def open_transport() -> httpx.AsyncHTTPTransport:
    """Return what connects. A connection is never used again: it was verified for one name, others may have its address."""
    return await asyncio.to_thread(_make_transport)


def _make_transport() -> httpx.AsyncHTTPTransport:
    # To read the certificates of all authorities, and to load what the first connection imports, take longer than the
    # event loop may be held. The latter is loaded by any use of anyio.
    anyio.run(anyio.sleep, 0)
    return httpx.AsyncHTTPTransport(
        verify=httpx.create_ssl_context(), trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
    )
