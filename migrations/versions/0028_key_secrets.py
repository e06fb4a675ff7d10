"""Keys expire, have limits, and get new secrets.

Revision: 0028
After: 0027
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name, moment = sa.Text(collation="C"), sa.DateTime(timezone=True)
    op.add_column("api_keys", sa.Column("expires_at", moment, nullable=True))
    op.add_column("api_keys", sa.Column("limits", JSONB(none_as_null=True), nullable=True))
    op.add_column("api_keys", sa.Column("rotated_at", moment, nullable=True))
    op.add_column("api_keys", sa.Column("previous_valid_until", moment, nullable=True))
    op.create_table(
        "earlier_secrets",
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", name, nullable=False),
        sa.Column("retired_at", moment, server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", moment, nullable=False),
        sa.CheckConstraint("octet_length(sha256) = 32", name=op.f("ck_earlier_secrets_sha256_size")),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name=op.f("fk_earlier_secrets_key_id_api_keys"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_earlier_secrets")),
    )
    op.create_index("ix_earlier_secrets_key_id", "earlier_secrets", ["key_id", "retired_at"])


def downgrade() -> None:
    op.drop_table("earlier_secrets")
    for column in ("previous_valid_until", "rotated_at", "limits", "expires_at"):
        op.drop_column("api_keys", column)
