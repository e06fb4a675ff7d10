"""Groups in the console, over a real stack: offsets, reset with preview and undo, pause; both themes, two widths."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "orders"
GROUP = "billing"
MESSAGES = 12


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        with running.http() as client:
            fill(client)
        yield running


def fill(client: httpx.Client) -> None:
    """Make a topic with one queue, on one broker, that a group has consumed."""
    settings = {"read_queues": 1, "write_queues": 1, "brokers": ["broker-a"]}
    client.put(f"/v1/topics/{TOPIC}", json=settings).raise_for_status()
    client.put(f"/v1/groups/{GROUP}", json={}).raise_for_status()
    for number in range(MESSAGES):
        body = {"body": f"order {number}", "keys": [f"order-{number}"]}
        client.post(f"/v1/topics/{TOPIC}/messages", json=body).raise_for_status()
    commit = {"offsets": [{"topic": TOPIC, "broker": "broker-a", "queue_id": 0, "offset": str(MESSAGES)}]}
    client.put(f"/v1/groups/{GROUP}/offsets", json=commit).raise_for_status()


def committed(stack: Stack) -> str:
    with stack.http() as client:
        (row,) = client.get(f"/v1/groups/{GROUP}/offsets", params={"topic": TOPIC}).json()["items"]
    found: str = row["committed_offset"]
    return found


def test_a_reset_shows_its_messages_first_and_is_undone(console: ConsolePage, stack: Stack) -> None:
    console.enter("/groups")
    console.click("link", GROUP)
    console.click("tab", "Queues")
    console.wait_for_text("broker-a / 0")

    console.click("button", "Reset offsets")
    console.evaluate(
        "(() => { const field = document.querySelector('[role=dialog] select'); field.value = 'earliest';"
        " field.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )
    console.click("button", "Preview")
    console.wait_for_text(f"{MESSAGES} messages will be consumed again.")
    console.wait_for_text("order-0")
    console.wait_for_text(f"order-{MESSAGES - 1}")
    assert committed(stack) == str(MESSAGES), "a preview changes nothing"
    assert console.violations() == []
    console.click("button", f"Reset {GROUP}")
    console.wait_for_text(f"{MESSAGES} messages are consumed again.")
    assert committed(stack) == "0"

    console.click("button", "Close")
    console.click("button", "Undo reset")
    console.click("button", "Undo")
    console.wait_for_text("The offsets from before are back.")
    assert committed(stack) == str(MESSAGES)


def test_a_group_is_paused_and_resumed(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"/groups/{GROUP}")
    for verb, said, consume in (("Pause", "is paused", False), ("Resume", "gets messages again", True)):
        console.click("button", verb)
        console.wait_until("document.querySelector('[role=dialog]') !== null")
        console.click("button", verb)
        console.wait_for_text(f"{GROUP} {said}.")
        with stack.http() as client:
            assert client.get(f"/v1/groups/{GROUP}").json()["consume"] is consume


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1_280, 320])
def test_pages_of_groups_fit_and_have_no_violations(console: ConsolePage, width: int, dark: bool) -> None:
    for path, text in (
        ("/groups", GROUP),
        (f"/groups/{GROUP}", "There is no lag report yet."),
        (f"/groups/{GROUP}?tab=offsets", "broker-a / 0"),
        (f"/groups/{GROUP}?tab=subscriptions", "agree"),
        (f"/groups/{GROUP}?tab=settings", "Save"),
    ):
        console.enter(path, width=width, dark=dark)
        console.wait_for_text(text)
        assert console.evaluate("document.documentElement.scrollWidth") <= width, path
        assert console.violations() == [], path


def test_groups_in_chinese(console: ConsolePage) -> None:
    console.enter(f"/groups/{GROUP}?tab=offsets", language="zh")
    console.wait_for_text("已提交位点")
    assert console.violations() == []
    console.evaluate("localStorage.setItem('gantry.language', 'en')")
