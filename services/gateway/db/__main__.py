"""`python -m services.gateway.db`: migrate the database to this version's schema (`gantry migrate`)."""

import os
import sys

from services.gateway.db.migrate import main

if __name__ == "__main__":
    sys.exit(main(environment=os.environ))
