"""${message}

The gateways of the previous release serve requests while this migration runs, and may come back after it. So:
- Expand, migrate and contract in separate releases: add new columns and tables (nullable, or with a server default);
  move the data and the code; drop old ones only when no release in use reads or writes them.
- One change in each file. A statement waits for a lock for at most 4 s and runs for at most 5 s: create an index on a
  table with rows CONCURRENTLY (in op.get_context().autocommit_block()); add a constraint NOT VALID and validate it later.
- `downgrade` works, or raises an error with the reason why it can't.

Revision: ${up_revision}
After: ${down_revision | comma,n}
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
