"""The console while a session or the gateway is away, and after: on pages that are open, opened, or watch messages."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "orders"
OLD = "These numbers are old"
ENDED = "Your session has ended"
AWAY = "The gateway does not answer"
# A read of the page every 5 s, or a question of the console if nothing else is read, and the time that each may take.
SILENCE_S_MAX = 15.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        with running.http() as client:
            settings = {"read_queues": 1, "write_queues": 1, "brokers": ["broker-a"]}
            client.put(f"/v1/topics/{TOPIC}", json=settings).raise_for_status()
        yield running


@contextmanager
def hanging_gateway(stack: Stack) -> Iterator[None]:
    """Stop the gateway as a debugger would: it keeps its connections and answers nothing."""
    pid = stack.pid_of("gateway-0")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def lost_gateway(stack: Stack) -> Iterator[None]:
    """Kill the gateway, and start it again at the end: its supervisor can't do that while it is stopped."""
    os.kill(stack.pid, signal.SIGSTOP)
    try:
        os.kill(stack.pid_of("gateway-0"), signal.SIGKILL)
        yield
    finally:
        os.kill(stack.pid, signal.SIGCONT)


def wait_until_gone(console: ConsolePage, text: str) -> None:
    console.wait_until(f"!document.body.innerText.includes({json.dumps(text)})", what=f"{text!r} to go")


def test_a_live_tail_whose_session_ends_asks_for_a_log_in_and_watches_again(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"/messages?by=live&topic={TOPIC}")
    console.wait_for_text("Live · 0 received")
    with stack.http() as client:
        assert client.delete("/v1/users/admin/sessions").status_code == 204
    console.wait_for_text(ENDED)
    console.log_in()
    wait_until_gone(console, ENDED)
    console.wait_for_text("Live · 0 received")
    with stack.http() as client:
        client.post(f"/v1/topics/{TOPIC}/messages", json={"body": "x"}).raise_for_status()
    console.wait_for_text("Live · 1 received")
    assert console.evaluate("location.pathname + location.search") == f"/console/messages?by=live&topic={TOPIC}"


def test_a_live_tail_of_a_topic_that_is_not_there_does_not_connect_for_ever(console: ConsolePage) -> None:
    console.enter("/messages?by=live&topic=missing")
    console.wait_for_text("Not watching")
    assert "missing" in console.evaluate("document.querySelector('[role=alert]').innerText")
    assert "Connecting" not in console.evaluate("document.body.innerText")


@pytest.mark.parametrize("path", ["/", "/groups", f"/topics/{TOPIC}"])
def test_a_gateway_that_hangs_makes_numbers_old_within_seconds(console: ConsolePage, stack: Stack, path: str) -> None:
    console.enter(path)
    console.settle()
    with hanging_gateway(stack):
        began = time.monotonic()
        console.wait_for_text(OLD)
        assert time.monotonic() - began <= SILENCE_S_MAX
        assert re.search(r"Last answer [^\n]+ ago: no answer", console.evaluate("document.body.innerText"))
        assert console.violations() == []
    wait_until_gone(console, OLD)


def test_a_live_tail_says_that_the_gateway_hangs(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"/messages?by=live&topic={TOPIC}")
    console.wait_for_text("Live · 0 received")
    with hanging_gateway(stack):
        began = time.monotonic()
        console.wait_for_text("No answer · 0 received")
        assert time.monotonic() - began <= SILENCE_S_MAX
    console.wait_for_text("Live · 0 received")
    with stack.http() as client:
        client.post(f"/v1/topics/{TOPIC}/messages", json={"body": "x"}).raise_for_status()
    console.wait_for_text("Live · 1 received")


@pytest.mark.parametrize("away", [lost_gateway, hanging_gateway])
def test_a_page_that_was_never_loaded_waits_for_the_gateway_in_the_frame(
    console: ConsolePage, stack: Stack, away: type
) -> None:
    console.enter("/")
    console.wait_for_text("Everything answers")
    with away(stack):
        console.click("link", "Reports")
        console.wait_until(
            f"document.querySelector('main').innerText.includes({json.dumps(AWAY)})", what="the state of the gateway"
        )
        assert console.evaluate("document.querySelector('nav a[href$=topics]') !== null"), "the frame is there"
        assert console.evaluate("location.pathname") == "/console/reports"
        assert console.violations() == []
    console.wait_until("document.querySelector('h1')?.innerText === 'Reports'", what="the page")
    console.wait_for_text("This report has never run.")


def test_a_language_that_was_never_loaded_comes_with_the_gateway(console: ConsolePage, stack: Stack) -> None:
    console.enter("/")
    console.wait_for_text("Everything answers")
    with lost_gateway(stack):
        console.click("button", "Language")
        console.click("menuitem", "中文")
        console.wait_for_text(OLD)
    try:
        console.wait_for_text("概览")
    finally:
        console.evaluate("localStorage.setItem('gantry.language', 'en')")
