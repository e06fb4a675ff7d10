"""The audit trail in the console, over a real stack: filter, see a difference, export as JSON lines."""

import json
from collections.abc import Iterator

import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "audited"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        with running.http() as client:
            for topic in (TOPIC, "another"):
                client.put(f"/v1/topics/{topic}", json={"perm": "rw"}).raise_for_status()
            client.put(f"/v1/topics/{TOPIC}", json={"perm": "r"}).raise_for_status()
        yield running


def test_a_change_is_found_with_its_difference_and_exported(console: ConsolePage) -> None:
    console.enter("/audit?kind=topic")
    console.wait_for_text("another")
    console.type_into("Name", TOPIC)
    console.wait_until("!document.body.innerText.includes('another')")
    assert f"name={TOPIC}" in console.evaluate("location.search")

    console.click("button", "topic.change")
    console.wait_for_text('"rw"')
    cells = console.evaluate(
        "[...document.querySelectorAll('[role=dialog] tbody td')].map(each => each.innerText.trim()).slice(0, 3)"
    )
    assert cells == ["perm", '"rw"', '"r"']
    assert console.violations() == []
    console.click("button", "Close")

    find = "[...document.querySelectorAll('a')].find(each => each.innerText.trim() === 'Export')"
    status, text = console.evaluate(f"fetch({find}.href).then(async found => [found.status, await found.text()])")
    assert status == 200
    entries = [json.loads(line) for line in text.splitlines()]
    assert [(entry["action"], entry["name"]) for entry in entries] == [("topic.change", TOPIC), ("topic.create", TOPIC)]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1_280, 320])
def test_the_audit_trail_fits_and_has_no_violations(console: ConsolePage, width: int, dark: bool) -> None:
    console.enter("/audit?kind=topic", width=width, dark=dark)
    console.wait_for_text(TOPIC)
    assert console.evaluate("document.documentElement.scrollWidth") <= width
    assert console.violations() == []
