"""Every page of the console in both languages: at 1280 px no table is cut off, at 320 px nothing is."""

from collections.abc import Iterator

import pytest

from tests.browser.screenshots import LANGUAGES, PAGES, WIDTHS, fill
from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

# Parts of the page that have more content than width.
CUT = """
[...document.querySelectorAll('main, main .panel, main .panel *, [role=dialog] *')]
  .filter(each => each.clientWidth > 0 && each.scrollWidth > each.clientWidth + 1)
  .filter(each => ['auto', 'scroll', 'hidden'].includes(getComputedStyle(each).overflowX))
  .filter(each => !each.matches('input, textarea, select, pre, code, .data-head, .data-head *'))
  .filter(each => getComputedStyle(each).clipPath === 'none')
  .map(each => `${each.tagName} ${each.className} ${each.innerText.slice(0, 60)}`)
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        with running.http() as client:
            fill(client)
        yield running


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_of_a_page_is_cut_off(console: ConsolePage, width: int, language: str) -> None:
    found = {}
    for name, path in PAGES.items():
        console.enter(path, width=width, height=WIDTHS[width], language=language)
        console.wait_until("document.querySelector('main h1') !== null")
        console.settle()
        if cut := console.evaluate(CUT):
            found[name] = cut
    assert not found


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_short_text_stays_in_one_line(console: ConsolePage, language: str) -> None:
    console.enter("/access", width=320, height=700, language=language)
    console.wait_until("/^3/.test(document.querySelector('main p[role=status]')?.innerText ?? '')")
    height = "document.querySelector('main p[role=status]').getBoundingClientRect().height"
    assert console.evaluate(height) < 30
