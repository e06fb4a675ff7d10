"""The gateway that a command calls: options that choose it, requests, and the texts of rejected requests."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
import typer

from gantry.cli.outcome import fail
from gantry.http.call import JSON, Call
from gantry.http.client import GantryClient
from gantry.http.errors import GantryError, GantryProblem, NoStackError, Problem
from gantry.http.stack import read_stack

T = TypeVar("T")


class Remote:
    """A gateway's HTTP API as plain JSON values. A request that fails ends the command with one line."""

    def __init__(self, client: GantryClient) -> None:
        self._client = client

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait_ms: int = 0,
    ) -> Any:
        """Send a request and return the decoded JSON of the response, None if the response is empty.

        `wait_ms` is the time that the gateway may hold the request; it is added to the client's time-out.
        """
        params = {name: _parameter(value) for name, value in (query or {}).items() if value is not None}
        has_body = body is not None
        call = Call(
            method,
            path,
            lambda content, _: msgspec.json.decode(content) if content else None,
            params=params,
            content=msgspec.json.encode(body) if has_body else None,
            headers={**({"content-type": JSON} if has_body else {}), **(headers or {})},
            wait_ms=wait_ms,
        )
        return self.run(call)

    def run(self, call: Call[T]) -> T:
        """Run a typed call, such as those of `gantry.http.reportcalls`."""
        try:
            return self._client.run(call)
        except GantryProblem as error:
            fail(refusal(error.problem))
        except GantryError as error:
            fail(str(error))

    def stream(self, path: str, *, query: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the bytes of an answer that has no limit, as they come."""
        params = {name: _parameter(value) for name, value in query.items()}
        try:
            yield from self._client.stream(Call("GET", path, lambda content, _: content, params=params))
        except GantryProblem as error:
            fail(refusal(error.problem))
        except GantryError as error:
            fail(str(error))

    def items(self, path: str, *, query: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Yield every item of a list, page by page."""
        cursor: str | None = None
        while True:
            page = self.call("GET", path, query={**(query or {}), "cursor": cursor})
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return


def find_gateway(data: Path, url: str | None, key: str | None) -> tuple[str, str]:
    """Return URL and key of a gateway: of `--url` and `--key`, or of the environment, or of the stack in `--data`."""
    if url is not None and key is None:
        raise typer.BadParameter("--url needs --key, or $GANTRY_API_KEY", param_hint="--url")
    if url is None or key is None:
        try:
            stack = read_stack(data)
        except NoStackError as error:
            fail(str(error))
        url, key = url or stack.http, key or stack.api_key
    if key.startswith("@"):
        try:
            key = Path(key[1:]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"--key {key}: {error}")
    if not key.isascii() or not key.isprintable():
        fail("--key: an API key must be printable ASCII")
    if not url.startswith(("http://", "https://")):
        fail(f"--url {url}: the URL must start with http:// or https://")
    return url, key


def connect(data: Path, url: str | None, key: str | None) -> Remote:
    """Return the gateway that `--url` and `--key` name, or else the gateway of the stack in `--data`."""
    url, key = find_gateway(data, url, key)
    try:
        return Remote(GantryClient(url, key))
    except httpx.InvalidURL as error:
        fail(f"--url {url}: {error}")


def refusal(problem: Problem) -> str:
    """Return the text of a problem in one line."""
    outcome = f" [{problem.outcome}]" if problem.outcome else ""
    return f"{problem.title}: {problem.detail}{outcome}" if problem.detail else f"{problem.title}{outcome}"


def segment(name: str) -> str:
    """Return a name percent-encoded as one segment of a path."""
    return quote(name, safe="")


def _parameter(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
