"""Groups in the console, over a real stack: create, offsets, reset and undo, pause, objectives, traffic; both themes."""

import time

import httpx
import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "orders"
GROUP = "billing"
MESSAGES = 12


@pytest.fixture(scope="module")
def stack(stack: Stack) -> Stack:
    with stack.http() as client:
        fill(client)
    return stack


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

    # It is kept while the reader is on another page.
    console.click("link", "Topics")
    console.wait_until("location.pathname === '/console/topics'")
    console.evaluate("history.back()")
    console.click("button", "Redo reset")
    console.wait_for_text("goes to the offsets of the reset again.")
    console.click("button", "Redo")
    console.wait_for_text("The offsets of the reset are back.")
    assert committed(stack) == "0"
    console.click("button", "Undo reset")
    console.click("button", "Undo")
    console.wait_for_text("Redo reset")
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


def test_a_group_is_created_with_its_settings(console: ConsolePage, stack: Stack) -> None:
    console.enter("/groups")
    console.click("button", "Create")
    console.type_into("Group", GROUP)
    console.press("Enter")
    console.wait_for_text(f"There is already a group {GROUP}.")
    console.type_into("Group", "shipping")
    console.type_into("Retries", "many")
    console.press("Enter")
    console.wait_for_text("/retry_max_times")
    assert console.violations() == []
    console.type_into("Retries", "3")
    console.press("Enter")
    console.wait_until("location.pathname === '/console/groups/shipping'")
    with stack.http() as client:
        group = client.get("/v1/groups/shipping").json()
    assert (group["retry_max_times"], group["retry_queues"], group["consume"]) == (3, 1, True)


def test_an_objective_is_set_changed_and_removed(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"/groups/{GROUP}?tab=objectives")
    console.wait_for_text("The group has no objective.")
    console.click("button", "Add objective")
    console.type_into("Topic", TOPIC)
    console.type_into("Longest lag", "90")
    assert console.violations() == []
    console.click("button", "Save")
    console.wait_for_text("1 min 30 s")
    console.click("button", f"Change the objective of {TOPIC}")
    console.type_into("Largest lag", "1000")
    console.wait_until("document.querySelector('table[aria-label=\"What will change\"]') !== null")
    assert console.violations() == []
    console.click("button", "Save")
    console.wait_for_text("1,000")
    with stack.http() as client:
        found = client.get(f"/v1/groups/{GROUP}/objective", params={"topic": TOPIC}).json()
        assert (found["max_lag_seconds"], found["max_lag_messages"]) == (90, 1000)
        console.click("button", f"Remove the objective of {TOPIC}")
        console.wait_for_text(f"The objective of {GROUP} on {TOPIC} is removed.")
        console.click("button", "Remove")
        console.wait_for_text("The group has no objective.")
        assert client.get(f"/v1/groups/{GROUP}/objective", params={"topic": TOPIC}).status_code == 404


def test_traffic_is_counted_as_messages_flow(console: ConsolePage, stack: Stack) -> None:
    with stack.http() as client:
        pull(client, "reader", MESSAGES)
    console.enter("/groups/reader?tab=traffic")
    console.wait_for_text("delivered")
    console.wait_until(f"document.querySelector('[role=table]').innerText.includes('{MESSAGES} ·')")
    console.click_on("document.querySelector('[role=switch]')")
    console.wait_until("document.querySelector('[role=table]').innerText.includes('broker-a')")
    console.enter(f"/topics/{TOPIC}?tab=traffic")
    console.wait_for_text("stored")
    console.wait_until(f"document.querySelector('[role=table]').innerText.includes('{MESSAGES} ·')")


def pull(client: httpx.Client, group: str, count: int) -> None:
    """Let a group pull messages of the topic."""
    client.put(f"/v1/groups/{group}", json={}).raise_for_status()
    found = 0
    deadline = time.monotonic() + 60
    while found < count:
        assert time.monotonic() < deadline, f"{found} of {count} messages came"
        body = {"topic": TOPIC, "max": count, "wait": "2s"}
        answer = client.post(f"/v1/groups/{group}/messages:pull", json=body).raise_for_status()
        found += len(answer.json()["messages"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1_280, 320])
def test_pages_of_groups_fit_and_have_no_violations(console: ConsolePage, width: int, dark: bool) -> None:
    for path, text in (
        ("/groups", GROUP),
        (f"/groups/{GROUP}", "There is no lag report yet."),
        (f"/groups/{GROUP}?tab=offsets", "broker-a / 0"),
        (f"/groups/{GROUP}?tab=subscriptions", "agree"),
        (f"/groups/{GROUP}?tab=traffic", "By broker"),
        (f"/groups/{GROUP}?tab=objectives", "Add objective"),
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
