"""Dialogs and panels of the console in a real browser: the focus, Escape, and the steps of its history."""

from collections.abc import Iterator

import pytest

from tests.support.chromium import Page
from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "orders"
FOUND = f"/messages?by=key&topic={TOPIC}&value=key-1"
NO_DIALOG = "document.querySelector('[role=dialog]') === null"
IN_DIALOG = "document.activeElement.closest('[role=dialog]') !== null"
FOCUSED = "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText).trim()"

# A step back that the console undoes: it ends with the second event.
REFUSED_STEP = """
new Promise(done => {
  let left = 2;
  const count = () => { left -= 1; if (left === 0) { removeEventListener('popstate', count); done(true); } };
  addEventListener('popstate', count);
  history.back();
})
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        with running.http() as client:
            settings = {"read_queues": 1, "write_queues": 1, "brokers": ["broker-a"]}
            client.put(f"/v1/topics/{TOPIC}", json=settings).raise_for_status()
            client.put("/v1/groups/billing", json={}).raise_for_status()
            client.put("/v1/topics/short-lived", json=settings).raise_for_status()
            for user in ("ada", "vera"):
                given = {"role": "viewer", "password": "correct horse battery"}
                client.put(f"/v1/users/{user}", json=given).raise_for_status()
            client.post(f"/v1/topics/{TOPIC}/messages", json={"body": "x", "keys": ["key-1"]}).raise_for_status()
        yield running


def address(console: ConsolePage) -> str:
    found: str = console.evaluate("location.pathname + location.search")
    return found.removeprefix("/console")


def press_button(console: ConsolePage, name: str) -> None:
    """Press a button of the page as the keyboard does: with the focus on it."""
    find = f"[...document.querySelectorAll('button')].find(each => each.innerText.trim() === '{name}')"
    console.focus_on(find)
    console.press("Enter")


def open_message(console: ConsolePage) -> None:
    console.focus_on("document.querySelector('[role=row][data-index]')")
    console.press("Enter")
    console.wait_until(IN_DIALOG, what="the focus in the panel")


def test_a_step_back_from_a_message_closes_it_and_stays_on_the_page(console: ConsolePage) -> None:
    console.enter("/topics")
    console.enter(FOUND)
    open_message(console)
    assert "message=" in address(console)
    console.evaluate("history.back()")
    console.wait_until(NO_DIALOG, what="the panel to close")
    assert address(console) == FOUND
    console.wait_for_text("1 message")
    console.evaluate("history.forward()")
    console.wait_until("document.querySelector('[role=dialog]') !== null", what="the panel to open again")
    console.press("Escape")
    console.wait_until(NO_DIALOG, what="the panel to close")
    console.evaluate("history.back()")
    console.wait_until("location.pathname === '/console/topics'", what="the page before")


def test_the_focus_returns_to_the_row_of_a_panel(console: ConsolePage) -> None:
    console.enter(FOUND)
    open_message(console)
    console.press("Escape")
    console.wait_until("document.activeElement.matches('[role=row][data-index]')", what="the focus on the row")


def test_the_focus_returns_from_dialogs_and_the_palette(console: ConsolePage) -> None:
    console.enter("/topics")
    console.wait_for_text(TOPIC)
    press_button(console, "Create")
    console.wait_until(IN_DIALOG, what="the focus in the dialog")
    console.press("Escape")
    console.wait_until(f"{FOCUSED} === 'Create'", what="the focus on the button")
    console.press("k", control=True)
    console.wait_until("document.querySelector('[role=dialog] input') === document.activeElement")
    console.press("Escape")
    console.wait_until(f"{FOCUSED} === 'Create'", what="the focus on the button")


def test_the_focus_returns_from_a_dialog_of_the_account_menu(console: ConsolePage) -> None:
    console.enter("/")
    console.focus_on("document.querySelector('button[aria-label=Account]')")
    console.press("Enter")
    console.click("menuitem", "Change password")
    console.wait_until(IN_DIALOG, what="the focus in the dialog")
    console.press("Escape")
    console.wait_until(f"{FOCUSED} === 'Account'", what="the focus on the menu")


def test_escape_asks_before_it_discards_what_was_typed(console: ConsolePage) -> None:
    console.enter("/topics")
    press_button(console, "Create")
    console.wait_until(IN_DIALOG, what="the focus in the dialog")
    console.type_into("Topic", "half-written")
    console.press("Escape")
    console.wait_for_text("Discard what you have typed?")
    assert console.violations() == []
    console.click("button", "Go on typing")
    assert console.evaluate("[...document.querySelectorAll('input')].some(each => each.value === 'half-written')")
    console.press("Escape")
    console.click("button", "Discard")
    console.wait_until(NO_DIALOG, what="the dialog to close")


def open_user(console: ConsolePage, user: str) -> None:
    find = f"[...document.querySelectorAll('[role=row][data-index]')].find(row => row.innerText.includes('{user}'))"
    console.focus_on(find)
    console.press("Enter")
    console.wait_until(IN_DIALOG, what="the focus in the panel")
    console.wait_for_text(f"{user} is not logged in anywhere.")


def test_the_focus_stays_on_the_page_when_the_row_of_a_panel_is_deleted(console: ConsolePage) -> None:
    console.enter("/access")
    open_user(console, "ada")
    press_button(console, "Delete")
    console.type_into("Type ada to confirm", "ada")
    console.press("Enter")
    console.wait_for_text("The user ada is deleted.")
    rows = "[...document.querySelectorAll('[role=row][data-index]')]"
    gone = f"!{rows}.some(row => row.innerText.includes('ada'))"
    console.wait_until(f"{NO_DIALOG} && {rows}.length > 0 && {gone}", what="the row to go")
    console.wait_until("document.activeElement.closest('main') !== null", what="the focus in the page")


def test_the_focus_is_in_the_page_after_its_thing_is_deleted(console: ConsolePage) -> None:
    console.enter("/topics/short-lived")
    press_button(console, "Delete")
    console.type_into("Type short-lived to confirm", "short-lived")
    console.press("Enter")
    console.wait_until("location.pathname === '/console/topics'", what="the list")
    console.wait_until(NO_DIALOG, what="the question to close")
    console.wait_until("document.activeElement.closest('main') !== null", what="the focus in the page")


def test_a_panel_asks_before_it_discards_a_choice(console: ConsolePage) -> None:
    console.enter("/access")
    open_user(console, "vera")
    console.focus_on("document.querySelector('[role=dialog] select:not([data-view])')")
    console.press("ArrowDown")
    role = "document.querySelector('[role=dialog] select:not([data-view])').value"
    console.wait_until(f"{role} === 'operator'", what="another role")
    console.press("Escape")
    console.wait_for_text("Discard what you have typed?")
    assert console.violations() == []
    console.click("button", "Go on typing")
    assert console.evaluate(role) == "operator"
    console.press("Escape")
    console.click("button", "Discard")
    console.wait_until(NO_DIALOG, what="the panel to close")


def test_a_step_back_asks_before_it_discards_a_choice(console: ConsolePage) -> None:
    console.enter("/topics")
    console.enter("/access")
    open_user(console, "vera")
    console.focus_on("document.querySelector('[role=dialog] select:not([data-view])')")
    console.press("ArrowDown")
    role = "document.querySelector('[role=dialog] select:not([data-view])').value"
    console.wait_until(f"{role} === 'operator'", what="another role")
    for _ in range(2):  # The second step finds the question open, and the history as before.
        console.evaluate(REFUSED_STEP)
        console.wait_for_text("Discard what you have typed?")
        assert address(console) == "/access?user=vera"
    console.click("button", "Go on typing")
    assert console.evaluate(role) == "operator"
    console.evaluate(REFUSED_STEP)
    console.click("button", "Discard")
    console.wait_until(NO_DIALOG, what="the panel to close")
    assert address(console) == "/access"
    console.evaluate("history.back()")
    console.wait_until("location.pathname === '/console/topics'", what="the page before")


def test_the_browser_asks_before_a_step_that_leaves_the_console(console: ConsolePage, browser: Page) -> None:
    console.enter("/topics")
    press_button(console, "Create")
    console.wait_until(IN_DIALOG, what="the focus in the dialog")
    console.type_into("Topic", "half-written")
    browser.watch("Page.javascriptDialogOpening")
    console.enter("/groups")
    assert [event["params"]["type"] for event in browser.events()] == ["beforeunload"]
    console.enter("/topics")
    assert len(browser.events()) == 1
    browser.watch()


def test_a_step_back_returns_to_the_tab_before(console: ConsolePage) -> None:
    console.enter("/topics")
    console.enter(f"/topics/{TOPIC}")
    for tab in ("Routes", "Settings"):
        console.click("tab", tab)
        console.wait_until(f"document.querySelector('[role=tab][aria-selected=true]').innerText.trim() === '{tab}'")
    console.evaluate("history.back()")
    console.wait_until("location.search === '?tab=routes'", what="the tab before")
    console.evaluate("history.back()")
    console.wait_until("location.search === '' && location.pathname.endsWith('/orders')", what="the first tab")
    console.evaluate("history.back()")
    console.wait_until("location.pathname === '/console/topics'", what="the page before")


def test_an_address_that_is_no_text_is_no_page_of_the_console(console: ConsolePage) -> None:
    console.enter("/")
    console.wait_for_text("Everything answers")
    for path in ("/topics/%E0%A4%A", "/nothing/%ff"):
        console.enter(path)
        console.wait_for_text("There is no such page")
        assert console.evaluate("document.querySelector('nav a[href$=topics]') !== null"), "the frame is there"


def test_the_palette_finds_a_group_by_its_name(console: ConsolePage) -> None:
    console.enter("/")
    console.wait_for_text("Everything answers")
    console.press("k", control=True)
    console.wait_until("document.querySelector('[role=dialog] input') === document.activeElement")
    console.insert("bill")
    console.wait_for_text("billing")
    assert console.violations() == []
    console.press("ArrowDown")
    console.press("Enter")
    console.wait_until("location.pathname === '/console/groups/billing'", what="the page of the group")


def test_an_address_with_two_filters_is_refused_by_name(console: ConsolePage) -> None:
    console.enter(f"/messages?topic={TOPIC}&value=2020-01-01T00:00:00.000Z&tags=eu&sql=a%3D1")
    console.wait_for_text("The address names tags and SQL.")
    console.enter(f"/scheduled?topic={TOPIC}&from=garbage")
    console.wait_until("/from[^]*garbage/.test(document.querySelector('main [role=alert]')?.innerText ?? '')")
