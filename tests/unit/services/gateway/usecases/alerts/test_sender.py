"""The sender of webhooks: an attempt counts as in flight until it ends, whatever happens to the others."""

import asyncio
import uuid

from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from services.gateway.db.webhooks import ClaimedDelivery
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.alerts.delivery import AttemptResult, SendPolicy
from services.gateway.usecases.alerts.sender import WebhookSender
from services.gateway.usecases.metadata import Metadata

HOOK = uuid.UUID(int=1)


class Receiver:
    """A webhook client whose first attempt fails inside the gateway, and whose others wait for `answer`."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()

    async def send(self, claimed: ClaimedDelivery) -> AttemptResult:
        if claimed.attempts == 1:
            raise RuntimeError("a bug")
        await self.answer.wait()
        return AttemptResult(200, None)


async def test_attempts_in_flight_count_after_an_internal_error_in_one_of_them() -> None:
    metrics = GatewayMetrics()
    sender = WebhookSender(
        Metadata(None),
        metrics,
        clock=SystemClock(),
        rng=Rng(1),
        networks=(),
        policy=SendPolicy(),
        render=lambda event: "{}",
        due=asyncio.Event(),
    )
    claimed = [
        ClaimedDelivery(uuid.UUID(int=number), HOOK, number, "{}", "http://h/", "secret") for number in (1, 2, 3)
    ]
    receiver = Receiver()
    sender._busy[HOOK] = len(claimed)
    sending = asyncio.ensure_future(sender._send(receiver, HOOK, claimed))
    await asyncio.sleep(1)
    assert (sending.done(), sender._busy) == (False, {HOOK: 3}), "two attempts are still in flight"
    receiver.answer.set()
    await sending
    assert sender._busy == {}
    assert metrics.counters["webhook_faults"] == 1
    assert metrics.counters["webhook_delivered"] == 2
