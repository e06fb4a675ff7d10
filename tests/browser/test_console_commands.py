"""Commands that the console copies, pasted into a shell that knows the key and the address, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack, environment

TOPIC = "orders"
GROUP = "billing"
FOUND = f"/messages?by=key&topic={TOPIC}&value=key-1"
# A page for each kind of command, and what the answer shows.
PAGES = [
    ("/topics", TOPIC),
    (f"/topics/{TOPIC}", TOPIC),
    (f"/messages?topic={TOPIC}&value=2020-01-01T00:00:00.000Z&tags=eu", "key-1"),
    (FOUND, "key-1"),
    ("/groups", GROUP),
    (f"/groups/{GROUP}", GROUP),
    ("/brokers", "broker-a"),
    ("/transactions", None),
    (f"/scheduled?topic={TOPIC}", None),
    ("/audit", TOPIC),
    ("/jobs", None),
    ("/reports", "lag_report"),
]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        with running.http() as client:
            settings = {"read_queues": 1, "write_queues": 1, "brokers": ["broker-a"]}
            client.put(f"/v1/topics/{TOPIC}", json=settings).raise_for_status()
            client.put(f"/v1/groups/{GROUP}", json={}).raise_for_status()
            message = {"body": "x", "keys": ["key-1"], "tag": "eu"}
            client.post(f"/v1/topics/{TOPIC}/messages", json=message).raise_for_status()
        yield running


def copy(console: ConsolePage, kind: str, *, label: str = "Copy as") -> str | None:
    """Return the command that a button copies; None if there is none of this kind."""
    console.evaluate(
        "window.__copied = null; Object.defineProperty(navigator, 'clipboard', {configurable: true, "
        "value: {writeText: text => { window.__copied = text; return Promise.resolve(); }}})"
    )
    console.click("button", label)
    console.wait_until("document.querySelector('[role=menuitem]') !== null")
    there = json.dumps(f"{kind} command")
    items = "[...document.querySelectorAll('[role=menuitem]')].map(each => each.innerText.trim())"
    if not console.evaluate(f"{items}.includes({there})"):
        console.press("Escape")
        return None
    console.click("menuitem", f"{kind} command")
    console.wait_until("window.__copied !== null")
    text: str = console.evaluate("window.__copied")
    return text


def paste(stack: Stack, command: str, folder: Path) -> str:
    """Run a command in a shell as somebody on another machine would, and return what it prints."""
    facts = stack.facts
    known = {"GANTRY_API_KEY": facts["api_key"], "GANTRY_URL": facts["http"]}
    script = f'gantry() {{ "{sys.executable}" -m gantry.cli "$@"; }}\nset -eo pipefail\n{command}\n'
    variables = {**environment(known), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("kind", ["gantry", "curl"])
def test_commands_of_pages_work_when_they_are_pasted(
    console: ConsolePage, stack: Stack, tmp_path: Path, kind: str
) -> None:
    worked = []
    for page, shown in PAGES:
        console.enter(page)
        console.settle()
        if console.evaluate("document.querySelector('main .copy-as') === null"):
            continue
        command = copy(console, kind)
        if command is None:
            continue
        printed = paste(stack, command, tmp_path)
        assert shown is None or shown in printed, (command, printed)
        assert '"status":4' not in printed, (command, printed)
        worked.append(command)
    assert len(worked) >= 8, worked


def test_a_command_that_changes_something_works_when_it_is_pasted(
    console: ConsolePage, stack: Stack, tmp_path: Path
) -> None:
    console.enter("/topics")
    console.click("button", "Create")
    console.type_into("Topic", "pasted")
    command = copy(console, "gantry")
    assert command is not None
    paste(stack, command, tmp_path)
    with stack.http() as client:
        assert client.get("/v1/topics/pasted").status_code == 200
