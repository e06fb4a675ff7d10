"""How people's commands reach a gateway: which one, with which key, and what its refusals look like."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
import typer

from gantry.cli.outcome import fail
from gantry.http.call import JSON, Call
from gantry.http.client import GantryClient
from gantry.http.errors import GantryError, GantryProblem, NoStackError, Problem
from gantry.http.stack import read_stack

DataOption = Annotated[
    Path, typer.Option("--data", envvar="GANTRY_DATA", metavar="DIR", help="The folder of a stack that runs here.")
]
UrlOption = Annotated[str | None, typer.Option("--url", metavar="URL", help="A gateway elsewhere; needs --key.")]
KeyOption = Annotated[str | None, typer.Option("--key", metavar="KEY", help="An API key, or @FILE to read it from.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

T = TypeVar("T")

DATA_DEFAULT = Path(".gantry")


class Remote:
    """A gateway's API in its own JSON; what it refuses ends the command with one line."""

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
        """Make a call and return the answer's JSON, None where it has none.

        `wait_ms` is how long the gateway takes on purpose, besides the client's time-out.
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
        """Run a call of `gantry.http.calls`."""
        try:
            return self._client.run(call)
        except GantryProblem as error:
            fail(refusal(error.problem))
        except GantryError as error:
            fail(str(error))

    def items(self, path: str, *, query: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Return every item of a list, page after page."""
        cursor: str | None = None
        while True:
            page = self.call("GET", path, query={**(query or {}), "cursor": cursor})
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return


def connect(data: Path, url: str | None, key: str | None) -> Remote:
    """Return the gateway that the options name: `--url` and `--key`, or the stack of `--data`."""
    if url is not None and key is None:
        raise typer.BadParameter("--url needs --key", param_hint="--url")
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
        fail("--key: an API key is printable ASCII")
    if not url.startswith(("http://", "https://")):
        fail(f"--url {url}: starts with neither http:// nor https://")
    try:
        return Remote(GantryClient(url, key))
    except httpx.InvalidURL as error:
        fail(f"--url {url}: {error}")


def refusal(problem: Problem) -> str:
    """Return a problem in one line."""
    outcome = f" [{problem.outcome}]" if problem.outcome else ""
    return f"{problem.title}: {problem.detail}{outcome}" if problem.detail else f"{problem.title}{outcome}"


def segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe="")


def _parameter(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
