"""Transactions in the console, over a real stack: found, asked about, committed, rolled back; both themes, two widths."""

import httpx
import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "orders"
GROUP = "ORDERS_TX"
PAGE = "/transactions"
IDS: dict[str, str] = {}
"""Ids of the transactions by name."""


@pytest.fixture(scope="module")
def stack(stack: Stack) -> Stack:
    with stack.http() as client:
        client.put(f"/v1/topics/{TOPIC}", json={"read_queues": 1, "write_queues": 1}).raise_for_status()
        for name in ("kept", "committed", "rolled back", "asked", "taken"):
            IDS[name] = begin(client, name, "1h")
        # This group has no producer that answers, so the transaction is overdue after a second.
        IDS["overdue"] = begin(client, "overdue", "1s")
    return stack


def begin(client: httpx.Client, name: str, immunity: str) -> str:
    body = {"body": name, "keys": [name.replace(" ", "-")], "group": GROUP, "check_immunity": immunity}
    begun = client.post(f"/v1/topics/{TOPIC}/transactions", json=body).raise_for_status()
    transaction: str = begun.json()["transaction"]
    return transaction


def state_of(client: httpx.Client, name: str) -> str:
    state: str = client.get(f"/v1/transactions/{IDS[name]}").raise_for_status().json()["state"]
    return state


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1_280, 320])
def test_the_page_and_a_transaction_fit_and_have_no_violations(console: ConsolePage, width: int, dark: bool) -> None:
    console.enter(PAGE, width=width, dark=dark)
    console.wait_for_text("overdue")
    assert console.evaluate("document.documentElement.scrollWidth") <= width
    assert console.violations() == []
    console.enter(f"{PAGE}?transaction={IDS['kept']}", width=width, dark=dark)
    console.wait_for_text("Stored as half message")
    assert console.evaluate("document.documentElement.scrollWidth") <= width
    assert console.violations() == []


def test_a_transaction_is_found_by_its_state_and_committed(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"{PAGE}?state=open&topic={TOPIC}")
    console.click("button", IDS["committed"])
    console.wait_for_text("Nobody is asked until")
    decide(console, "Commit", "is delivered to every group that consumes topic")
    console.wait_for_text("Committed. The broker has the decision")
    console.wait_for_text("user:admin")
    with stack.http() as client:
        assert state_of(client, "committed") == "committed"
        found = client.get(f"/v1/topics/{TOPIC}/messages", params={"key": "committed"}).json()["items"]
        assert [message["message_id"] for message in found] == [IDS["committed"]]


def test_a_transaction_is_rolled_back(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"{PAGE}?transaction={IDS['rolled back']}")
    decide(console, "Roll back", "will never be delivered")
    console.wait_for_text("Rolled back. The message will never be delivered.")
    with stack.http() as client:
        assert state_of(client, "rolled back") == "rolled_back"


def test_a_decision_that_somebody_else_took_first_is_refused(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"{PAGE}?transaction={IDS['taken']}")
    console.click("button", "Roll back")
    console.wait_for_text("will never be delivered")
    with stack.http() as client:
        client.post(f"/v1/transactions/{IDS['taken']}:commit").raise_for_status()
    console.click("button", "Roll back")
    console.wait_for_text("is committed already")
    console.wait_until("!document.body.innerText.includes('Nobody is asked until')")


def test_producers_are_asked_now(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"{PAGE}?transaction={IDS['asked']}")
    decide(console, "Check now", "If nobody knows, the transaction stays open.")
    console.wait_for_text("No producer has answered, or none knows.")
    with stack.http() as client:
        assert state_of(client, "asked") == "open"


def test_only_overdue_ones_are_shown_if_the_reader_wants_it(console: ConsolePage) -> None:
    console.enter(f"{PAGE}?state=overdue")
    console.wait_for_text(IDS["overdue"])
    assert IDS["kept"] not in console.evaluate("document.body.innerText")


def test_a_transaction_speaks_chinese(console: ConsolePage) -> None:
    console.enter(f"{PAGE}?transaction={IDS['kept']}", language="zh")
    console.wait_for_text("在此之前不回查")
    console.wait_for_text("立即回查")


def decide(console: ConsolePage, action: str, effect: str) -> None:
    """Click on an action, and agree after its effect is shown."""
    console.click("button", action)
    console.wait_for_text(effect)
    console.click("button", action)
