"""The sender of webhooks: creates deliveries from events, and sends those that are due.

  alert_events ──create deliveries──▶ webhook_deliveries ──claim──▶ attempt ──▶ delivered, or due again, or failed

Any number of gateways may run a sender: Postgres gives each event and each due delivery to one of them. A claim is a
lease. If the gateway does not write the outcome in time, the delivery is due again.

Each webhook has at most EACH_MAX attempts in flight in a gateway, and gets the next ones when all of them have ended.
All slow webhooks together have at most SLOW_MAX attempts in flight, and take turns, so that the other webhooks always
have slots left. A webhook is slow if its last attempt took SLOW_MS or longer, also if that attempt ended by time-out.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from gantry.runtime.tasks import TaskSet, wait_for_event
from gantry.runtime.telemetry import logger
from services.gateway.auth.principal import NamePatterns
from services.gateway.db.alerts import AlertEvent
from services.gateway.db.webhooks import EVENTS_AT_ONCE, ClaimedDelivery, DeliveryRepository, WebhookRepository
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.webhooks import Network
from services.gateway.usecases.alerts.delivery import AttemptResult, SendPolicy, WebhookClient
from services.gateway.usecases.duework import SLOW_POLL_S
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.outbound.addresses import Resolver, open_transport

log = logger("gateway.webhooks")

POLL_S: Final = SLOW_POLL_S
"""Pause between two looks for due deliveries. A delivery that is due (duework.py), and the end of an attempt, shorten
it."""
AWAY_S: Final = 10.0
"""Pause after Postgres was unavailable, or after an internal error."""
EACH_MAX: Final = 4
"""Attempts in flight at once to one webhook."""
SENDING_MAX: Final = 32
"""Attempts in flight at once; each holds a connection."""
SLOW_MS: Final = 1_000
"""Duration of an attempt from which its webhook counts as slow."""
SLOW_MAX: Final = SENDING_MAX // 2
"""Attempts in flight at once to all slow webhooks together."""
SLOW_TRACKED_MAX: Final = 100
"""Limit of remembered slow webhooks: as many as there may be webhooks. Beyond it, the one whose turn is next is
forgotten, so ids of deleted webhooks do not accumulate."""
SETTLING_MAX: Final = 2
"""Outcomes that are written at once; requests need connections to Postgres, too."""


class WebhookSender:
    """Delivers events to webhooks; `render` returns the body for an event, and `due` is set when there is work.

    Concurrency: one task runs it.

    Durability: at least once. A delivery whose outcome could not be written is sent again, with the same id.
    """

    def __init__(
        self,
        metadata: Metadata,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        rng: Rng,
        networks: Sequence[Network],
        policy: SendPolicy,
        render: Callable[[AlertEvent], str],
        due: asyncio.Event,
    ) -> None:
        self._metadata = metadata
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._networks = networks
        self._policy = policy
        self._render = render
        # Attempts in flight for each webhook. Deliveries of these webhooks are not claimed.
        self._busy: dict[uuid.UUID, int] = {}
        # The slow webhooks, used as an ordered set: the first one has the next turn, and goes to the end after it.
        self._slow: dict[uuid.UUID, None] = {}
        self._wake = due
        self._settling = asyncio.Semaphore(SETTLING_MAX)
        self._is_unavailable = False

    async def run(self) -> None:
        """Send until cancelled. Return at once if the gateway has no Postgres."""
        if self._metadata.database is None:
            return
        client = WebhookClient(
            self._policy,
            clock=self._clock,
            networks=self._networks,
            resolve=Resolver().resolve,
            transport=await open_transport(),
        )
        sending = TaskSet("webhooks", self._attempt_failed)
        try:
            while True:
                pause_s = await self._send_due(client, sending)
                # The end of an attempt wakes the sender: that webhook may have more deliveries.
                await wait_for_event(self._wake, pause_s)
                self._wake.clear()
        finally:
            await sending.cancel()
            await client.close()

    async def _send_due(self, client: WebhookClient, sending: TaskSet) -> float:
        """Create the deliveries of new events, start due deliveries; return the pause before the next call, in s."""
        try:
            while await self.create_deliveries() == EVENTS_AT_ONCE:
                pass
            for webhook_id, claimed in (await self._claim()).items():
                self._busy[webhook_id] = len(claimed)
                sending.spawn(self._send(client, webhook_id, claimed))
        except ProblemError as error:
            if not self._is_unavailable:
                log.warning("webhooks are not delivered", reason=error.detail)
            self._is_unavailable = True
            return AWAY_S
        except Exception:  # boundary: of a background loop; a webhook must not end the gateway.
            log.exception("webhooks are not delivered")
            self._metrics.count("webhook_faults")
            return AWAY_S
        self._is_unavailable = False
        return POLL_S

    async def create_deliveries(self) -> int:
        """Create the deliveries of at most EVENTS_AT_ONCE new events; return the number of events.

        An event gets a delivery for each enabled webhook whose patterns match its group, and whose verdicts, if it has
        any, contain the old or the new verdict. An event that no webhook wants counts, too, and is not taken again.

        Raises:
            ProblemError: 503: Postgres is unavailable.
        """
        async with self._metadata.transaction() as session:
            deliveries = DeliveryRepository(session)
            events = await deliveries.take_events()
            if not events:
                return 0
            hooks = [
                (row.id, NamePatterns(row.groups), frozenset(row.verdicts))
                for row in await WebhookRepository(session).enabled()
            ]
            for event in events:
                verdicts = {event.old_verdict, event.new_verdict}
                wanted = [
                    webhook_id
                    for webhook_id, groups, named in hooks
                    if groups.matches(event.group_name) and (not named or named & verdicts)
                ]
                if wanted:
                    await deliveries.add(wanted, self._render(event), event_id=event.id)
                # One event may be matched with thousands of patterns, so other tasks get a turn here.
                await asyncio.sleep(0)
        return len(events)

    async def _claim(self) -> dict[uuid.UUID, list[ClaimedDelivery]]:
        """Claim due deliveries, as many as there are free slots; return them by webhook."""
        room = SENDING_MAX - sum(self._busy.values())
        found: dict[uuid.UUID, list[ClaimedDelivery]] = {}
        if room <= 0:
            return found
        slow, busy = list(self._slow), self._busy
        slow_room = min(room, SLOW_MAX - sum(busy[one] for one in busy if one in self._slow))
        limits: dict[str, Any] = {"each": EACH_MAX, "lease": self._policy.lease, "give_up": self._policy.give_up}
        taken: list[ClaimedDelivery] = []
        async with self._metadata.transaction() as session:
            deliveries = DeliveryRepository(session)
            if slow and slow_room > 0:
                taken = await deliveries.claim(busy=busy, only=slow, rows=slow_room, **limits)
            if room > len(taken):
                taken += await deliveries.claim(busy={*busy, *slow}, rows=room - len(taken), **limits)
        for claimed in taken:
            found.setdefault(claimed.webhook_id, []).append(claimed)
        return found

    async def _send(self, client: WebhookClient, webhook_id: uuid.UUID, claimed: Sequence[ClaimedDelivery]) -> None:
        try:
            # An internal error in one attempt ends only this one. The others are in flight, and count until they end.
            ended = await asyncio.gather(*(self._attempt(client, one) for one in claimed), return_exceptions=True)
            for error in ended:
                if error is not None:
                    self._attempt_failed(error)
        finally:
            del self._busy[webhook_id]
            self._wake.set()

    async def _attempt(self, client: WebhookClient, claimed: ClaimedDelivery) -> None:
        began_ms = self._clock.monotonic_ms()
        sent = await client.send(claimed)
        self._record_duration(claimed.webhook_id, self._clock.monotonic_ms() - began_ms)
        self._metrics.count("webhook_delivered" if sent.error is None else "webhook_failed_attempts")
        # If the outcome cannot be stored, the delivery is sent again after the lease; receivers recognise it by its id.
        with suppress(ProblemError):
            async with self._settling, self._metadata.transaction() as session:
                await self._settle(DeliveryRepository(session), claimed, sent)

    def _record_duration(self, webhook_id: uuid.UUID, took_ms: int) -> None:
        self._slow.pop(webhook_id, None)
        if took_ms >= SLOW_MS:
            self._slow[webhook_id] = None
        if len(self._slow) > SLOW_TRACKED_MAX:
            del self._slow[next(iter(self._slow))]

    async def _settle(self, deliveries: DeliveryRepository, claimed: ClaimedDelivery, sent: AttemptResult) -> None:
        """Write the outcome of an attempt."""
        if sent.error is None and sent.status is not None:
            await deliveries.delivered(claimed, sent.status)
            return
        pause: timedelta = self._policy.pause(claimed.attempts, self._rng)
        error = sent.error or "no answer"
        await deliveries.failed(claimed, sent.status, error, pause=pause, give_up=self._policy.give_up)

    def _attempt_failed(self, error: BaseException) -> None:
        """Report an internal error in a task. A webhook that rejects a delivery is not one."""
        self._metrics.count("webhook_faults")
        log.error("an attempt failed with an internal error", reason=f"{type(error).__name__}: {error}")
