"""Secrets that all gateways share."""

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.secrettables import GATEWAY_SECRETS


async def share_secret(session: AsyncSession, name: str, candidate: bytes) -> bytes:
    """Return the secret of this name. If there is none yet, it is `candidate` from now on, for all gateways."""
    query = select(GATEWAY_SECRETS.c.secret).where(GATEWAY_SECRETS.c.name == name)
    found = await session.scalar(query)
    if found is None:
        # Another gateway may insert at the same moment; then its secret is read.
        await session.execute(insert(GATEWAY_SECRETS).values(name=name, secret=candidate).on_conflict_do_nothing())
        found = await session.scalar(query)
    assert found is not None, "a row that was inserted, or was in the way, is there"
    return bytes(found)
