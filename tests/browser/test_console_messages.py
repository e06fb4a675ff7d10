"""Messages in the console, over a real stack: find, read, life, send again, live tail; both themes, two widths."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "orders"
GROUP = "billing"
HOSTILE = "<script>window.__bad = 1</script>\u202e"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        with running.http() as client:
            fill(client)
        yield running


def fill(client: httpx.Client) -> None:
    settings = {"read_queues": 1, "write_queues": 1, "brokers": ["broker-a"]}
    client.put(f"/v1/topics/{TOPIC}", json=settings).raise_for_status()
    client.put(f"/v1/groups/{GROUP}", json={}).raise_for_status()
    send(client, body='{"order": 9223372036854775807}', keys=["order-0"], tag="eu", properties={"weight": "7"})
    send(client, body=HOSTILE, keys=["order-1"], tag="us", properties={"weight": "2"})
    send(client, body="AAEC", encoding="base64", keys=["order-2"], tag="eu", properties={"weight": "9"})
    commit = {"offsets": [{"topic": TOPIC, "broker": "broker-a", "queue_id": 0, "offset": "1"}]}
    client.put(f"/v1/groups/{GROUP}/offsets", json=commit).raise_for_status()


def send(client: httpx.Client, **message: object) -> None:
    client.post(f"/v1/topics/{TOPIC}/messages", json=message).raise_for_status()


def test_a_message_is_found_by_key_read_and_sent_again(console: ConsolePage) -> None:
    console.enter(f"/messages?by=key&topic={TOPIC}&value=order-0")
    console.wait_for_text("1 message")
    console.click_on("document.querySelector('[role=table] [role=cell] button')")
    console.wait_for_text('"order": 9223372036854775807')
    console.wait_for_text("Life of the message")
    console.wait_for_text(GROUP)
    assert console.violations() == []
    console.click("button", "Send again")
    console.wait_for_text("Send this message again?")
    console.click("button", "Send again")
    console.wait_for_text("Stored as ")


def test_messages_of_a_time_are_filtered_by_tag_and_sql(console: ConsolePage) -> None:
    console.enter(f"/messages?topic={TOPIC}&value=2020-01-01T00:00:00.000Z&tags=us")
    console.wait_for_text("1 message")
    console.wait_for_text("order-1")
    console.enter(f"/messages?topic={TOPIC}&value=2020-01-01T00:00:00.000Z&sql=weight%20%3E%208")
    console.wait_for_text("1 message")
    console.wait_for_text("order-2")
    console.enter(f"/messages?topic={TOPIC}&value=2020-01-01T00:00:00.000Z&sql=weight%20%3E")
    console.wait_for_text("sql")
    console.wait_until("document.querySelector('[role=alert]') !== null")


def test_what_a_group_has_not_consumed_is_shown_as_text(console: ConsolePage) -> None:
    console.enter(f"/messages?by=group&topic={TOPIC}&value={GROUP}&tags=us")
    console.wait_for_text("order-1")
    console.click_on("document.querySelector('[role=table] [role=cell] button')")
    console.wait_for_text("\\u{202e}")
    assert console.evaluate("window.__bad === undefined")


def test_a_message_arrives_in_the_live_tail(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"/messages?by=live&topic={TOPIC}")
    console.wait_for_text("Live · 0 received")
    with stack.http() as client:
        send(client, body="now", keys=["live-1"])
        console.wait_for_text("live-1")
        console.click("button", "Pause")
        console.wait_for_text("Paused")
        console.click("button", "Resume")
        send(client, body="later", keys=["live-2"])
    console.wait_for_text("live-2")
    assert console.policy_breaches() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1_280, 320])
def test_pages_of_messages_fit_and_have_no_violations(console: ConsolePage, width: int, dark: bool) -> None:
    for path, text in (
        ("/messages", "Choose a topic"),
        (f"/messages?by=key&topic={TOPIC}&value=order-1", "1 message"),
        (f"/messages?by=live&topic={TOPIC}", "Live · 0 received"),
    ):
        console.enter(path, width=width, dark=dark)
        console.wait_for_text(text)
        assert console.evaluate("document.documentElement.scrollWidth") <= width, path
        assert console.violations() == [], path


def test_messages_in_chinese(console: ConsolePage) -> None:
    console.enter("/messages", language="zh")
    console.wait_for_text("查找方式")
    assert console.violations() == []
    console.evaluate("localStorage.setItem('gantry.language', 'en')")
