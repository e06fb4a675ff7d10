"""Dead letters in the console, over a real stack: found, read, and sent again; both themes, two widths."""

import time

import httpx
import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "orders"
GROUP = "billing"
LETTERS = 3


@pytest.fixture(scope="module")
def stack(stack: Stack) -> Stack:
    with stack.http() as client:
        make_letters(client)
    return stack


def make_letters(client: httpx.Client) -> None:
    """Fail messages of a group that retries nothing."""
    client.put(f"/v1/topics/{TOPIC}", json={"read_queues": 1, "write_queues": 1}).raise_for_status()
    client.put(f"/v1/groups/{GROUP}", json={"retry_max_times": 0}).raise_for_status()
    for number in range(LETTERS):
        body = {"body": f'{{"order": {number}}}', "keys": [f"order-{number}"], "tag": "eu"}
        client.post(f"/v1/topics/{TOPIC}/messages", json=body).raise_for_status()
    receipts = pull(client, LETTERS)
    client.post(f"/v1/groups/{GROUP}/messages:nack", json={"receipts": receipts, "delay": "0s"}).raise_for_status()
    deadline = time.monotonic() + 30
    while len(client.get(f"/v1/groups/{GROUP}/dead-letters").json()["items"]) < LETTERS:
        assert time.monotonic() < deadline, "the messages did not die"
        time.sleep(0.2)


def pull(client: httpx.Client, count: int) -> list[str]:
    receipts: list[str] = []
    deadline = time.monotonic() + 30
    while len(receipts) < count:
        assert time.monotonic() < deadline, f"{len(receipts)} of {count} messages came"
        body = {"topic": TOPIC, "max": count, "wait": "2s"}
        answer = client.post(f"/v1/groups/{GROUP}/messages:pull", json=body).raise_for_status()
        receipts += [message["receipt"] for message in answer.json()["messages"]]
    return receipts


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1_280, 320])
def test_the_page_fits_and_has_no_violations(console: ConsolePage, width: int, dark: bool) -> None:
    console.enter(f"/dead-letters?group={GROUP}", width=width, dark=dark)
    console.wait_for_text("order-0")
    assert console.evaluate("document.documentElement.scrollWidth") <= width
    assert console.violations() == []


def test_letters_are_previewed_and_sent_again(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"/dead-letters?group={GROUP}")
    console.wait_for_text("order-2")
    console.click("button", "Send all again")
    console.click("button", "Preview")
    console.wait_for_text(f"{LETTERS} letters will be sent")
    console.click("button", "Send again")
    console.wait_for_text("The redrive has ended")
    console.wait_for_text(f"{LETTERS} sent, 0 failed")
    # The letters are read again, and say when they were sent.
    console.wait_until("![...document.querySelectorAll('[role=cell]')].some((cell) => cell.innerText.trim() === 'no')")
    with stack.http() as client:
        assert len(pull(client, LETTERS)) == LETTERS


def test_a_letter_speaks_chinese(console: ConsolePage) -> None:
    console.enter(f"/dead-letters?group={GROUP}", language="zh")
    console.wait_for_text("order-1")
    console.click_on("document.querySelector('.data-body .cell-button')")
    console.wait_for_text("失败消息的存储 ID")
