"""The groups that pull over HTTP, and their filters, as subscriptions in Postgres.

Brokers know no client of a group that pulls over HTTP. So this gateway notes which groups have pulled from which topics,
and writes that down every half minute. Lag reports and samples then use the filter of the pulls, and know that the group
is being served.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from gantry.model.group import SubscriptionData
from gantry.runtime.telemetry import logger
from services.gateway.db.subscriptions import SubscriptionRepository
from services.gateway.errors import ProblemError
from services.gateway.usecases.metadata import Metadata

log = logger("gateway.pulls")

PULLS_MAX: Final = 10_000
"""Limit of pairs of group and topic that wait to be written; the oldest are dropped."""
# Rows for each transaction, so that it meets its deadline.
_ROWS_AT_ONCE: Final = 200


class PullRegister:
    """Notes pulls, and writes them down.

    Concurrency: the loop's thread; one task runs it.
    """

    def __init__(self, metadata: Metadata, *, interval_ms: int) -> None:
        self._metadata = metadata
        self._interval_ms = interval_ms
        self._noted: OrderedDict[tuple[str, str], SubscriptionData] = OrderedDict()

    def note(self, group: str, subscription: SubscriptionData) -> None:
        """Note that a group has pulled just now. The last filter on a topic counts."""
        key = group, subscription.topic
        self._noted[key] = subscription
        self._noted.move_to_end(key)
        if len(self._noted) > PULLS_MAX:
            self._noted.popitem(last=False)

    async def run(self) -> None:
        """Write until cancelled."""
        if self._metadata.database is None:
            return
        while True:
            await asyncio.sleep(self._interval_ms / 1_000)
            await self.write()

    async def write(self) -> None:
        """Write all noted pulls. After a failure, the rest is written the next time, unless it is outdated then."""
        while self._noted:
            part = [self._noted.popitem(last=False) for _ in range(min(_ROWS_AT_ONCE, len(self._noted)))]
            try:
                async with self._metadata.transaction() as session:
                    await SubscriptionRepository(session).note_pulls([(group, found) for (group, _), found in part])
            except ProblemError as error:
                for key, subscription in reversed(part):
                    if key not in self._noted:
                        self._noted[key] = subscription
                        self._noted.move_to_end(key, last=False)
                log.warning("pulls were not noted", reason=error.detail)
                return
