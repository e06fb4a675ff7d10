"""Writes screenshots of every page of the console: `python -m tests.browser.screenshots DIR` (`make screenshots`).

Names of pages after DIR choose some of them.

Each page is there in both languages and themes and at 1280 and 320 px, over a new stack with a few topics, groups and
messages.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx

from tests.support.chromium import chromium_page
from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "topic-producers": "/topics/orders?tab=producers",
    "topic-settings": "/topics/orders?tab=settings",
    "topic-rates": "/topics/orders?tab=rates",
    "messages": "/messages?by=key&topic=orders&value=order-7",
    "messages-time": "/messages?topic=orders&value=2020-01-01T00:00:00.000Z",
    "messages-live": "/messages?by=live&topic=orders",
    "groups": "/groups",
    "group": "/groups/billing",
    "group-offsets": "/groups/billing?tab=offsets",
    "group-traffic": "/groups/billing?tab=traffic",
    "group-objectives": "/groups/billing?tab=objectives",
    "group-settings": "/groups/billing?tab=settings",
    "dead-letters": "/dead-letters?group=billing",
    "scheduled": "/scheduled?topic=orders",
    "transactions": "/transactions",
    "reports": "/reports",
    "report": "/reports/lag_report",
    "report-runs": "/reports/lag_report?tab=runs",
    "report-backlog": "/reports/backlog_profile",
    "report-throughput": "/reports/throughput_rollup",
    "jobs": "/jobs",
    "access": "/access",
    "access-user": "/access?user=admin",
    "access-keys": "/access?tab=keys",
    "access-sessions": "/access?tab=sessions",
    "access-roles": "/access?tab=roles",
    "audit": "/audit",
    "brokers": "/brokers",
    "broker": "/brokers/broker-a",
    "broker-settings": "/brokers/broker-a?tab=settings",
}
WIDTHS = {1_280: 900, 320: 700}
LANGUAGES = ("en", "zh")
SHOTS = [(language, width, dark) for language in LANGUAGES for width in WIDTHS for dark in (False, True)]


def main(target: Path, names: Sequence[str]) -> int:
    """Write the pictures of some pages, or of all without names; return the exit code."""
    pages = {name: PAGES[name] for name in names or PAGES}
    target.mkdir(parents=True, exist_ok=True)
    with Stack() as stack, tempfile.TemporaryDirectory() as profile, chromium_page(Path(profile)) as page:
        with stack.http() as client:
            fill(client)
        console = ConsolePage(page, stack.facts["console"])
        for name, path in pages.items():
            for language, width, dark in SHOTS:
                console.enter(path, width=width, height=WIDTHS[width], dark=dark, language=language)
                console.wait_until("document.querySelector('main h1') !== null")
                console.settle()
                theme = "dark" if dark else "light"
                console.screenshot(target / f"{name}-{language}-{width}-{theme}.png")
    print(f"wrote {len(pages) * len(SHOTS)} pictures to {target}")
    return 0


def fill(client: httpx.Client) -> None:
    """Make a few topics with messages, and groups that consume them."""
    for topic, settings in {
        "orders": {"read_queues": 2, "write_queues": 2, "duplicate_window": "10m"},
        "payments": {"order": True},
        "audit-events-of-all-services-and-regions": {"perm": "r"},
        "search": {"brokers": ["broker-a"]},
    }.items():
        client.put(f"/v1/topics/{topic}", json=settings).raise_for_status()
    for number in range(40):
        body = {"body": f'{{"order": {number}}}', "keys": [f"order-{number}"], "tag": "eu"}
        client.post("/v1/topics/orders/messages", json=body).raise_for_status()
    for minutes in (5, 90, 3_000):
        body = {
            "body": f'{{"reminder": {minutes}}}',
            "keys": [f"reminder-{minutes}"],
            "tag": "eu",
            "delay": f"{minutes}m",
        }
        client.post("/v1/topics/orders/messages", json=body).raise_for_status()
    for decision in (None, None, "commit", "rollback"):
        half = {"body": "{}", "group": "ORDERS_TX", "check_immunity": "1h" if decision else "1s"}
        begun = client.post("/v1/topics/orders/transactions", json=half).raise_for_status().json()
        if decision is not None:
            client.post(f"/v1/transactions/{begun['transaction']}:{decision}").raise_for_status()
    for group, settings in {"billing": {"retry_max_times": 3}, "search-index": {"consume": False}}.items():
        client.put(f"/v1/groups/{group}", json=settings).raise_for_status()
    client.post("/v1/groups/billing/messages:pull", json={"topic": "orders", "max": 8}).raise_for_status()
    for user, role in {"ada": "operator", "grace": "viewer"}.items():
        client.put(f"/v1/users/{user}", json={"role": role, "password": "correct horse battery"}).raise_for_status()
    client.put("/v1/users/grace", json={"disabled": True}).raise_for_status()
    rights = {"publish": ["orders", "payments"], "consume": {"topics": ["orders*"], "groups": ["billing*"]}}
    client.post("/v1/keys", json={"name": "pricing", "rights": rights}).raise_for_status()
    client.put("/v1/groups/billing/objective", json={"max_lag_seconds": 60, "reason": "on call"}).raise_for_status()
    ignored = {"ignore": True, "ignore_until": "2030-01-01T00:00:00Z", "reason": "migration of the archive"}
    client.put("/v1/groups/billing/objective", params={"topic": "payments"}, json=ignored).raise_for_status()
    places = [{"topic": "orders", "broker": "broker-a", "queue_id": queue, "offset": "2"} for queue in range(2)]
    client.put("/v1/groups/billing/offsets", json={"offsets": places}).raise_for_status()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
