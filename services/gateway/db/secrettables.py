"""The table of secrets that all gateways share; migrations/versions creates it."""

from typing import Final

from sqlalchemy import Column, LargeBinary, Table, func

from services.gateway.db.models import MOMENT, NAME, Metadata

GATEWAY_SECRETS: Final = Table(
    "gateway_secrets",
    Metadata.metadata,
    Column("name", NAME, primary_key=True),
    Column("secret", LargeBinary, nullable=False),
    Column("created_at", MOMENT, server_default=func.now(), nullable=False),
)
