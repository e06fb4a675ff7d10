"""`python -m services.gateway.db`: migrate the database to this version's schema (`gantry migrate`)."""

import os
import sys
from collections.abc import Mapping, Sequence

from services.gateway.db import revision


def main(arguments: Sequence[str], *, environment: Mapping[str, str]) -> int:
    """Run the command line; return the exit code."""
    url = environment.get("GANTRY_DATABASE_URL")
    if url and not arguments and revision.is_newest(url):
        print(f"the database is at {revision.newest()}, the newest")  # noqa: T201
        return 0
    # Alembic delays the start of every stack, and only a stack with an older database needs it.
    from services.gateway.db import migrate  # noqa: PLC0415 - as above.

    return migrate.main([*arguments], environment=environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], environment=os.environ))
