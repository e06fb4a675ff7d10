"""The check of plain English finds riddles, inversions and banned words, and leaves plain sentences alone."""

import pytest

from tools import prose


def rules_of(path: str, text: str) -> list[str]:
    return [finding.rule for finding in prose.check_files({path: text})]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('"""What nobody knows is refused at start."""\n', "riddle"),
        ('"""Settings. Whoever sends them is told."""\n', "riddle"),
        ("# Who reads over HTTP is not connected.\n", "riddle"),
        ("# A queue that is long:\n# where it ends is unknown.\n# Where it ends is unknown.\n", "riddle"),
        ("class A:\n    parameters: int = 0\n    '''Of the path, decoded.'''\n", "riddle"),
        ("x = 1  # How long a read may wait.\n", "riddle"),
        ("# Runs are serial: of a job one run is active.\n", "inversion"),
        ("# The tail is cut if nothing proves itself after it.\n", "banned-words"),
        ('raise ValueError(f"{path}: can not be read; mend or remove it")\n', "banned-words"),
    ],
)
def test_a_sentence_that_breaks_a_rule_is_found(text: str, rule: str) -> None:
    assert rules_of("gantry/x.py", text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        '"""The broker rejects unknown settings at start."""\n',
        "# Which one counts? What would a client do?\n",
        "# How to run it is in the README.\n",
        "# The gateway uses the name of the group that is known.\n",
        'raise ValueError("What is this, and of a kind that is none?")\n',
        "# There are no more than three.\n",
        "x = '# What this text says is no comment.'\n",
    ],
)
def test_a_plain_sentence_is_accepted(text: str) -> None:
    assert rules_of("gantry/x.py", text) == []


def test_markdown_is_checked_without_its_code() -> None:
    text = "# Lag\n\n```\nWhat this prints is code.\n```\n\n| a | Of a job one run runs. |\n\n- Where it ends is unknown.\n"
    assert [(finding.line, finding.rule) for finding in prose.check_files({"docs/x.md": text})] == [
        (7, "riddle"),
        (9, "riddle"),
    ]


def test_a_finding_names_the_line_of_its_sentence() -> None:
    text = '"""Summary.\n\nThe first paragraph. It is\nplain.\n\nWhat comes then is not.\n"""\n'
    assert [finding.line for finding in prose.check_files({"gantry/x.py": text})] == [6]


def test_an_exception_covers_one_sentence_of_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "EXCEPTIONS", (("docs/x.md", "What is said here", "a quotation"),))
    assert rules_of("docs/x.md", "What is said here stays.\n\nWhat else is said does not.\n") == ["riddle"]
    assert rules_of("docs/y.md", "What is said here stays.\n") == ["riddle"]


def test_every_exception_gives_a_reason() -> None:
    assert all(reason for _, _, reason in prose.EXCEPTIONS)
