"""The console in a real Chromium over a real stack: log-in, overview, both themes and languages, 1280 and 320 px."""

import json
import re
from pathlib import Path

import pytest

from tests.support.chromium import Page
from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

FIRST_SCRIPT_BYTES_MAX = 300 * 1024
WIDTHS = (1_280, 320)


def test_a_log_in_leads_to_the_page_of_the_address(console: ConsolePage) -> None:
    console.forget()
    console.go("/?from=link")
    console.wait_for_text("Log in")
    assert console.violations() == []
    console.type_into("User", "admin")
    console.type_into("Password", "wrong")
    console.click("button", "Log in")
    console.wait_for_text("The user or the password is wrong.")
    console.log_in()
    console.wait_for_text("Everything answers")
    assert console.evaluate("location.pathname + location.search").rstrip("/") in {
        "/console/?from=link",
        "/console?from=link",
    }
    assert console.evaluate("document.cookie") == "", "scripts can't read the session"


def test_a_lost_session_returns_to_the_same_page(console: ConsolePage, stack: Stack) -> None:
    console.enter("/")
    with stack.http() as client:
        assert client.delete("/v1/users/admin/sessions").status_code == 204
    console.wait_for_text("Your session has ended")
    console.log_in()
    console.wait_until("!document.body.innerText.includes('Your session has ended')")
    console.wait_for_text("broker-a")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_overview_shows_the_brokers_and_has_no_violations(console: ConsolePage, width: int, dark: bool) -> None:
    console.enter("/", width=width, dark=dark)
    console.wait_for_text("broker-b")
    assert console.evaluate("document.documentElement.scrollWidth") <= width
    assert console.violations() == []


def test_it_speaks_chinese_and_remembers_it(console: ConsolePage) -> None:
    console.enter("/", language="zh")
    console.wait_for_text("概览")
    assert console.evaluate("document.documentElement.lang") == "zh"
    assert console.violations() == []
    console.evaluate("localStorage.setItem('gantry.language', 'en')")


def test_the_keyboard_reaches_everything(console: ConsolePage) -> None:
    console.enter("/")
    console.wait_for_text("broker-a")
    console.press("Tab")
    assert console.evaluate("document.activeElement.innerText") == "Skip to the content"
    console.press("k", control=True)
    console.wait_until("document.querySelector('[role=dialog] input') === document.activeElement")
    console.press("Escape")
    console.wait_until("document.querySelector('[role=dialog]') === null")


def test_the_first_load_is_small_and_breaks_no_policy(console: ConsolePage, browser: Page) -> None:
    console.forget()
    with browser.transfers() as transfers:
        console.enter("/")
        console.wait_for_text("broker-a")
        console.settle()
    scripts = [size for kind, size in transfers.values() if kind == "Script"]
    assert len(scripts) >= 3, "code is split"
    assert min(scripts) > 0, "each is loaded to its end, and not from a cache"
    assert sum(scripts) <= FIRST_SCRIPT_BYTES_MAX
    hosts = console.evaluate("performance.getEntriesByType('resource').map(e => new URL(e.name).host)")
    assert set(hosts) == {console.evaluate("location.host")}
    assert console.policy_breaches() == []


def test_no_built_file_names_another_host_to_load_from() -> None:
    folder = Path(__file__).resolve().parents[2] / "services" / "gateway" / "console"
    page = (folder / "index.html").read_text()
    assert re.findall(r'(?:src|href)="(?!/console/)[^"]*"', page) == []
    styles = "".join(path.read_text() for path in folder.rglob("*.css"))
    assert re.findall(r"url\(\s*['\"]?(?:https?:)?//", styles) == []
    lock = json.loads((folder.parents[2] / "web-console" / "package-lock.json").read_text())
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
