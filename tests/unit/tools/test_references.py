"""The check of references finds links, paths and modules that do not exist."""

import pytest

from tools import references

FILES = {
    "docs/lag.md": "# Lag\n\n## What `lag` costs\n",
    "docs/internals/store.md": "",
    "gantry/__init__.py": "",
    "gantry/runtime/__init__.py": "from gantry.runtime.files import File\n",
    "gantry/runtime/files.py": "def read_all(): ...\n",
    "services/broker/core.py": "",
}
TREE = references.Tree(FILES, FILES.__getitem__)


def rules_of(path: str, text: str) -> list[str]:
    return [finding.rule for finding in references.check_text(path, text, TREE)]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("See [lag](lags.md).", "dead-link"),
        ("See [lag](../lag.md).", "dead-link"),
        ("See [costs](lag.md#costs).", "dead-link"),
        ("See [above](#above).", "dead-link"),
        ("The code is in services/broker/store.", "dead-path"),
        ("The code is in `gantry/runtime/file.py`.", "dead-path"),
        ("The code is in `gantry/runtime/x*.py`.", "dead-path"),
        ("The code is in `oddfiles.py`.", "dead-path"),
        ("`gantry.clock` has the time.", "dead-module"),
        ("`gantry.runtime.files.read_some` reads.", "dead-module"),
        ("`gantry.runtime.opened` reads.", "dead-module"),
    ],
)
def test_a_reference_to_something_that_does_not_exist_is_found(text: str, rule: str) -> None:
    assert rules_of("docs/page.md", text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "See [lag](lag.md), [costs](lag.md#what-lag-costs), [folder](internals/), [web](https://example.org/docs/x).",
        "The code is in services/broker, `gantry/runtime/files.py`, `gantry/*/files.py` and `files.py`.",
        "`gantry.runtime`, `gantry.runtime.files.read_all` and gantry.runtime.File read.",
        "A run is `services.NAME`; a store has `config/gantry.json`, and Spark has `spark.driver.memory`.",
        "A store has the folder other/docs/x, and a run the file NAME.py.",
    ],
)
def test_a_reference_that_leads_somewhere_is_left_alone(text: str) -> None:
    assert rules_of("docs/page.md", text) == []


def test_comments_and_docstrings_are_checked_but_no_other_texts() -> None:
    source = '"""See docs/lags.md."""\n\nPAGE = "docs/lags.md"  # docs/lag.md\n\n# See docs/speed.md.\n'
    findings = references.check_text("gantry/runtime/files.py", source, TREE)
    assert sorted((finding.line, finding.rule) for finding in findings) == [(1, "dead-path"), (5, "dead-path")]


def test_a_finding_names_the_line_and_the_reference() -> None:
    [finding] = references.check_text("docs/page.md", "# Page\n\nSee\n`services/broker/old.py`.\n", TREE)
    assert str(finding).startswith("docs/page.md:4: dead-path: services/broker/old.py ")
