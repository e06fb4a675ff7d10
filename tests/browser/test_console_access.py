"""Access in the console, over a real stack: users, keys, sessions, roles, and the own password; both themes, two widths."""

from pathlib import Path

import pytest

from tests.support.chromium import Page
from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

PASSWORD = "correct horse battery"
VIEWER = "vera"


@pytest.fixture(scope="module")
def stack(stack: Stack) -> Stack:
    with stack.http() as client:
        client.put(f"/v1/users/{VIEWER}", json={"role": "viewer", "password": PASSWORD}).raise_for_status()
    return stack


def console_of(browser: Page, stack: Stack, folder: Path, user: str, password: str) -> ConsolePage:
    """Return a console that logs in as a user; the session of the one before is forgotten."""
    file = folder / f"{user}-password"
    file.write_text(password)
    console = ConsolePage(browser, {**stack.facts["console"], "user": user, "password_file": str(file)})
    console.forget()
    return console


def choose(console: ConsolePage, label: str, value: str) -> None:
    """Choose a value of the visible list with this label."""
    console.evaluate(
        "(() => { const field = [...document.querySelectorAll('label')].filter(each => each.checkVisibility() && "
        f"each.innerText.trim() === '{label}').at(-1).control; field.value = '{value}';"
        " field.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def test_a_user_from_the_creation_to_the_end(console: ConsolePage, stack: Stack) -> None:
    console.enter("/access")
    console.click("button", "Create user")
    console.type_into("User", "ada")
    console.type_into("Password", "aaaaaaaaaaaa")
    console.press("Enter")
    console.wait_for_text("has fewer than 4 different characters")
    assert console.violations() == []
    console.type_into("Password", PASSWORD)
    console.press("Enter")
    console.wait_for_text("The user ada is created.")
    console.wait_until("document.querySelector('[role=dialog]') === null")

    console.click("button", "ada")
    console.wait_for_text("ada is not logged in anywhere.")
    assert console.evaluate("location.search") == "?user=ada"
    choose(console, "Role", "operator")
    console.click("button", "Change role")
    console.wait_for_text("ada becomes Operator and is no longer Viewer.")
    assert console.violations() == []
    console.click("button", "Change role")
    console.wait_for_text("The role of ada is changed.")
    with stack.http() as client:
        assert client.get("/v1/users/ada").json()["role"] == "operator"

    console.click("button", "Disable")
    console.wait_for_text("ada can't log in until somebody enables the user again.")
    console.click("button", "Disable")
    console.wait_for_text("ada is disabled.")
    console.click("button", "Delete")
    console.type_into("Type ada to confirm", "ada")
    console.press("Enter")
    console.wait_for_text("The user ada is deleted.")
    with stack.http() as client:
        assert client.get("/v1/users/ada").status_code == 404


def test_the_last_admin_stays_one_and_the_page_says_why(console: ConsolePage, stack: Stack) -> None:
    console.enter("/access?user=admin")
    console.wait_for_text("this session")
    console.click("button", "Disable")
    console.wait_for_text("You are logged out everywhere, also here.")
    console.click("button", "Disable")
    console.wait_for_text("Give another user the role Admin first.")
    console.wait_for_text("admin is the last user with the role admin who can log in")
    assert console.violations() == []
    with stack.http() as client:
        assert client.get("/v1/users/admin").json()["disabled"] is False


def test_a_key_works_with_the_secret_that_is_shown_once_until_it_is_revoked(console: ConsolePage, stack: Stack) -> None:
    console.enter("/access?tab=keys")
    console.click("button", "Create key")
    console.type_into("Name", "pricing")
    console.type_into("Sends to topics", "orders, pay*")
    console.click("button", "Create")
    console.wait_for_text("Copy it now: it can't be shown again")
    assert console.violations() == []
    secret = console.evaluate("document.querySelector('[role=dialog] pre').innerText.trim()")
    with stack.http() as client:
        headers = {"Authorization": f"Bearer {secret}"}
        rights = client.get("/v1/session", headers=headers).raise_for_status().json()["rights"]
        assert rights["publish"] == ["orders", "pay*"]
        console.click("button", "I have stored it")
        console.wait_until(f"!document.documentElement.outerHTML.includes('{secret}')")

        console.click("button", "pricing")
        console.click("button", "Revoke")
        console.type_into("Type pricing to confirm", "pricing")
        console.press("Enter")
        console.wait_for_text("The key pricing is revoked.")
        assert client.get("/v1/session", headers=headers).status_code == 401


def test_a_viewer_sees_the_own_sessions_and_hears_who_may_see_more(browser: Page, stack: Stack, tmp_path: Path) -> None:
    console = console_of(browser, stack, tmp_path, VIEWER, PASSWORD)
    console.enter("/access")
    console.wait_for_text("this session")
    tabs = console.evaluate("[...document.querySelectorAll('[role=tab]')].map(tab => tab.innerText)")
    assert tabs == ["Sessions", "Roles"]
    for path in ("/access?tab=users", "/access?tab=keys", "/audit"):
        console.enter(path)
        console.wait_for_text("This needs the role Admin. Yours is Viewer.")
        assert console.violations() == []
    console.forget()


def test_an_own_password_is_changed_and_all_sessions_end(browser: Page, stack: Stack, tmp_path: Path) -> None:
    console = console_of(browser, stack, tmp_path, VIEWER, PASSWORD)
    console.enter("/access")
    with stack.http() as elsewhere:
        other = {"user": VIEWER, "password": PASSWORD}
        # Requests with a key ignore the cookie, so this session needs a client without one.
        del elsewhere.headers["Authorization"]
        elsewhere.post("/v1/session", json=other).raise_for_status()
        console.click("button", "Account")
        console.click("menuitem", "Change password")
        console.type_into("Present password", "not the password")
        console.type_into("New password", "another staple")
        console.type_into("New password again", "another staple")
        console.press("Enter")
        console.wait_for_text("is not the present password")
        assert console.violations() == []
        console.type_into("Present password", PASSWORD)
        console.press("Enter")
        console.wait_for_text("Your password is changed.")
        assert elsewhere.get("/v1/session").status_code == 401

    console.click("button", "Account")
    console.click("menuitem", "Log out everywhere")
    console.wait_for_text("All your sessions end, in every browser and also here.")
    console.click("button", "Log out everywhere")
    console.wait_until("document.querySelector('input[name=password]') !== null")
    with stack.http() as client:
        assert client.get(f"/v1/users/{VIEWER}/sessions").json()["items"] == []
        client.put(f"/v1/users/{VIEWER}", json={"password": PASSWORD}).raise_for_status()
    console.forget()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1_280, 320])
def test_pages_of_access_fit_and_have_no_violations(console: ConsolePage, width: int, dark: bool) -> None:
    for path, text in (
        ("/access", VIEWER),
        ("/access?user=admin", "this session"),
        ("/access?tab=keys", "everything"),
        ("/access?tab=sessions", "this session"),
        ("/access?tab=roles", "Your role is Admin."),
    ):
        console.enter(path, width=width, dark=dark)
        console.wait_for_text(text)
        assert console.evaluate("document.documentElement.scrollWidth") <= width, path
        assert console.violations() == [], path


def test_access_in_chinese(console: ConsolePage) -> None:
    console.enter("/access", language="zh")
    console.wait_for_text("可登录")
    assert console.violations() == []
    console.evaluate("localStorage.setItem('gantry.language', 'en')")
