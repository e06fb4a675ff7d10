"""Plain English, as far as a program can check it: how sentences open, and words that we do not use.

Checked are comments, docstrings and the texts of attributes in Python files, and the prose of Markdown files. Code in
Markdown is left out. Three rules:

- A sentence opens with its subject or with a plain phrase, not with a question word that stands for the subject ("What
  nobody knows is refused"). Questions, which end with a question mark, may open with one.
- A clause does not open with "of" and continue with its verb ("Of a job one run runs at a time").
- The words of BANNED do not occur. Texts of the program, such as its error messages, are checked for these, too.

`python -m tools.prose [PATH …]` checks files or folders; without arguments it checks everything.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tools.sources import Finding, list_files, read

OPENINGS = re.compile(
    r"(What|Who|Whoever|Whom|Whose|Whatever|Whichever|Of|Where|How|Nobody|Somebody|Everybody|That which)\b(?! to\b)"
)
INVERSION = re.compile(
    r"of (?:an?|the|each|every|all|both|two|one|those|these|its|what|any)(?: (?!that |who |which |whose |where )\S+){1,4} (?:is|are|has)\b"
)
BANNED = {
    r"mend(?:s|ed|ing)?": "correct, repair or fix",
    r"gone over": "checked, read or scanned",
    r"proves? (?:itself|themselves)": "is valid, passes its check",
    r"nothing certain": "unknown",
    r"(?:is|are) no more(?! than)": "no longer exists",
    r"leaves? (?:it )?to chance": "is not determined",
    r"did not go": "failed",
    r"(?:with)?out of the way of": "name the effect",
    r"nobody says": "name what is missing",
    r"hopeless": "permanent",
    r"of (?:its|their) own accord": "without a request",
}
_BANNED = re.compile(r"\b(?:" + "|".join(f"({words})" for words in BANNED) + r")\b", re.IGNORECASE)
_ADVICE = list(BANNED.values())

# Sentences that may stay: the file, the beginning of the sentence, the reason.
EXCEPTIONS: tuple[tuple[str, str, str], ...] = ()

SENTENCE_LENGTH_MIN = 12
_END = re.compile(r"(?<=[.!?:;])[)\"']?\s+|\n\s*\n|\n\s*(?:[-*|>]|\d+\.)\s|\|")
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.DOTALL | re.MULTILINE)
_MARKS = "*-| >`#_[(\"'"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose and the line on which it starts."""

    line: int
    text: str
    is_prose: bool = True
    """False for a text of the program, such as an error message: only BANNED counts there."""


def texts_of_python(source: str) -> Iterator[Text]:
    """Yield comments, docstrings and other texts of a Python file."""
    yield from _comments(source)
    prose: set[int] = set()
    # A walk comes to the statement before it comes to the text in it.
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Text(node.lineno, node.value, is_prose=id(node) in prose)


def _comments(source: str) -> Iterator[Text]:
    """Yield comments. Lines of comment that follow each other, with the same indentation, are one text."""
    first, last, column = 0, 0, 0
    lines: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, indent = token.start
        if lines and (row, indent) != (last + 1, column):
            yield Text(first, "\n".join(lines))
            lines = []
        if not lines:
            first, column = row, indent
        last = row
        lines.append(token.string.lstrip("#: "))
    if lines:
        yield Text(first, "\n".join(lines))


def texts_of_markdown(source: str) -> Iterator[Text]:
    """Yield the prose of a Markdown file as one text; code blocks become empty lines."""
    yield Text(1, _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), source))


def sentences(text: Text) -> Iterator[tuple[int, str, str]]:
    """Yield the sentences of a text: the line, the character before the sentence, and the sentence on one line.

    A colon and a semicolon end a sentence, too. So do an empty line, an item of a list and a cell of a table.
    """
    begin = 0
    for end in (*_END.finditer(text.text), None):
        piece = text.text[begin : end.start() if end else None]
        sentence = " ".join(piece.split()).lstrip(_MARKS).rstrip("*_|")
        if len(sentence) >= SENTENCE_LENGTH_MIN:
            blank = len(piece) - len(piece.lstrip())
            yield text.line + text.text.count("\n", 0, begin + blank), text.text[:begin].rstrip()[-1:], sentence
        if end:
            begin = end.end()


def check_text(path: str, text: Text) -> Iterator[Finding]:
    """Report the sentences of a text that break a rule."""
    for line, before, sentence in sentences(text):
        if any(path == place and sentence.startswith(opening) for place, opening, _ in EXCEPTIONS):
            continue
        quoted = f"“{sentence[:60]}…”" if len(sentence) > 60 else f"“{sentence}”"
        if text.is_prose:
            opening = OPENINGS.match(sentence)
            if opening is not None and not sentence.endswith("?"):
                yield Finding(path, line, "riddle", f"{quoted}: open with the subject, not with “{opening[0]}”")
            elif before in {":", ";"} and INVERSION.match(sentence):
                yield Finding(path, line, "inversion", f"{quoted}: put the subject before the verb")
        for banned in _BANNED.finditer(sentence):
            assert banned.lastindex is not None
            yield Finding(path, line, "banned-words", f"“{banned[0]}”: {_ADVICE[banned.lastindex - 1]}")


def check_files(texts: Mapping[str, str]) -> list[Finding]:
    """Check files, given as texts by path."""
    return [
        finding
        for path, source in texts.items()
        for text in (texts_of_python(source) if path.endswith(".py") else texts_of_markdown(source))
        for finding in check_text(path, text)
    ]


def prose_files() -> list[str]:
    """Return the files of the repository that hold prose. The check's own words are no prose."""
    return [
        path for path in list_files("*.py", "*.md") if path not in {"tools/prose.py", "tests/unit/tools/test_prose.py"}
    ]


def main(arguments: list[str]) -> int:
    """Check files and folders; without arguments, all files."""
    chosen = tuple(arguments)
    paths = [path for path in prose_files() if not chosen or path in chosen or path.startswith(chosen)]
    findings = check_files({path: read(path) for path in paths})
    for finding in findings:
        print(finding)
    print(f"prose: {len(paths)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
