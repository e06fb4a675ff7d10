"""Brokers in the console, over a real stack: numbers, settings beside another person, drain and undo."""

from collections.abc import Iterator

import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

SETTINGS = "/v1/brokers/broker-a/settings"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        yield running


def test_a_broker_is_drained_and_taken_back(console: ConsolePage, stack: Stack) -> None:
    console.enter("/brokers")
    console.wait_for_text("broker-b")
    console.click("link", "broker-a")
    console.click("button", "Drain")
    console.wait_for_text("broker-a refuses new messages from now on, also after a restart.")
    console.wait_for_text("Producers send to the other brokers of a topic.")
    console.click("button", "Drain")
    console.wait_for_text("broker-a takes no more messages.")
    assert drained(stack) == ["broker-a"]

    console.click("button", "Undo drain")
    console.click("button", "Take messages")
    console.wait_for_text("broker-a takes messages again.")
    assert drained(stack) == []


def drained(stack: Stack) -> list[str]:
    """Return the names of the drained brokers."""
    with stack.http() as client:
        return [each["broker"] for each in client.get("/v1/cluster").json()["brokers"] if each["drained"]]


def test_a_setting_is_changed_beside_another_person(console: ConsolePage, stack: Stack) -> None:
    console.enter("/brokers/broker-a?tab=settings&q=transaction_check_max")
    field = "input[aria-label=transaction_check_max]"
    console.wait_until(f"document.querySelector('{field}') !== null")
    console.type_into("transaction_check_max", "30", selector=field)
    with stack.http() as client:
        client.put(SETTINGS, json={"settings": {"transaction_check_max": "20"}}).raise_for_status()
    for text in ("Another person changed these settings", "The settings are in effect."):
        console.click("button", "Save")
        console.wait_until("document.querySelector('[role=dialog]') !== null")
        console.click("button", "Save")
        console.wait_for_text(text)
        console.wait_until("document.querySelector('[role=dialog]') === null")
    with stack.http() as client:
        items = client.get(SETTINGS).json()["items"]
    assert [item["value"] for item in items if item["name"] == "transaction_check_max"] == ["30"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1_280, 320])
def test_pages_of_brokers_fit_and_have_no_violations(console: ConsolePage, width: int, dark: bool) -> None:
    pages = (
        ("/brokers", "broker-b"),
        ("/brokers/broker-a", "Size of the log"),
        ("/brokers/broker-a?tab=settings&live=yes", "max_message_size"),
    )
    for path, text in pages:
        console.enter(path, width=width, dark=dark)
        console.wait_for_text(text)
        assert console.evaluate("document.documentElement.scrollWidth") <= width, path
        assert console.violations() == [], path
