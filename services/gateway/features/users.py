"""`/v1/session` and `/v1/users`: log-ins of people, their sessions, and the users themselves."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from gantry.runtime.clock import Clock
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.conditions import expectation_of
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import limit_of
from services.gateway.auth.principal import Principal
from services.gateway.auth.roles import rights_of
from services.gateway.auth.sessionring import COOKIE, csrf_token_of
from services.gateway.auth.sessionstore import SESSION_LIFE_MAX
from services.gateway.core import Core, Feature
from services.gateway.db.users import User
from services.gateway.errors import UNKNOWN_SESSION, ProblemError, invalid
from services.gateway.features.actor import actor_of
from services.gateway.schemas.times import format_moment
from services.gateway.schemas.users import ChangePassword, LogIn, PutUser, UserName
from services.gateway.usecases.page import Page
from services.gateway.usecases.users import Users
from services.gateway.views.page import page_view
from services.gateway.views.users import session_view, user_view

_log_in: Final = msgspec.json.Decoder(LogIn)
_put: Final = msgspec.json.Decoder(PutUser)
_change: Final = msgspec.json.Decoder(ChangePassword)
_SESSION_ID_LENGTH_MAX: Final = 64


def user_feature(core: Core) -> Feature:
    """Return the routes of sessions and users."""
    users = Users(core.metadata, core.callers.sessions, core.passwords, core.metrics, clock=core.clock)

    async def make_first_user() -> None:
        await core.session_store.refresh()

    return Feature(
        [*session_routes(users, must_be_secure=core.settings.secure_cookies), *user_routes(users, core.clock)],
        background={"sessions": core.session_store.run},
        at_start=make_first_user,
    )


def session_routes(users: Users, *, must_be_secure: bool) -> list[Operation]:
    """Return the routes of the caller's own session.

    Args:
        users: The use case.
        must_be_secure: Whether browsers may send the cookie over HTTPS only, whatever the scheme of this request is.
    """

    def cookie_line(call: Call, value: str, max_age_s: int) -> tuple[bytes, bytes]:
        is_secure = must_be_secure or call.scope["scheme"] == "https"
        attributes = f"Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age_s}{'; Secure' if is_secure else ''}"
        return (b"set-cookie", f"{COOKIE}={value}; {attributes}".encode("ascii"))

    async def log_in(call: Call) -> Answer:
        given = await call.read_json(_log_in)
        agent = _text(call.header_values.get(b"user-agent"))
        opened = await users.log_in(given, address=call.address, user_agent=agent, request_id=call.request_id)
        answer = json_answer(
            {
                "user": opened.user,
                "role": opened.role,
                "rights": rights_of(opened.role),
                "expires_at": format_moment(opened.expires_at),
                "csrf": opened.csrf,
            },
            201,
        )
        answer.raw_headers += [
            cookie_line(call, opened.cookie, int(SESSION_LIFE_MAX.total_seconds())),
            (b"cache-control", b"no-store"),
        ]
        return answer

    async def show(call: Call) -> Answer:
        principal = call.principal
        expires_at = users.expires_at(principal)
        answer = json_answer(
            {
                "user": principal.name if principal.role is not None else None,
                "key": principal.key_id if principal.role is None else None,
                "role": principal.role,
                "rights": principal.rights,
                "expires_at": None if expires_at is None else format_moment(expires_at),
                "csrf": None if call.session_cookie is None else csrf_token_of(call.session_cookie),
            }
        )
        answer.raw_headers.append((b"cache-control", b"no-store"))
        return answer

    async def log_out(call: Call) -> Answer:
        await users.log_out(_user(call), actor_of(call))
        answer = Answer(204, b"", [])
        answer.raw_headers.append(cookie_line(call, "", 0))
        return answer

    async def change_password(call: Call) -> Answer:
        principal = _user(call)
        await users.change_password(principal, await call.read_json(_change), call.address, actor_of(call))
        return Answer(204)

    return [
        Operation("POST", "/v1/session", log_in, is_public=True),
        Operation("GET", "/v1/session", show),
        Operation("DELETE", "/v1/session", log_out),
        Operation("PUT", "/v1/session/password", change_password),
    ]


def user_routes(users: Users, clock: Clock) -> list[Operation]:
    """Return the routes of users."""

    def viewer() -> Callable[[User], dict[str, Any]]:
        waits, now_ms = users.waits(), clock.now_ms()
        return lambda user: user_view(user, waits.get(user.name, ()), now_ms)

    async def page(call: Call) -> Answer:
        call.principal.require_admin()
        found = await users.page(cursor=call.query.get("cursor"), limit=limit_of(call.query))
        return json_answer(page_view(found, viewer()))

    async def show(call: Call) -> Answer:
        call.principal.require_admin()
        return json_answer(viewer()(await users.get(_name_of(call))))

    async def put(call: Call) -> Answer:
        call.principal.require_admin()
        name = _name_of(call)
        expected = expectation_of(call)
        if expected.version is not None:
            raise invalid("If-Match", call.header(b"if-match"), "is not `*`: users have no ETag")
        user, is_new = await users.put(name, await call.read_json(_put), actor_of(call), exists=expected.exists)
        return json_answer(viewer()(user), 201 if is_new else 200)

    async def delete(call: Call) -> Answer:
        call.principal.require_admin()
        await users.delete(_name_of(call), actor_of(call))
        return Answer(204)

    async def sessions(call: Call) -> Answer:
        name = _own_or_any(call)
        found = await users.sessions(name)
        return json_answer(page_view(Page(found), lambda each: session_view(each, call.principal)))

    async def end_all(call: Call) -> Answer:
        await users.end_sessions(_own_or_any(call), None, actor_of(call))
        return Answer(204)

    async def end_one(call: Call) -> Answer:
        session_id = call.path_params["session"]
        if not (session_id.isascii() and session_id.isprintable() and len(session_id) <= _SESSION_ID_LENGTH_MAX):
            raise invalid("session", session_id, "is no session's id")
        await users.end_sessions(_own_or_any(call), session_id, actor_of(call))
        return Answer(204)

    path = "/v1/users/{user}"
    return [
        Operation("GET", "/v1/users", page, frozenset({"cursor", "limit"})),
        Operation("GET", path, show),
        Operation("PUT", path, put),
        Operation("DELETE", path, delete),
        Operation("GET", f"{path}/sessions", sessions),
        Operation("DELETE", f"{path}/sessions", end_all),
        Operation("DELETE", f"{path}/sessions/{{session}}", end_one),
    ]


def _user(call: Call) -> Principal:
    """Return the caller if it is a user in a session. Raises ProblemError (404)."""
    if call.principal.role is None:
        detail = f"session: the caller is the key {call.principal.key_id}, which has no session"
        raise ProblemError(UNKNOWN_SESSION, detail, field="session")
    return call.principal


def _own_or_any(call: Call) -> str:
    """Return the user of the path: an admin may name any, others themselves. Raises ProblemError (403)."""
    name = _name_of(call)
    if call.principal.role is None or call.principal.name != name:
        call.principal.require_admin()
    return name


def _name_of(call: Call) -> str:
    name: str = call.path_params["user"]
    try:
        return msgspec.convert(name, UserName)
    except msgspec.ValidationError:
        raise invalid("user", name, "is not 1 to 64 characters of a-z, 0-9, `.`, `_`, `@`, `-`") from None


def _text(value: bytes | None) -> str | None:
    """Return a header's printable characters."""
    if value is None:
        return None
    return "".join(each for each in value.decode("utf-8", "replace") if each.isprintable())
