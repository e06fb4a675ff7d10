"""Scheduled messages in the console, over a real stack: found, read, recalled and rescheduled; both themes, two widths."""

import httpx
import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "orders"
PAGE = f"/scheduled?topic={TOPIC}"
WAITING = ("kept", "recalled", "moved", "hurried", "late")


@pytest.fixture(scope="module")
def stack(stack: Stack) -> Stack:
    with stack.http() as client:
        client.put(f"/v1/topics/{TOPIC}", json={"read_queues": 1, "write_queues": 1}).raise_for_status()
        for hours, name in enumerate(WAITING, 2):
            body = {"body": f'{{"name": "{name}"}}', "keys": [name], "tag": "eu", "delay": f"{hours}h"}
            client.post(f"/v1/topics/{TOPIC}/messages", json=body).raise_for_status()
        stack.wait_for(lambda: len(waiting(client)) == len(WAITING), "to list what waits")
    return stack


def waiting(client: httpx.Client) -> dict[str, str]:
    """Return the handles of what waits, by key."""
    found = client.get(f"/v1/topics/{TOPIC}/scheduled").raise_for_status().json()["items"]
    return {item["keys"][0]: item["handle"] for item in found}


def has_come(client: httpx.Client, name: str) -> bool:
    return bool(client.get(f"/v1/topics/{TOPIC}/messages", params={"key": name}).json()["items"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1_280, 320])
def test_the_page_and_a_message_fit_and_have_no_violations(
    console: ConsolePage, stack: Stack, width: int, dark: bool
) -> None:
    with stack.http() as client:
        handle = waiting(client)["kept"]
    for address in (PAGE, f"{PAGE}&message={handle}"):
        console.enter(address, width=width, dark=dark)
        console.wait_for_text("kept")
        assert console.evaluate("document.documentElement.scrollWidth") <= width
        assert console.violations() == []
    console.click("button", "Reschedule")
    console.wait_for_text("Delay from now")
    assert console.violations() == []


def test_a_message_is_recalled_after_a_question(console: ConsolePage, stack: Stack) -> None:
    open_message(console, stack, "recalled")
    console.click("button", "Recall")
    console.wait_for_text("will not be delivered")
    console.click("button", "Recall")
    console.wait_for_text("It will not be delivered.")
    console.wait_until(no_row("recalled"))
    with stack.http() as client:
        stack.wait_for(lambda: "recalled" not in waiting(client), "to drop the message")


def test_a_recall_that_comes_too_late_says_so(console: ConsolePage, stack: Stack) -> None:
    handle = open_message(console, stack, "late")
    console.click("button", "Recall")
    console.wait_for_text("will not be delivered")
    with stack.http() as client:
        client.post(f"/v1/topics/{TOPIC}/scheduled/{handle}:recall").raise_for_status()
    console.click("button", "Recall")
    console.wait_for_text("Too late")


def test_a_message_is_rescheduled_and_keeps_its_place_in_the_list(console: ConsolePage, stack: Stack) -> None:
    handle = open_message(console, stack, "moved")
    console.click("button", "Reschedule")
    console.type_into("Delay from now", "41d")
    console.wait_for_text("At most 40 days")
    console.type_into("Delay from now", "30h")
    console.press("Enter")
    console.wait_for_text("It is due at")
    console.wait_until(f"{row_of('moved')}.innerText.includes('in 1 d 5 h')")
    with stack.http() as client:
        stack.wait_for(lambda: waiting(client)["moved"] != handle, "to list the new time")


def test_a_time_in_the_past_delivers_at_once(console: ConsolePage, stack: Stack) -> None:
    open_message(console, stack, "hurried")
    console.click("button", "Reschedule")
    console.type_into("Delay from now", "0s")
    console.wait_for_text(f"This time is not ahead: topic {TOPIC} gets the message at once.")
    console.press("Enter")
    console.wait_for_text("Delivered at once")
    with stack.http() as client:
        stack.wait_for(lambda: has_come(client, "hurried"), "to deliver the message")


def test_filters_and_the_message_speak_chinese(console: ConsolePage, stack: Stack) -> None:
    with stack.http() as client:
        handle = waiting(client)["kept"]
    console.enter(f"{PAGE}&from=2020-01-01T00:00&message={handle}", language="zh")
    console.wait_for_text("到期时间早于")
    console.wait_for_text("撤回")


def open_message(console: ConsolePage, stack: Stack, name: str) -> str:
    """Open a message from the list, and return its handle."""
    with stack.http() as client:
        handle = waiting(client)[name]
    console.enter(PAGE)
    console.click_on(f"{row_of(name)}?.querySelector('button')")
    console.wait_for_text("Broker and queue")
    return handle


def row_of(name: str) -> str:
    return f"[...document.querySelectorAll('.data-body [role=row]')].find(row => row.innerText.includes('{name}'))"


def no_row(name: str) -> str:
    return f"document.querySelector('.data-body') !== null && {row_of(name)} === undefined"
