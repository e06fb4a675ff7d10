"""`/console`: files without a key, one page for every address, and a policy under which no foreign script runs."""

import gzip
import json
from pathlib import Path

import pytest

from services.gateway.errors import PROBLEM_TYPES
from services.gateway.features.console import console_routes, read_console
from tests.unit.services.gateway.asgi.test_paths import application

PAGE = b"<!doctype html>" + b"<p>Gantry</p>" * 100
SCRIPT = b"export const x = 1;" * 100


@pytest.fixture
def app(tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_bytes(PAGE)
    (tmp_path / "assets" / "main-a1b2.js").write_bytes(SCRIPT)
    (tmp_path / "assets" / "main-a1b2.js.gz").write_bytes(gzip.compress(SCRIPT))
    (tmp_path / "notes.secret").write_text("not a file of the console")
    return application(console_routes(read_console(tmp_path)))


async def get(app, path, query=b"", **headers):
    """Return status, headers and body of the answer to a request without a key."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": headers.pop("method", "GET"), "path": path.decode(), "raw_path": path,
        "query_string": query, "scheme": "http", "client": ("127.0.0.1", 1),
        "headers": [(name.replace("_", "-").encode(), value) for name, value in headers.items()],
    }  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(each.get("body", b"") for each in sent[1:])


@pytest.mark.parametrize("path", [b"/console", b"/console/", b"/console/topics/a%2Fb", b"/console/notes.secret"])
async def test_every_address_is_the_page(app, path):
    status, headers, body = await get(app, path, b"q=1&sort=name")
    assert (status, body) == (200, PAGE)
    assert headers[b"content-type"] == b"text/html; charset=utf-8"
    assert headers[b"cache-control"] == b"no-cache"


@pytest.mark.parametrize("path", [b"/console/topics/%E0%A4%A", b"/console/%ff", b"/console/%"])
async def test_an_address_that_is_not_utf_8_is_the_page_which_says_that_there_is_none(app, path):
    status, _, body = await get(app, path)
    assert (status, body) == (200, PAGE)
    for other in (path.replace(b"/console/", b"/v1/"), path.replace(b"/console/", b"/consoles/")):
        status, _, body = await get(app, other)
        assert status in (400, 401), body


async def test_the_policy_allows_only_scripts_of_this_gateway(app):
    _, headers, _ = await get(app, b"/console/")
    policy = dict(part.strip().split(" ", 1) for part in headers[b"content-security-policy"].decode().split(";"))
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in "".join(value for name, value in policy.items() if name != "style-src")
    assert headers[b"x-content-type-options"] == b"nosniff"


async def test_assets_are_kept_for_ever_and_compressed_for_those_who_can_read_it(app):
    status, headers, body = await get(app, b"/console/assets/main-a1b2.js")
    assert (status, body) == (200, SCRIPT)
    assert b"immutable" in headers[b"cache-control"]
    assert headers[b"vary"] == b"accept-encoding"
    _, zipped, body = await get(app, b"/console/assets/main-a1b2.js", accept_encoding=b"gzip, br")
    assert zipped[b"content-encoding"] == b"gzip"
    assert gzip.decompress(body) == SCRIPT
    # An asset of an older build must not be answered with the page, which is no script.
    status, headers, body = await get(app, b"/console/assets/main-0000.js")
    assert status == 404
    assert json.loads(body)["type"].endswith("/not-found")


async def test_a_browser_that_has_the_page_gets_no_body(app):
    _, headers, _ = await get(app, b"/console/")
    assert (await get(app, b"/console/", if_none_match=headers[b"etag"]))[0::2] == (304, b"")


async def test_no_path_leaves_the_folder(app):
    for path in (b"/console/../pyproject.toml", b"/console/%2e%2e%2fpyproject.toml", b"/console/assets/..%2f..%2fx"):
        _, _, body = await get(app, path)
        assert b"project" not in body


async def test_it_is_read_only(app):
    assert (await get(app, b"/console/", method="POST"))[0] == 401  # As every path that does not exist.


async def test_without_a_build_it_says_what_to_do(tmp_path):
    status, headers, body = await get(application(console_routes(read_console(tmp_path))), b"/console/topics")
    assert (status, headers[b"content-type"]) == (404, b"text/plain; charset=utf-8")
    assert b"make console" in body


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_console_has_a_title_for_each_problem_of_the_gateway(language):
    texts = Path(__file__).resolve().parents[4] / "web-console" / "src" / "i18n" / language / "common.json"
    assert set(json.loads(texts.read_text(encoding="utf-8"))["problem"]) == set(PROBLEM_TYPES)
