"""A real Chromium that shows pages: screen size, light or dark scheme, and the layout that its engine computes.

It speaks the DevTools protocol over the WebSocket library that Gantry already uses; Chromium is the machine's own.
"""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.sync.client import ClientConnection, connect

WAIT_S: Final = 60.0
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._last_id = 0
        self._watched: frozenset[str] = frozenset()
        self._events: list[dict[str, Any]] = []

    def open(self, html: str | Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a page, given as text or as a file, on a screen of that many pixels; return when its layout is done."""
        if isinstance(html, Path):
            html = html.read_text()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.resize(width, height)
        frame = self.call("Page.getFrameTree")["frameTree"]["frame"]["id"]
        self.call("Page.setDocumentContent", frameId=frame, html=html)
        self.evaluate("document.documentElement.getBoundingClientRect().height")

    def resize(self, width: int, height: int = 900) -> None:
        """Change the screen size while the page is open."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True, top: int = 0, height: int | None = None) -> None:
        """Write a screenshot as a PNG: the whole page, or `height` pixels of it from `top` on."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        shown = min(size["height"] - top, height or 16_000)
        clip = {"x": 0, "y": top, "width": size["width"], "height": max(1, shown), "scale": 1}
        picture = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        self._last_id += 1
        self._connection.send(json.dumps({"id": self._last_id, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._connection.recv(timeout=WAIT_S))
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            if answer.get("method") in self._watched:
                self._events.append(answer)
            if answer.get("method") == "Page.javascriptDialogOpening":
                # Until somebody answers, the browser answers no call. A test that goes to another page means it.
                agreed = {"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
                self._connection.send(json.dumps(agreed))

    def watch(self, *events: str) -> None:
        """Keep events with these names from now on, and forget those from before; their domain has to be enabled."""
        self._watched = frozenset(events)
        self._events.clear()

    def events(self) -> list[dict[str, Any]]:
        """Return the events since `watch`, in their order."""
        self.evaluate("0")  # They are read with the next answer.
        return list(self._events)

    @contextmanager
    def transfers(self) -> Iterator[dict[str, tuple[str, int]]]:
        """Load everything anew in the block; at its end, yield's value has (kind, bytes on the wire) by address."""
        found: dict[str, tuple[str, int]] = {}
        self.call("Network.enable")
        self.call("Network.setCacheDisabled", cacheDisabled=True)
        self.watch("Network.responseReceived", "Network.loadingFinished")
        yield found
        events = [event["params"] for event in self.events()]
        sizes = {each["requestId"]: int(each["encodedDataLength"]) for each in events if "encodedDataLength" in each}
        for each in events:
            if "response" in each:
                found[each["response"]["url"]] = (each["type"], sizes.get(each["requestId"], 0))
        self.watch()
        self.call("Network.setCacheDisabled", cacheDisabled=False)
        self.call("Network.disable")


def find_chromium() -> str | None:
    """Return the path of the machine's Chromium."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def chromium_page(profile: Path) -> Iterator[Page]:
    """Start a Chromium with an empty profile and yield a tab of it; skip if there is no Chromium."""
    program = find_chromium()
    if program is None:
        pytest.skip("tests of report pages in a browser need Chromium")
    command = [
        program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
        "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            port = _port(profile / "DevToolsActivePort", process)
            with connect(f"ws://127.0.0.1:{port[0]}{port[1]}", max_size=None, proxy=None) as browser:
                address = _tab(Page(browser), port[0])
                with connect(address, max_size=None, proxy=None) as tab:
                    page = Page(tab)
                    page.call("Page.enable")
                    yield page
        finally:
            process.terminate()


def _tab(browser: Page, port: int) -> str:
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    return f"ws://127.0.0.1:{port}/devtools/page/{target}"


def _port(file: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Return the port that the browser listens on; it writes the port into its profile."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        lines = file.read_text().split("\n") if file.exists() else []
        if len(lines) > 1 and lines[1]:
            return int(lines[0]), lines[1]
        time.sleep(0.02)
    raise TimeoutError("Chromium does not listen")
