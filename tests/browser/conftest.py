"""A real Chromium for each module, and the console in it. Most modules share a stack, which each sees empty."""

from collections.abc import Iterator

import pytest

from tests.support.chromium import Page, chromium_page
from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack, session_stack, stack

__all__ = ["browser", "console", "session_stack", "stack"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium_page(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def console(browser: Page, stack: Stack) -> ConsolePage:
    return ConsolePage(browser, stack.facts["console"])
