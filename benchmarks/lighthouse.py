"""Lighthouse over a page that needs a log-in: it audits in a browser that somebody has logged in already.

npm gets Lighthouse into its own cache when the benchmark runs, because nothing else needs its 200 packages (ADR-0071).
"""

import json
from pathlib import Path

from tools.console import find_node

VERSION = "13.5.0"
NODE_MIN = (22, 19)
CATEGORIES = ("performance", "accessibility")


def scores(port: int, url: str, report: Path) -> dict[str, float]:
    """Audit a page, and return the score of each category, from 0 to 100.

    Args:
        port: DevTools port of a Chromium with a session.
        url: Address of the page.
        report: File for the report of Lighthouse.

    Raises:
        Failure: There is no Node.js, or Lighthouse failed.
        RuntimeError: Lighthouse could not load the page, or landed elsewhere.
    """
    find_node(NODE_MIN).run_npm(
        "exec", "--yes", f"--package=lighthouse@{VERSION}", "--", "lighthouse", url, f"--port={port}",
        "--preset=desktop", f"--only-categories={','.join(CATEGORIES)}", "--output=json", f"--output-path={report}",
        "--quiet", "--no-enable-error-reporting",
    )  # fmt: skip
    found = json.loads(report.read_text())
    if "runtimeError" in found or found["finalDisplayedUrl"] != url:
        raise RuntimeError(f"Lighthouse saw {found['finalDisplayedUrl']}: {found.get('runtimeError')}")
    return {name: 100 * found["categories"][name]["score"] for name in CATEGORIES}
