"""Removal of old data on a broker, on demand: expired files, files of queues, topics without configuration (900032).

A removal is recorded in the audit trail before the broker is asked.
"""

from collections.abc import Sequence
from typing import Final

from gantry.client.answers import read_body
from gantry.client.engine import ClientEngine
from gantry.remoting.bodies.cleaning import EXPIRED_FILES, EXPIRED_QUEUES, UNUSED_TOPICS, Clean, Cleaned
from gantry.remoting.codes import RequestCode
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.metadata import Metadata

WHAT: Final = {
    "expired_files": EXPIRED_FILES,
    "expired_queues": EXPIRED_QUEUES,
    "unused_topics": UNUSED_TOPICS,
}
"""Names of the HTTP API → names of the request."""
TIMEOUT_MS: Final = 30_000


class Cleaning:
    """Removes old data. The caller checks the rights."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, metadata: Metadata) -> None:
        self._engine = engine
        self._brokers = brokers
        self._metadata = metadata

    async def clean(self, broker: str, what: Sequence[str], *, dry_run: bool, actor: Actor) -> Cleaned:
        """Remove old data on the master of a broker set.

        Args:
            broker: Name of the broker set.
            what: Names of WHAT.
            dry_run: Whether to only find out what would be removed.
            actor: Origin of the request.

        Raises:
            ProblemError: 404: there is no such broker; 501: it is not Gantry's; 502, 503, 504: it does not answer, or
                Postgres is unavailable. After 504, the broker goes on.
        """
        address = await self._brokers.master(broker)
        if not dry_run:
            async with self._metadata.transaction() as session:
                after = {"what": list(what)}
                AuditRepository(session).record(actor, "broker.clean", "broker", broker, before=None, after=after)
        body = Clean(what=[WHAT[name] for name in what], dry_run=dry_run).encode()
        response = await self._engine.call(address, RequestCode.GANTRY_CLEAN, body=body, timeout_ms=TIMEOUT_MS)
        return read_body(Cleaned.decode, response, address)
