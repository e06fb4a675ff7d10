"""Speed of the console, over a real stack: a live tail of 2,000 messages a second, counted to the last one."""

import re
import time
from collections.abc import Iterator
from threading import Thread

import pytest

from tests.support.chromium import WAIT_S
from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "busy"
PER_S, BATCH, MESSAGES = 2_000, 100, 10_000
SHOWN_MAX, ROWS_MAX = 500, 80
# A tab that draws each message for itself is silent for far longer, on any machine.
ANSWER_S_MAX = 2.0
STATUS = (
    "[...document.querySelectorAll('[role=status]')].map(each => each.innerText).find(each => / received/.test(each))"
)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        with running.http() as client:
            client.put(f"/v1/topics/{TOPIC}", json={}).raise_for_status()
        yield running


def produce(stack: Stack) -> None:
    """Send PER_S messages a second, in batches at fixed times."""
    began = time.monotonic()
    with stack.http() as client:
        for batch in range(MESSAGES // BATCH):
            time.sleep(max(0.0, began + batch * BATCH / PER_S - time.monotonic()))
            items = [{"body": f'{{"number": {batch * BATCH + at}}}', "keys": [f"key-{at}"]} for at in range(BATCH)]
            client.post(f"/v1/topics/{TOPIC}/messages:batch", json={"messages": items}).raise_for_status()


def counted(console: ConsolePage) -> dict[str, int]:
    """Return the numbers that the page says."""
    said = console.evaluate(STATUS)
    words = {"received": " received", "left": " older ones", "skipped": " stored messages"}
    found = {name: re.search(rf"([\d,]+){word}", said) for name, word in words.items()}
    return {name: 0 if match is None else int(match[1].replace(",", "")) for name, match in found.items()}


@pytest.mark.parametrize("rate", [2_000, 100])
def test_a_live_tail_of_2000_a_second_counts_every_message(console: ConsolePage, stack: Stack, rate: int) -> None:
    console.enter(f"/messages?by=live&topic={TOPIC}")
    console.wait_for_text("Live · 0 received")
    console.evaluate(
        f"(() => {{ const field = [...document.querySelectorAll('select')].at(-1); field.value = '{rate}';"
        " field.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )
    console.wait_until(f"[...document.querySelectorAll('select')].at(-1).value === '{rate}'")
    console.wait_for_text("Live · 0 received")
    producer = Thread(target=produce, args=[stack])
    producer.start()
    answers: list[float] = []
    while producer.is_alive():
        asked = time.monotonic()
        assert console.evaluate("document.querySelectorAll('[role=row]').length") <= ROWS_MAX
        answers.append(time.monotonic() - asked)
    producer.join()
    deadline = time.monotonic() + WAIT_S
    while (now := counted(console))["received"] + now["skipped"] != MESSAGES:
        assert time.monotonic() < deadline, now
        time.sleep(0.05)
    shown = int(console.evaluate("document.querySelector('[role=table]').ariaRowCount")) - 1
    assert shown == min(now["received"], SHOWN_MAX)
    assert now["left"] == now["received"] - shown
    assert max(answers) < ANSWER_S_MAX, "the tab answers"
    if rate < PER_S:
        assert now["skipped"] > 0
