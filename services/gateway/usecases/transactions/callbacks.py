"""Call-backs: the URL of a producer group is asked about an open transaction, with a signed POST.

`Gantry-Signature` is `t=SECONDS,v1=HEX`, the HMAC-SHA256 over `SECONDS.BODY` with the group's secret. The receiver
answers `{"decision": "commit" | "rollback" | "unknown"}`. Redirects are not followed, and addresses that are not public
are refused unless a setting allows them (usecases/outbound).
"""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

import httpx
import msgspec

from gantry.model.errors import NO_VALUE, InvalidValueError
from gantry.model.names import check_group
from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from gantry.runtime.telemetry import logger
from services.gateway.db.producergroups import ProducerGroup, ProducerGroupRepository
from services.gateway.db.repositories import Actor
from services.gateway.errors import CONFLICT, ProblemError, invalid
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.producergroups import ProducerGroupSettings
from services.gateway.schemas.reading import read_json
from services.gateway.schemas.webhooks import Network
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.outbound.addresses import (
    AddressRefusedError,
    Resolve,
    Resolver,
    checked_address,
    open_transport,
)
from services.gateway.usecases.transactions.checking import TransactionCheck

log = logger("gateway.transactions")

GROUPS_MAX: Final = 1_000
"""Limit of producer groups with a URL."""
ATTEMPTS_MAX: Final = 3
PAUSE_MS: Final = 1_000
"""Pause before the second attempt; twice as long before the third one."""
EACH_MAX: Final = 4
"""Questions in progress to one group. Beyond it, the broker asks again later."""
ALL_MAX: Final = 32
"""Questions in progress to all groups; each holds a connection."""
ANSWER_BYTES_MAX: Final = 4_096

_DECISIONS: Final = {"commit": True, "rollback": False, "unknown": None}


class _Answer(msgspec.Struct, frozen=True):
    decision: str


_answer: Final = msgspec.json.Decoder(_Answer)


class ProducerGroups:
    """Use cases of the settings of producer groups. The caller has checked the right `admin`."""

    def __init__(self, metadata: Metadata, networks: Sequence[Network]) -> None:
        self._metadata = metadata
        self._networks = networks

    async def put(self, name: str, wanted: ProducerGroupSettings, actor: Actor) -> tuple[ProducerGroup | None, bool]:
        """Set or remove the URL of a group; return the group, None without a URL, and whether it is new.

        Raises:
            InvalidValueError: A value is not valid.
            ProblemError: 400: a new URL has no secret; 409: there are GROUPS_MAX groups; 503: Postgres is unavailable.
        """
        check_group(name)
        wanted.check(self._networks)
        async with self._metadata.transaction() as session:
            repository = ProducerGroupRepository(session)
            await repository.lock()
            before = await repository.get(name)
            if wanted.check_url is None:
                if before is not None:
                    await repository.delete(before, actor)
                return None, False
            secret = wanted.check_secret or (None if before is None else before.check_secret)
            if secret is None:
                raise invalid("/check_secret", NO_VALUE, "is required for a new check_url")
            if before is None and await repository.count() >= GROUPS_MAX:
                raise ProblemError(CONFLICT, f"group: there are {GROUPS_MAX} producer groups with a URL, the limit")
            return await repository.put(before, name, wanted.check_url, secret, actor), before is None

    async def get(self, name: str) -> ProducerGroup | None:
        """Return a group, or None if it has no URL. Raises InvalidNameError, ProblemError (503)."""
        check_group(name)
        async with self._metadata.transaction() as session:
            return await ProducerGroupRepository(session).get(name)


def signature(secret: str, timestamp_s: int, body: bytes) -> str:
    """Return the value of `Gantry-Signature`."""
    digest = hmac.new(secret.encode(), b"%d.%s" % (timestamp_s, body), hashlib.sha256).hexdigest()
    return f"t={timestamp_s},v1={digest}"


class CallbackAsker:
    """Asks the URLs of producer groups; `render` returns the JSON view of a question.

    Concurrency: the event loop's thread, any number of questions.
    """

    def __init__(
        self,
        find: Callable[[str], Awaitable[ProducerGroup | None]],
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        rng: Rng,
        networks: Sequence[Network],
        timeout_ms: int,
        render: Callable[[TransactionCheck], dict[str, Any]],
        transport: httpx.AsyncBaseTransport | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        """Make it; `find` returns a group, `transport` and `resolve` are the system's by default."""
        self._find = find
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._networks = networks
        self._timeout_s = timeout_ms / 1_000
        self._render = render
        self._transport = transport
        self._resolve = resolve or Resolver().resolve
        self._client: httpx.AsyncClient | None = None
        self._asking: dict[str, int] = {}

    def groups(self) -> Collection[str]:
        """Return none: the gateway is a producer of every group that has an open transaction over HTTP."""
        return ()

    async def ask(self, check: TransactionCheck) -> bool | None:
        """Ask the URL of the group. Return whether to commit; None if it is unknown, or there is no URL."""
        try:
            group = await self._find(check.group)
        except ProblemError:
            return None  # Postgres is away, and no decision could be written.
        asking = self._asking
        if group is None or asking.get(group.name, 0) >= EACH_MAX or sum(asking.values()) >= ALL_MAX:
            return None
        asking[group.name] = asking.get(group.name, 0) + 1
        try:
            return await self._ask(group, check)
        finally:
            asking[group.name] -= 1
            if not asking[group.name]:
                del asking[group.name]

    async def _ask(self, group: ProducerGroup, check: TransactionCheck) -> bool | None:
        body = json.dumps(self._render(check), separators=(",", ":")).encode()
        if self._client is None:
            transport = self._transport or await open_transport()
            self._client = httpx.AsyncClient(transport=transport, trust_env=False, timeout=self._timeout_s)
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(self._rng.jitter_ms(PAUSE_MS * 2 ** (attempt - 1)) / 1_000)
            try:
                async with asyncio.timeout(self._timeout_s):
                    status, answer = await self._post(self._client, group, check, body)
            except TimeoutError:
                reason = f"no answer within {self._timeout_s:g} s"
                continue
            except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
                reason = str(error) or type(error).__name__
                continue
            except AddressRefusedError as error:
                reason = str(error)
                break
            reason = f"the answer has status {status}"
            if 200 <= status < 300:
                decision = _read(answer)
                if decision is not None:
                    self._metrics.count("transaction_callbacks_answered")
                    return _DECISIONS[decision]
                reason = 'the answer is not {"decision": "commit" | "rollback" | "unknown"}'
                break
            if status < 500:
                break
        self._metrics.count("transaction_callbacks_failed")
        log.warning("a call-back failed; the broker asks again", group=group.name, reason=reason[:300])
        return None

    async def _post(
        self, client: httpx.AsyncClient, group: ProducerGroup, check: TransactionCheck, body: bytes
    ) -> tuple[int, bytes]:
        url = httpx.URL(group.check_url)
        address = await checked_address(url, self._resolve, self._networks)
        headers = {
            "host": url.netloc.decode("ascii"),
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": "gantry-transactions",
            "gantry-signature": signature(group.check_secret, self._clock.now_ms() // 1_000, body),
        }

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            if event == "http11.send_request_body.complete":
                check.is_asked = True

        extensions = {"sni_hostname": url.host, "trace": trace}
        target = url.copy_with(host=address)
        async with client.stream("POST", target, content=body, headers=headers, extensions=extensions) as answer:
            check.is_asked = True
            found = b""
            async for part in answer.aiter_raw():
                found += part
                if len(found) > ANSWER_BYTES_MAX:
                    return answer.status_code, b""
            return answer.status_code, found


def _read(answer: bytes) -> str | None:
    try:
        decision = read_json(answer, _answer).decision
    except InvalidValueError:
        return None
    return decision if decision in _DECISIONS else None
