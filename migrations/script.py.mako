"""${message}

The gateways of the last release serve while this runs, and may be rolled back to after it. So:
- expand, migrate, contract, in releases of their own: add what is new (nullable, or with a default the server
  knows); move the data and the code; drop what is old only once no release in use reads or writes it.
- one change a file; a lock is waited for 4 s and a statement runs 5 s at most: an index on a table with rows is
  made CONCURRENTLY (in op.get_context().autocommit_block()), a constraint is added NOT VALID and validated later.
- downgrade works, or raises with the reason why it can't.

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
