"""Generates the JSON form of the contract: `python -m tools.contract` writes openapi/openapi.json.

The gateway serves this JSON file unchanged, so that it needs no YAML reader at run time. A test fails if the file is
not current.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "openapi" / "openapi.yaml"
TARGET = ROOT / "openapi" / "openapi.json"


def load() -> dict[str, Any]:
    """Return the contract."""
    # libyaml, where PyYAML has it, reads the file five times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    contract: dict[str, Any] = yaml.load(SOURCE.read_text(), Loader=loader)  # noqa: S506 - both loaders are safe.
    return contract


def render(contract: dict[str, Any]) -> str:
    """Return the contract as JSON, as the gateway serves it."""
    return json.dumps(contract, ensure_ascii=False, separators=(",", ":")) + "\n"


def main() -> int:
    """Write the JSON."""
    TARGET.write_text(render(load()))
    print(f"wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
