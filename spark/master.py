"""The names of Spark masters. This module does not load Spark."""

from typing import Final

LOCAL: Final = "local[*]"
UNDER_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"
"""The environment variable that PySpark finds if spark-submit has started the JVM."""


def is_local_master(master: str) -> bool:
    """Return whether a master runs Spark in one JVM of this machine. "local-cluster[…]" does not: it has workers."""
    return master == "local" or master.startswith("local[")
