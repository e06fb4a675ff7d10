"""The browser console in a tab: what a person does and sees, by the names that a screen reader reads."""

import json
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.chromium import WAIT_S, Page

AXE: Final = Path(__file__).resolve().parents[2] / "web-console" / "node_modules" / "axe-core" / "axe.min.js"
_SERIOUS: Final = ("serious", "critical")
_BREACHES: Final = (
    "window.__breaches = []; document.addEventListener('securitypolicyviolation', event => "
    "window.__breaches.push(event.violatedDirective + ' ' + event.blockedURI));"
)
# The element of a role or label with a name, visible ones only.
_FIND: Final = """
(() => {
  const name = element => (element.getAttribute('aria-label') || element.innerText || '').trim();
  const found = [...document.querySelectorAll(%s)].filter(each => each.checkVisibility() && name(each) === %s);
  return found[found.length - 1] || null;
})()
"""
_SELECTORS: Final = {"button": "button, [role=button]", "link": "a", "menuitem": "[role=menuitem]", "tab": "[role=tab]"}
_KEYS: Final = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38}


class ConsolePage:
    """A tab that shows the console. `facts` are those of stack.json."""

    def __init__(self, page: Page, facts: dict[str, str]) -> None:
        self._page = page
        self._url = facts["url"]
        self._user = facts["user"]
        self._password_file = Path(facts["password_file"])

    def enter(
        self, path: str, *, width: int = 1_280, height: int = 900, dark: bool = False, language: str = "en"
    ) -> None:
        """Open a page of the console, and log in if there is no session."""
        self._page.resize(width, height)
        # Without motion a dialog has its last colors at once: axe would judge a dialog that fades in by a grey in between.
        features = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        media = [{"name": name, "value": value} for name, value in features.items()]
        self._page.call("Emulation.setEmulatedMedia", features=media)
        self.go(path, language=language)
        self.wait_until("document.querySelector('main') !== null")
        if self.evaluate("document.querySelector('input[name=password]') !== null"):
            self.log_in()
            self.wait_until("document.querySelector('input[name=password]') === null")

    def go(self, path: str, *, language: str = "en") -> None:
        """Load an address of the console."""
        prepare = f"try {{ localStorage.setItem('gantry.language', {json.dumps(language)}) }} catch {{}} {_BREACHES}"
        script = self._page.call("Page.addScriptToEvaluateOnNewDocument", source=prepare)["identifier"]
        self._page.call("Page.navigate", url=self._url + path)
        self.wait_until("window.__breaches !== undefined && document.readyState === 'complete'")
        self._page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
        self.wait_until("document.querySelector('#root *') !== null")

    def forget(self) -> None:
        """Forget the session, as a new browser would."""
        self._page.call("Network.clearBrowserCookies")

    def log_in(self) -> None:
        """Log in as the first user."""
        self.wait_until("document.querySelector('input[name=password]') !== null")
        self.type_into("User", self._user, selector="input[name=username]")
        self.type_into("Password", self._password_file.read_text().strip(), selector="input[name=password]")
        self.press("Enter")

    def type_into(self, label: str, text: str, *, selector: str | None = None) -> None:
        """Replace the content of a field that has a label, or that a selector finds."""
        by_label = (
            "[...document.querySelectorAll('label')].filter(each => each.checkVisibility() && "
            f"each.innerText.replace('*', '').trim() === {json.dumps(label)}).at(-1)?.control ?? null"
        )
        field = by_label if selector is None else f"document.querySelector({json.dumps(selector)})"
        self._do_when_there(field, "field => { field.focus(); field.select?.(); }", what=f"field {label!r}")
        self.insert(text)
        self.wait_until(f"({field}).value === {json.dumps(text)}")

    def insert(self, text: str) -> None:
        """Type a text into whatever has the focus."""
        self._page.call("Input.insertText", text=text)

    def click(self, role: str, name: str) -> None:
        """Click on a visible element with this role and name."""
        find = _FIND % (json.dumps(_SELECTORS[role]), json.dumps(name))
        self._do_when_there(find, "element => element.click()", what=f"{role} {name!r}")

    def click_on(self, element: str) -> None:
        """Click on the element that a JavaScript expression finds."""
        self._do_when_there(element, "element => element.click()", what=element)

    def focus_on(self, element: str) -> None:
        """Give the focus to the element that a JavaScript expression finds."""
        self._do_when_there(element, "element => element.focus()", what=element)

    def _do_when_there(self, element: str, action: str, *, what: str) -> None:
        # One expression finds the element and acts on it: between two, the page could draw itself again.
        find_and_act = f"(found => found && !found.disabled && (({action})(found), true))({element})"
        self.wait_until(find_and_act, what=what)

    def press(self, key: str, *, control: bool = False) -> None:
        """Press a key on whatever has the focus."""
        code = _KEYS.get(key, ord(key.upper()[0]))
        text = {"text": "\r"} if key == "Enter" else {}
        facts = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 2 if control else 0}
        facts["code"] = key if key in _KEYS else f"Key{key.upper()}"
        self._page.call("Input.dispatchKeyEvent", type="keyDown", **facts, **text)
        self._page.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def wait_for_text(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.wait_until(f"document.body.innerText.includes({json.dumps(text)})", what=f"{text!r}")

    def wait_until(self, condition: str, *, what: str | None = None) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + WAIT_S
        while self.evaluate(f"Boolean({condition})") is not True:
            if time.monotonic() > deadline:
                shown = self.evaluate("document.body.innerText")[:2_000]
                raise AssertionError(f"waited {WAIT_S:g} s for {what or condition}; the page shows:\n{shown}")
            time.sleep(0.05)

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        return self._page.evaluate(script)

    def settle(self) -> None:
        """Wait until nothing loads any more and two frames are painted."""
        self.wait_until("document.querySelector('[role=status][aria-label]') === null")
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        self._page.screenshot(path, whole=True)

    def policy_breaches(self) -> list[str]:
        """Return what the Content-Security-Policy has blocked since the address was loaded."""
        found: list[str] = self.evaluate("window.__breaches")
        return found

    def violations(self) -> list[str]:
        """Return the serious findings of axe, with the elements."""
        if not AXE.exists():
            pytest.skip("axe needs `make console`")
        self.evaluate(AXE.read_text() + "; true")
        found = self.evaluate("axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)")
        return [
            f"{each['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
            for each in found
            if each["impact"] in _SERIOUS
            for node in each["nodes"]
        ]
