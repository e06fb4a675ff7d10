"""Writing `DIR/stack.json`, which tells gantry.http, scripts and tests where a running stack is."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gantry.cli.stack.layout import CLUSTER, FIRST_USER, Layout


def stack_content(
    layout: Layout, *, api_key: str, postgres: str, processes: Sequence[tuple[str, int]]
) -> dict[str, Any]:
    """Return the content of stack.json."""
    return {
        "http": layout.http,
        "api_key": api_key,
        "namesrv": layout.namesrv_addresses,
        "brokers": [
            {"cluster": CLUSTER, "name": place.name, "id": 0, "address": place.address, "store": str(place.store)}
            for place in layout.brokers
        ],
        "postgres": postgres,
        "console": {"url": layout.console, "user": FIRST_USER, "password_file": str(layout.password_file)},
        "processes": [{"name": name, "pid": pid} for name, pid in processes],
    }


def write_stack(path: Path, content: dict[str, Any]) -> None:
    """Write the file atomically and readable for its owner only, because it holds an API key."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    temporary.replace(path)
