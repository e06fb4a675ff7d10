"""One delivery to a webhook: signed, sent to a checked address, with its outcome.

Source: Standard Webhooks 1.0, symmetric signatures: `webhook-id`, `webhook-timestamp` (seconds) and
`webhook-signature`, which is `v1,` and the base64 of HMAC-SHA256 over `ID.TIMESTAMP.BODY`.
"""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import httpx

from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from services.gateway.db.webhooks import ClaimedDelivery
from services.gateway.schemas.webhooks import Network, key_of
from services.gateway.settings import GatewaySettings
from services.gateway.usecases.outbound.addresses import AddressRefusedError, Resolve, checked_address

USER_AGENT: Final = "gantry-webhooks"
ERROR_CHARACTERS_MAX: Final = 300

LEASE_SPARE_MS: Final = 50_000
"""Time by which a lease outlasts an attempt, so that even a slow Postgres can store the outcome."""

_DEFAULTS: Final = GatewaySettings()


@dataclass(frozen=True, slots=True)
class SendPolicy:
    """The policy for attempts; times in ms.

    Attributes:
        timeout_ms: Time-out of one attempt, from the lookup of the name to the head of the answer.
        pause_ms: Pause before the second attempt; doubled before each further one, and varied by up to a fifth.
        pause_ms_max: Longest pause.
        give_up_ms: Age at which a delivery is abandoned.
        lease_ms: Lease of the gateway that took a delivery; longer than an attempt.
    """

    timeout_ms: int = _DEFAULTS.webhook_timeout_ms
    pause_ms: int = 5_000
    pause_ms_max: int = 3_600_000
    give_up_ms: int = _DEFAULTS.webhook_give_up_ms
    lease_ms: int = _DEFAULTS.webhook_timeout_ms + LEASE_SPARE_MS

    @property
    def give_up(self) -> timedelta:
        """Return the age at which a delivery is abandoned."""
        return timedelta(milliseconds=self.give_up_ms)

    @property
    def lease(self) -> timedelta:
        """Return the lease of a delivery."""
        return timedelta(milliseconds=self.lease_ms)

    def pause(self, attempts: int, rng: Rng) -> timedelta:
        """Return the pause after the `attempts`-th attempt."""
        assert attempts >= 1
        base_ms = min(self.pause_ms_max, self.pause_ms << min(attempts - 1, 30))
        return timedelta(milliseconds=rng.jitter_ms(base_ms))


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The outcome of an attempt: `error` is None on success; `status` is None if there was no answer."""

    status: int | None
    error: str | None


def signature(secret: str, delivery_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    signed = b"%s.%d.%s" % (delivery_id.encode(), timestamp_s, body)
    return "v1," + base64.b64encode(hmac.new(key_of(secret), signed, hashlib.sha256).digest()).decode()


class WebhookClient:
    """Sends deliveries.

    The host name is looked up for each attempt, and the connection goes to exactly the address that was checked; the
    certificate must match the host name. Redirects are not followed, no proxy is used, and the body of the answer is
    not read.

    Concurrency: one event loop, any number of tasks.
    """

    def __init__(
        self,
        policy: SendPolicy,
        *,
        clock: Clock,
        networks: Sequence[Network],
        resolve: Resolve,
        transport: httpx.AsyncBaseTransport,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._networks = networks
        self._resolve = resolve
        self._http = httpx.AsyncClient(
            transport=transport,
            trust_env=False,
            follow_redirects=False,
            timeout=policy.timeout_ms / 1_000,
            headers={"user-agent": USER_AGENT},
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, claimed: ClaimedDelivery) -> AttemptResult:
        """Make one attempt; raise nothing except cancellation."""
        try:
            async with asyncio.timeout(self._policy.timeout_ms / 1_000):
                status = await self._post(claimed)
        except TimeoutError:
            return AttemptResult(None, f"no answer within {self._policy.timeout_ms} ms")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, AddressRefusedError, UnicodeError) as error:
            return AttemptResult(None, (str(error) or type(error).__name__)[:ERROR_CHARACTERS_MAX])
        return AttemptResult(status, None if 200 <= status < 300 else f"the webhook answered {status}")

    async def _post(self, claimed: ClaimedDelivery) -> int:
        url = httpx.URL(claimed.url)
        address = await checked_address(url, self._resolve, self._networks)
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
