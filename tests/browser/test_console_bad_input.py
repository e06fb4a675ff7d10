"""Bad input in the console, over a real stack: hostile and huge messages, other sites, lost sessions and gateways."""

import base64
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest

from tests.support.chromium import Page
from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "hostile"
MARKUP = "<img/src=x/onerror=window.__bad=1><script>window.__bad=1</script>"
# The mark of direction makes it look like "invoiceexe.jpg".
TURNED, SEEN = "invoice\u202egpj.exe", "invoice\\u{202e}gpj.exe"
EMOJI = "🎉😀"
LONG_KEY = "k" * 10_000
BODY_BYTES_MAX = 4 << 20
ROW_PX_MAX = 600
ALL = f"/messages?topic={TOPIC}&value=2020-01-01T00:00:00.000Z"
OLD = "These numbers are old"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        with running.http() as client:
            settings = {"read_queues": 1, "write_queues": 1, "brokers": ["broker-a"]}
            for topic in (TOPIC, "victim"):
                client.put(f"/v1/topics/{topic}", json=settings).raise_for_status()
            for message in hostile_messages():
                send(client, **message)
        yield running


def hostile_messages() -> list[dict[str, object]]:
    binary = base64.b64encode(bytes(range(256)) * (BODY_BYTES_MAX // 256)).decode()
    return [
        {"body": MARKUP + TURNED, "keys": [MARKUP], "properties": {"note": TURNED, "markup": MARKUP}},
        # The preview of a body ends within the emoji that is its 80th character.
        {"body": "x" * 79 + EMOJI, "keys": [EMOJI, LONG_KEY]},
        {"body": binary, "encoding": "base64", "keys": ["binary"]},
        {"body": "<" * BODY_BYTES_MAX, "keys": ["text"]},
    ]


def send(client: httpx.Client, **message: object) -> None:
    client.post(f"/v1/topics/{TOPIC}/messages", json=message).raise_for_status()


def assert_harmless(console: ConsolePage) -> None:
    """Nothing of a message is markup, has run, or turns text around."""
    assert console.evaluate("window.__bad === undefined")
    injected = "[...document.querySelectorAll('img, script')].filter(each => /__bad|src=x/.test(each.outerHTML)).length"
    assert console.evaluate(injected) == 0
    assert "\u202e" not in console.evaluate("document.body.innerText")
    assert console.policy_breaches() == []


def show_all(console: ConsolePage, *, width: int = 1_280) -> None:
    """Show the messages of the topic. A page of the gateway ends with the message that has its 4 MiB."""
    console.enter(ALL, width=width)
    console.wait_for_text("3 messages · there may be more")
    console.click("button", "Load more")
    console.wait_for_text("4 messages")


def open_message(console: ConsolePage, key: str) -> None:
    """Open the message of a row that shows this key."""
    row = f"[...document.querySelectorAll('[role=row]')].find(row => row.innerText.includes({json.dumps(key)}))"
    console.click_on(f"{row}?.querySelector('button')")
    console.wait_until("document.querySelector('[role=dialog] pre.viewer') !== null")


def shown_body(console: ConsolePage) -> str:
    body: str = console.evaluate("document.querySelector('[role=dialog] pre.viewer').textContent")
    return body


@pytest.mark.parametrize("width", [1_280, 320])
def test_a_list_shows_hostile_and_huge_messages(console: ConsolePage, width: int) -> None:
    show_all(console, width=width)
    for text in (MARKUP, EMOJI, "binary", "<" * 80):
        console.wait_for_text(text)
    console.wait_until("document.body.innerText.match(/4 MiB/g)?.length === 2", what="two sizes of 4 MiB")
    assert "\ufffd" not in console.evaluate("document.body.innerText"), "no half of an emoji"
    assert "u{d8" not in console.evaluate("document.body.innerText"), "no half of an emoji"
    assert console.evaluate("document.documentElement.scrollWidth") <= width
    heights = console.evaluate("[...document.querySelectorAll('[role=row]')].map(row => row.offsetHeight)")
    assert max(heights) <= ROW_PX_MAX, "a key of 10,000 characters is cut"
    assert_harmless(console)


def test_a_message_shows_markup_and_marks_of_direction_as_text(console: ConsolePage) -> None:
    console.enter(ALL)
    open_message(console, MARKUP)
    assert shown_body(console) == MARKUP + SEEN
    properties = console.evaluate("document.querySelector('[role=dialog] table[aria-label=Properties]').innerText")
    assert SEEN in properties
    assert MARKUP in properties
    assert_harmless(console)


@pytest.mark.parametrize("width", [1_280, 320])
def test_a_message_shows_the_whole_of_a_long_key(console: ConsolePage, width: int) -> None:
    console.enter(ALL, width=width)
    open_message(console, EMOJI)
    console.wait_for_text(LONG_KEY)
    assert console.evaluate("document.querySelector('[role=dialog]').scrollWidth") <= width
    assert_harmless(console)


def test_bodies_of_4_mib_are_shown_in_parts(console: ConsolePage) -> None:
    show_all(console)
    open_message(console, "binary")
    console.wait_for_text("Part 1 of 256")
    assert shown_body(console).startswith(
        "00000000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  ................\n"
    )
    console.click("button", "Next part")
    console.wait_for_text("Part 2 of 256")
    assert shown_body(console).startswith("00004000  00 01 02 03")
    assert_harmless(console)
    console.click("button", "Close")
    console.wait_until("document.querySelector('[role=dialog]') === null")
    open_message(console, "text")
    console.wait_for_text("Part 1 of 64")
    assert shown_body(console) == "<" * 65_536
    assert console.violations() == []
    assert_harmless(console)


def test_a_live_tail_shows_hostile_and_huge_messages(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"/messages?by=live&topic={TOPIC}")
    console.wait_for_text("Live · 0 received")
    # 12 bodies of 4 MiB: more than a tab keeps.
    messages = hostile_messages() + hostile_messages()[2:] * 5
    with stack.http() as client:
        for message in messages:
            send(client, **message)
    console.wait_until(
        f"(([, received] = [], [, skipped = 0] = []) => Number(received) + Number(skipped) === {len(messages)})("
        "document.body.innerText.match(/(\\d+) received/) ?? [], document.body.innerText.match(/(\\d+) stored/) ?? [])",
        what="all messages to be received or skipped",
    )
    console.wait_for_text("older ones no longer shown")
    for text in ("binary", "<" * 80):
        console.wait_for_text(text)
    with stack.http() as client:
        for message in hostile_messages()[:2]:
            send(client, **message)
    for text in (MARKUP, EMOJI):
        console.wait_for_text(text)
    assert_harmless(console)
    open_message(console, MARKUP)
    assert shown_body(console) == MARKUP + SEEN
    assert_harmless(console)


def test_the_page_runs_no_inline_script(console: ConsolePage) -> None:
    console.enter("/")
    console.evaluate("""(() => {
      const script = document.createElement('script');
      script.textContent = 'window.__bad = 1';
      const button = document.createElement('button');
      button.setAttribute('onclick', 'window.__bad = 1');
      const foreign = document.createElement('script');
      foreign.src = 'data:text/javascript,window.__bad = 1';
      document.body.append(script, button, foreign);
      button.click();
    })()""")
    console.wait_until("window.__breaches.length >= 3", what="three breaches of the policy")
    assert {breach.split()[0] for breach in console.policy_breaches()} == {"script-src-elem", "script-src-attr"}
    assert console.evaluate("window.__bad === undefined")


def test_a_change_needs_the_token_of_the_session(console: ConsolePage, stack: Stack) -> None:
    console.enter("/")
    before = stored(stack)
    for header in ("", "'x-csrf-token': 'guess'"):
        status, kind = console.evaluate(
            f"{post_to_victim(header)}.then(async found => [found.status, (await found.json()).type])"
        )
        assert (status, kind.rsplit("/", 1)[-1]) == (403, "csrf-token")
    assert stored(stack) == before
    token = console.evaluate("fetch('/v1/session').then(async found => (await found.json()).csrf)")
    header = f"'x-csrf-token': '{token}'"
    assert console.evaluate(f"{post_to_victim(header)}.then(found => found.ok)")
    assert stored(stack) == before + 1


def post_to_victim(header: str) -> str:
    """Return a script that sends a message as the page of the console can."""
    options = f"method: 'POST', headers: {{'content-type': 'text/plain', {header}}}, body: 'x'"
    return f"fetch('/v1/topics/victim/messages', {{{options}}})"


def stored(stack: Stack) -> int:
    """Return the number of messages in the topic that others attack."""
    with stack.http() as client:
        (queue,) = client.get("/v1/topics/victim/queues").json()["items"]
    return int(queue["max_offset"])


def test_another_site_can_not_use_the_session(console: ConsolePage, browser: Page, stack: Stack) -> None:
    console.enter("/")
    console.wait_for_text("broker-a")
    before = stored(stack)
    gateway = stack.facts["http"]
    assert gateway.startswith("http://127.0.0.1:"), "localhost is another site"
    with foreign_site(gateway) as address:
        browser.call("Page.navigate", url=address)
        console.wait_until("document.forms.length === 1")
        assert console.evaluate(ATTACK) == ["opaque", False]
    assert stored(stack) == before
    console.go("/")
    console.wait_for_text("broker-a")  # The session is alive: it was there to be used.


# Sends a message as a script and as a form can from another site, and tries to read the session.
ATTACK = """(async () => {
  const action = document.forms[0].action;
  const sent = await fetch(action, {method: 'POST', mode: 'no-cors', credentials: 'include', body: 'x'});
  const session = await fetch(new URL('/v1/session', action), {credentials: 'include'}).then(() => true, () => false);
  const loaded = new Promise(done => document.querySelector('iframe').addEventListener('load', done));
  document.forms[0].submit();
  await loaded;
  return [sent.type, session];
})()"""


@contextmanager
def foreign_site(gateway: str) -> Iterator[str]:
    """Serve a page with a form that posts to the gateway; yield its address."""
    page = (
        f"<!doctype html><form method=post enctype=text/plain target=there action={gateway}/v1/topics/victim/messages>"
        "<input name=a value=b></form><iframe name=there></iframe>"
    )

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_a_lost_session_returns_to_the_same_page_with_what_was_typed(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"/messages?by=key&topic={TOPIC}&value=nothing")
    console.wait_for_text("No message matches.")
    console.type_into("Key or message id", "binary")
    with stack.http() as client:
        assert client.delete("/v1/users/admin/sessions").status_code == 204
    console.click("button", "Find")
    console.wait_for_text("Your session has ended")
    console.log_in()
    console.wait_until("!document.body.innerText.includes('Your session has ended')")
    console.wait_for_text("1 message")
    address = console.evaluate("location.pathname + location.search")
    assert address == f"/console/messages?by=key&topic={TOPIC}&value=binary"


@contextmanager
def lost_gateway(stack: Stack) -> Iterator[None]:
    """Kill the gateway, and start it again at the end: its supervisor can't do that while it is stopped."""
    os.kill(stack.pid, signal.SIGSTOP)
    try:
        os.kill(stack.pid_of("gateway-0"), signal.SIGKILL)
        yield
    finally:
        os.kill(stack.pid, signal.SIGCONT)


def test_a_lost_gateway_makes_numbers_old_until_it_is_back(console: ConsolePage, stack: Stack) -> None:
    console.enter("/")
    console.wait_for_text("Everything answers")
    with lost_gateway(stack):
        console.wait_for_text(OLD)
        shown = console.evaluate("document.body.innerText")
        assert re.search(r"Last answer [^\n]+ ago: no answer since", shown)
        assert "broker-a" in shown
        assert console.violations() == []
    console.wait_until(f"!document.body.innerText.includes({json.dumps(OLD)})", what="new numbers")
    console.wait_for_text("Everything answers")


def test_a_live_tail_goes_on_after_a_lost_gateway(console: ConsolePage, stack: Stack) -> None:
    console.enter(f"/messages?by=live&topic={TOPIC}")
    console.wait_for_text("Live · 0 received")
    with stack.http() as client:
        send(client, body="before", keys=["before"])
    console.wait_for_text("before")
    with lost_gateway(stack):
        console.wait_for_text("Connection lost; it is tried again")
        console.wait_for_text("1 received")
    console.wait_for_text("Live · 1 received")
    with stack.http() as client:
        send(client, body="after", keys=["after"])
    console.wait_for_text("Live · 2 received")
