"""People log in with a password: their sessions, their roles, and the limits of an attacker, on a real gateway."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, select

from gantry.cli.stack.processes import family, signal_all
from gantry.runtime.clock import SystemClock
from services.gateway.auth.passwords import Passwords
from services.gateway.auth.sessionring import SessionRing, digest_of
from services.gateway.auth.sessionstore import SessionStore
from services.gateway.db.users import SessionRepository
from services.gateway.db.usertables import SESSIONS
from tests.support.stack import Stack, environment

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=1) as running:
        yield running


@pytest.fixture
def by_key(stack: Stack) -> Iterator[httpx.Client]:
    """A client with the first API key."""
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    with httpx.Client(base_url=stack.facts["http"], headers=headers, timeout=20, trust_env=False) as client:
        yield client


class Browser:
    """A client with the cookie of a session, which repeats its CSRF token."""

    def __init__(self, stack: Stack, address: str = "127.0.0.1") -> None:
        transport = httpx.HTTPTransport(local_address=address)
        self.client = httpx.Client(base_url=stack.facts["http"], timeout=20, trust_env=False, transport=transport)

    def log_in(self, user: str, password: str = PASSWORD) -> httpx.Response:
        answer = self.client.post("/v1/session", json={"user": user, "password": password})
        if answer.status_code == 201:
            self.client.headers["X-CSRF-Token"] = answer.json()["csrf"]
        return answer


@pytest.fixture
def open_browser(stack: Stack) -> Iterator[Callable[[], Browser]]:
    """Opens browsers, which are closed at the end of the test."""
    with ExitStack() as opened:

        def make() -> Browser:
            made = Browser(stack)
            opened.enter_context(made.client)
            return made

        yield make


@pytest.fixture
def browser(open_browser: Callable[[], Browser]) -> Browser:
    return open_browser()


def put_user(by_key: httpx.Client, name: str, role: str, **fields: Any) -> None:
    body = {"role": role, "password": PASSWORD, **fields}
    by_key.put(f"/v1/users/{name}", json=body).raise_for_status()


def first_password_file(stack: Stack) -> Path:
    return stack.directory / "admin-password"


@contextmanager
def another_gateway(stack: Stack, directory: Path) -> Iterator[str]:
    """Another gateway on the stack's Postgres, which looks for changes every 200 ms; yields its URL."""
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "services.gateway", "--listen", "127.0.0.1:0", "--name", "gateway-1"]
    command += ["--namesrv", ";".join(stack.facts["namesrv"]), "--data", str(directory), "--ready-file", str(ready)]
    settings = {"GANTRY_GATEWAY_DRAIN_MS": "0", "GANTRY_GATEWAY_KEY_POLL_INTERVAL_MS": "200"}
    variables = environment({**settings, "GANTRY_DATABASE_URL": stack.facts["postgres"]})
    process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)
    try:
        stack.wait_for(ready.exists, "to have another gateway")
        yield json.loads(ready.read_bytes())["url"]
    finally:
        process.terminate()
        assert process.wait(20) == 0


def gantry_user(stack: Stack, *words: str, password: str = "") -> str:
    """Run `gantry user`; return what it prints."""
    command = [sys.executable, "-m", "gantry.cli", "user", *words, "--data", str(stack.directory)]
    ended = subprocess.run(
        command, input=f"{password}\n", capture_output=True, text=True, check=False, timeout=60, env=environment()
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_first_start_makes_admin_and_keeps_the_password_where_only_its_owner_reads_it(stack, browser):
    file = first_password_file(stack)
    assert file.stat().st_mode & 0o777 == 0o600
    answer = browser.log_in("admin", file.read_text().strip())
    assert answer.status_code == 201, answer.text
    assert (answer.json()["user"], answer.json()["role"], answer.json()["rights"]["admin"]) == ("admin", "admin", True)
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(r"gantry_session=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict; Max-Age=604800", cookie)
    assert answer.headers["cache-control"] == "no-store"


def test_a_session_identifies_its_user_until_the_log_out(browser, by_key):
    put_user(by_key, "ada", "operator")
    csrf = browser.log_in("ada").json()["csrf"]
    shown = browser.client.get("/v1/session").json()
    assert (shown["user"], shown["key"], shown["role"], shown["csrf"]) == ("ada", None, "operator", csrf)
    cookie = browser.client.cookies["gantry_session"]
    assert browser.client.delete("/v1/session").status_code == 204
    again = browser.client.get("/v1/session", headers={"Cookie": f"gantry_session={cookie}"})
    assert (again.status_code, again.json()["type"]) == (401, "https://gantry.dev/problems/unauthenticated")


def test_a_key_is_shown_as_a_key(by_key):
    shown = by_key.get("/v1/session").json()
    assert (shown["user"], shown["role"], shown["csrf"], shown["expires_at"]) == (None, None, None, None)
    assert shown["key"].startswith("key-")
    assert by_key.delete("/v1/session").json()["type"].endswith("unknown-session")


@pytest.mark.parametrize("token", [None, "", "0" * 64], ids=["missing", "empty", "wrong"])
def test_a_change_by_cookie_needs_the_csrf_token(browser, by_key, token):
    put_user(by_key, "ada", "operator")
    browser.log_in("ada")
    browser.client.headers.pop("X-CSRF-Token")
    headers = {} if token is None else {"X-CSRF-Token": token}
    refused = browser.client.put("/v1/topics/Forged", json={}, headers=headers)
    assert (refused.status_code, refused.json()["type"]) == (403, "https://gantry.dev/problems/csrf-token")
    assert by_key.get("/v1/topics/Forged").status_code == 404
    assert browser.client.get("/v1/topics").status_code == 200


# Role, and the status of: a read of the cluster, a new topic, a send, a new key.
ROLES = {"viewer": (200, 403, 403, 403), "operator": (200, 201, 201, 403), "admin": (200, 201, 201, 201)}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_decides_what_a_user_may_do(browser, by_key, role):
    put_user(by_key, f"a-{role}", role)
    by_key.put("/v1/topics/Roles", json={}).raise_for_status()
    browser.log_in(f"a-{role}")
    client = browser.client
    statuses = (
        client.get("/v1/cluster").status_code,
        client.put(f"/v1/topics/Roles-{role}", json={}).status_code,
        client.post("/v1/topics/Roles/messages", json={"body": "x"}).status_code,
        client.post("/v1/keys", json={"name": "x", "rights": {}}).status_code,
    )
    assert statuses == ROLES[role]


def test_the_audit_trail_names_the_user(browser, by_key):
    put_user(by_key, "ada", "operator")
    browser.log_in("ada")
    browser.client.put("/v1/topics/Audited", json={}).raise_for_status()
    [entry] = by_key.get("/v1/audit", params={"kind": "topic", "name": "Audited"}).json()["items"]
    assert entry["actor"] == "user:ada"
    actions = [
        each["action"] for each in by_key.get("/v1/audit", params={"kind": "user", "name": "ada"}).json()["items"]
    ]
    assert {"user.create", "session.create"} <= set(actions)
    assert PASSWORD not in by_key.get("/v1/audit", params={"kind": "user"}).text


def test_a_name_that_postgres_cannot_store_is_a_wrong_user(browser):
    answer = browser.log_in("no\0body", "a wrong password")
    assert (answer.status_code, answer.json()["detail"]) == (401, "user: the user or the password is wrong")


def test_a_wrong_user_and_a_wrong_password_look_the_same_and_waits_grow(browser, by_key):
    put_user(by_key, "eve", "viewer")
    answers = [browser.log_in("eve", "a wrong password") for _ in range(6)]
    unknown = browser.log_in("nobody-of-this-name", "a wrong password")
    details = {answer.json()["detail"] for answer in [*answers[:5], unknown]}
    assert details == {"user: the user or the password is wrong"}
    assert [answer.status_code for answer in answers] == [401] * 5 + [429]
    assert int(answers[5].headers["retry-after"]) >= 1
    # The right password has to wait, too: otherwise an attacker could go on guessing.
    assert browser.log_in("eve").status_code == 429


def test_an_admin_sees_who_has_to_wait_from_where_and_until_when(stack, by_key):
    put_user(by_key, "locked", "viewer")
    assert by_key.get("/v1/users/locked").json()["log_in_waits"] == []
    # Failures of one address also count against the other tests at it.
    browser = Browser(stack, "127.0.0.2")
    with browser.client:
        for _ in range(5):
            browser.log_in("locked", "wrong")
    asked = datetime.now(UTC)
    (wait,) = by_key.get("/v1/users/locked").json()["log_in_waits"]
    assert (wait["address"], wait["failures"]) == ("127.0.0.2", 5)
    assert asked - timedelta(seconds=1) < datetime.fromisoformat(wait["until"]) < asked + timedelta(seconds=2)
    listed = {user["user"]: user["log_in_waits"] for user in by_key.get("/v1/users").json()["items"]}
    assert [each["failures"] for each in listed["locked"]] in ([5], []), "the wait may be over by now"
    assert listed["admin"] == []


def test_attempts_at_the_same_time_count_too(stack, by_key):
    put_user(by_key, "kim", "viewer")
    with (
        httpx.Client(base_url=stack.facts["http"], timeout=30, trust_env=False) as client,
        ThreadPoolExecutor(20) as pool,
    ):
        wrong = {"user": "kim", "password": "a wrong password"}
        statuses = list(pool.map(lambda _: client.post("/v1/session", json=wrong).status_code, range(20)))
    assert statuses.count(401) <= 5
    assert set(statuses) <= {401, 429}


@pytest.mark.parametrize("change", [{"disabled": True}, {"password": "another good password"}, {"role": "viewer"}])
def test_a_changed_user_is_logged_out_at_once(browser, by_key, change):
    put_user(by_key, "bob", "operator", disabled=False)
    assert browser.log_in("bob").status_code == 201
    by_key.put("/v1/users/bob", json=change).raise_for_status()
    assert browser.client.get("/v1/session").status_code == 401


def test_a_disabled_user_cannot_log_in(browser, by_key):
    put_user(by_key, "carl", "operator", disabled=True)
    assert browser.log_in("carl").status_code == 401


def test_the_last_admin_stays(by_key):
    for request in (
        ("PUT", {"role": "viewer"}),
        ("PUT", {"disabled": True}),
        ("DELETE", None),
    ):
        admins = [user for user in by_key.get("/v1/users").json()["items"] if user["role"] == "admin"]
        for other in admins:
            if other["user"] != "admin":
                by_key.delete(f"/v1/users/{other['user']}").raise_for_status()
        refused = by_key.request(request[0], "/v1/users/admin", json=request[1])
        assert (refused.status_code, refused.json()["type"]) == (409, "https://gantry.dev/problems/last-admin")


def test_users_change_their_own_password_and_stay_logged_in(open_browser, by_key):
    put_user(by_key, "dora", "viewer")
    here, elsewhere = open_browser(), open_browser()
    here.log_in("dora")
    elsewhere.log_in("dora")
    wrong = here.client.put("/v1/session/password", json={"password": "not it", "new_password": "a new password"})
    assert (wrong.status_code, wrong.json()["field"]) == (400, "/password")
    change = {"password": PASSWORD, "new_password": "a new password"}
    assert here.client.put("/v1/session/password", json=change).status_code == 204
    assert here.client.get("/v1/session").status_code == 200
    assert elsewhere.client.get("/v1/session").status_code == 401
    assert open_browser().log_in("dora").status_code == 401
    assert open_browser().log_in("dora", "a new password").status_code == 201


def test_sessions_are_listed_and_ended_one_by_one(open_browser, by_key):
    put_user(by_key, "finn", "viewer")
    first, second = open_browser(), open_browser()
    first.log_in("finn")
    second.log_in("finn")
    found = first.client.get("/v1/users/finn/sessions").json()["items"]
    assert [each["current"] for each in found] == [False, True]
    other = found[0]["session"]
    assert first.client.get("/v1/users/admin/sessions").status_code == 403
    assert first.client.delete(f"/v1/users/finn/sessions/{other}").status_code == 204
    assert second.client.get("/v1/session").status_code == 401
    assert first.client.delete(f"/v1/users/finn/sessions/{other}").json()["type"].endswith("unknown-session")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"role": "viewer"}, "/password"),
        ({"password": PASSWORD}, "/role"),
        ({"role": "viewer", "password": "short"}, "/password"),
        ({"role": "viewer", "password": "gina gina gina"[:10]}, "/password"),
        ({"role": "viewer", "password": "abababababab"}, "/password"),
        ({"role": "owner", "password": PASSWORD}, "/role"),
    ],
)
def test_a_user_that_cannot_be_made_is_refused_by_field(by_key, body, field):
    refused = by_key.put("/v1/users/gina", json=body)
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert by_key.get("/v1/users/gina").json()["type"].endswith("unknown-user")


def test_a_ticket_of_a_session_opens_a_stream(browser, by_key):
    put_user(by_key, "hugo", "operator")
    browser.log_in("hugo")
    assert browser.client.post("/v1/tickets").status_code == 201


async def test_sessions_that_have_ended_are_deleted(database, tmp_path):
    ring = SessionRing(SystemClock())
    store = SessionStore(ring, database, Passwords(), interval_ms=1_000, first_password_file=str(tmp_path / "first"))
    assert await store.refresh()
    async with database.transaction() as session:
        sessions = SessionRepository(session)
        for name, life in (("ended", timedelta(seconds=-1)), ("valid", timedelta(hours=1))):
            await session.execute(
                insert(SESSIONS).values(
                    id=name, sha256=digest_of(name), user_name="admin", expires_at=datetime.now(UTC) + life
                )
            )
        assert [each.id for each in await sessions.of_user("admin")] == ["valid"]
    assert await store.refresh()
    async with database.transaction() as session:
        assert list(await session.scalars(select(SESSIONS.c.id))) == ["valid"]


def test_another_gateway_takes_a_session_and_ends_it_too(stack, by_key, browser, tmp_path):
    put_user(by_key, "ida", "viewer")
    browser.log_in("ida")
    cookies = {"Cookie": f"gantry_session={browser.client.cookies['gantry_session']}"}
    with another_gateway(stack, tmp_path) as url, httpx.Client(base_url=url, headers=cookies) as other:
        assert other.get("/v1/session").json()["user"] == "ida"
        browser.client.delete("/v1/session").raise_for_status()
        stack.wait_for(lambda: other.get("/v1/session").status_code == 401, "the session to end on the other gateway")


def test_users_are_managed_by_the_command_line(stack, by_key, browser):
    made = gantry_user(stack, "create", "jane", "--role", "viewer", "--password-stdin", password=PASSWORD)
    assert "jane" in made
    assert browser.log_in("jane").status_code == 201
    assert "operator" in gantry_user(stack, "change", "jane", "--role", "operator")
    assert browser.client.get("/v1/session").status_code == 401
    gantry_user(stack, "password", "jane", "--password-stdin", password="quite another word")
    assert browser.log_in("jane", "quite another word").status_code == 201
    assert "session-" in gantry_user(stack, "sessions", "jane")
    [session] = by_key.get("/v1/users/jane/sessions").json()["items"]
    assert session["session"] in gantry_user(stack, "sessions", "jane", "--end-one", session["session"])
    assert browser.client.get("/v1/session").status_code == 401
    assert browser.log_in("jane", "quite another word").status_code == 201
    gantry_user(stack, "sessions", "jane", "--end")
    assert browser.client.get("/v1/session").status_code == 401
    assert "jane" in gantry_user(stack, "list")
    gantry_user(stack, "delete", "jane")
    assert "jane" not in gantry_user(stack, "list")


@pytest.mark.parametrize("path", ["/v1/oidc", "/v1/oidc/acme/login", "/v1/oidc/acme/callback"])
def test_single_sign_on_comes_later(browser, path):
    answer = browser.client.get(path)
    assert (answer.status_code, answer.json()["type"]) == (501, "https://gantry.dev/problems/not-implemented")
    assert browser.client.get("/v1/oidcs").status_code == 401


def test_while_postgres_is_frozen_log_ins_are_503_in_time_and_known_sessions_work(stack, by_key, open_browser):
    put_user(by_key, "olga", "operator")
    known = open_browser()
    assert known.log_in("olga").status_code == 201
    postgres = family(stack.pid_of("postgres"))
    signal_all(postgres, signal.SIGSTOP)
    try:
        # Failed attempts beyond the limit of the throttle: an outage is no failure of the user.
        for _ in range(7):
            began = time.monotonic()
            answer = open_browser().log_in("olga")
            assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (503, "metadata-unavailable")
            assert answer.headers["retry-after"]
            assert time.monotonic() - began < 15
        assert known.client.get("/v1/session").json()["user"] == "olga"
        assert known.client.get("/v1/topics").status_code == 200
        assert known.client.delete("/v1/session").status_code == 503
        stranger = open_browser()
        stranger.client.cookies.set("gantry_session", "x" * 43)
        assert stranger.client.get("/v1/session").status_code == 503, "nobody can tell that it is wrong"
    finally:
        signal_all(postgres, signal.SIGCONT)
    stack.wait_for(lambda: open_browser().log_in("olga").status_code == 201, "the log-in to work again")
    assert known.client.get("/v1/session").status_code == 200, "the log-out was not carried out"
