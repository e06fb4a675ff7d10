"""`/console`: the files of the browser console, which need no key.

The build (`python -m tools.console build`) writes them to the folder `console` of the gateway's package. The gateway reads
them once at start, so a request never waits for the disk, and no path of a request reaches the file system.

The console is one page with many addresses: every path that is not a file is answered with index.html, whose script
shows the right page. Names of files in `assets/` contain a hash of their content, so browsers may keep them for ever.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.gateway.asgi.answer import Answer, Headers
from services.gateway.asgi.call import Call
from services.gateway.asgi.fixedbody import FixedBody
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.paths import nothing_at
from services.gateway.core import Core, Feature

_FOLDER: Final = Path(__file__).resolve().parents[1] / "console"
_INDEX: Final = "index.html"
_ASSETS: Final = "assets/"
_TYPES: Final = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    ".woff2": b"font/woff2",
}
# Mantine sets sizes and colours with style attributes and style elements, so styles may be inline; scripts may not.
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SAFETY: Final[Headers] = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_FOREVER: Final = (b"cache-control", b"public, max-age=31536000, immutable")
_CHECK_EACH_TIME: Final = (b"cache-control", b"no-cache")
_ABSENT: Final = (
    b"The console is not built in this installation.\n\n"
    b"In a clone of the repository, run `make console` (it needs Node.js, or gets it as a wheel) and start the gateway "
    b"again.\nThe API works without the console.\n"
)


class PageOperation(Operation):
    """An operation for browsers: links to the console carry parameters that only its script reads."""

    async def answer(self, call: Call) -> Answer:
        """Return a file of the console. Raises ProblemError (404, 429)."""
        try:
            call.gate.admit(call, self)
            call.path_label = self.path
            answer: Answer = await self.endpoint(call)
            return answer
        finally:
            call.release()


def console_feature(core: Core) -> Feature:
    """Return the routes of the console."""
    return Feature(console_routes(read_console(_FOLDER)))


def read_console(folder: Path) -> dict[str, FixedBody]:
    """Read the files that the build has written, by path; none if the console is not built."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in _TYPES]
    return {path.relative_to(folder).as_posix(): _read(path, folder) for path in paths}


def console_routes(files: Mapping[str, FixedBody]) -> list[Operation]:
    """Return the routes of the console over its files."""

    async def show(call: Call) -> Answer:
        if _INDEX not in files:
            return Answer(404, _ABSENT, [(b"content-type", _TYPES[".txt"]), _CHECK_EACH_TIME])
        path = call.path_params.get("path", "")
        found = files.get(path)
        if found is None:
            if path.startswith(_ASSETS):
                raise nothing_at(call.scope["raw_path"])
            found = files[_INDEX]
        return found.answer(call)

    return [
        PageOperation("GET", "/console", show, is_public=True),
        PageOperation("GET", "/console/{path:path}", show, is_public=True),
    ]


def _read(path: Path, folder: Path) -> FixedBody:
    zipped = path.with_name(path.name + ".gz")
    is_hashed = path.relative_to(folder).as_posix().startswith(_ASSETS)
    headers = [(b"content-type", _TYPES[path.suffix]), _FOREVER if is_hashed else _CHECK_EACH_TIME, *_SAFETY]
    return FixedBody.of(path.read_bytes(), headers, zipped=zipped.read_bytes() if zipped.is_file() else None)
