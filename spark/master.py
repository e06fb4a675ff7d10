"""Where Spark runs, as its master's name says it; loads nothing of Spark."""

from typing import Final

LOCAL: Final = "local[*]"
UNDER_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"
"""The environment variable that PySpark finds if spark-submit has started the JVM."""


def is_local_master(master: str) -> bool:
    """Say whether Spark runs in this machine's one JVM ("local-cluster[…]" has workers of its own)."""
    return master == "local" or master.startswith("local[")
