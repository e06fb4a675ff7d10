"""Where Spark runs, as its master's name says it; loads nothing of Spark."""


def is_local_master(master: str) -> bool:
    """Say whether Spark runs in this machine's one JVM ("local-cluster[…]" has workers of its own)."""
    return master == "local" or master.startswith("local[")
