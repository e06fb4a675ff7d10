"""References in prose: links, paths and modules of the repository that a text names must exist.

Checked are Markdown files, and the comments and docstrings of Python files. Four rules:

- A relative link of Markdown leads to a file or folder, and its anchor to a heading of that file.
- A path that starts with a folder of the repository, such as services/broker/store, exists. `*` stands for any text.
- A file such as `files.py`, named without a folder, exists somewhere.
- A dotted name that starts with a package of the repository, such as gantry.runtime.files, names a module, or a word in
  the text of the module. Names that start with `spark.` are not checked, because Spark's own settings do so, too.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import PurePosixPath

from tools import prose
from tools.sources import Finding, list_files, read

FOLDERS = (
    "benchmarks", "changes", "docker", "docs", "examples", "gantry", "migrations", "openapi", "services", "spark",
    "tests", "tools", "web-console",
)  # fmt: skip
PACKAGES = ("benchmarks", "examples", "gantry", "services", "tests", "tools")
# The mark of a store, an attribute of topics, an event of ASGI, and the subprotocols of a stream.
NOT_MODULES = ("gantry.duplicate", "gantry.json", "gantry.limit", "gantry.v1")

# Texts that describe made-up repositories.
SKIPPED = ("tests/unit/tools/",)

_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?<![\w./:@%{}<>$~*-])(?:" + "|".join(FOLDERS) + r")/[\w./*-]*[\w*/]")
_MODULE = re.compile(r"(?<![\w./:@%{}<>$~*-])(?:" + "|".join(PACKAGES) + r")(?:\.[a-z_]\w*)+(?![\w/-])")
_FILE = re.compile(r"(?<![\w./:<>*{}\u2026-])[a-z_]\w*\.py\b")
_HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)
_NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")


class Tree:
    """The files of a repository and their texts."""

    def __init__(self, paths: Iterable[str], read_text: Callable[[str], str]) -> None:
        self._files = frozenset(paths)
        self._read = read_text

    @cached_property
    def _folders(self) -> frozenset[str]:
        return frozenset(str(folder) for path in self._files for folder in PurePosixPath(path).parents)

    @cached_property
    def _file_names(self) -> frozenset[str]:
        return frozenset(PurePosixPath(path).name for path in self._files)

    def has(self, path: str) -> bool:
        """Return whether a file, a folder, or something that fits a pattern exists."""
        path = path.rstrip("/")
        if "*" in path:
            return any(fnmatchcase(file, path) for file in self._files | self._folders)
        return path in self._files or path in self._folders

    def has_file(self, name: str) -> bool:
        """Return whether a file of this name exists in any folder."""
        return name in self._file_names

    def has_module(self, name: str) -> bool:
        """Return whether a dotted name leads to a module, or to a word in the text of one."""
        if name.startswith(NOT_MODULES):
            return True
        folder, *rest = name.split(".")
        while rest:
            word = rest.pop(0)
            path = f"{folder}/{word}"
            if path in self._folders:
                folder = path
                continue
            holder = f"{path}.py"
            if holder in self._files:
                return not rest or self._mentions(holder, rest[0])
            return self._mentions(f"{folder}/__init__.py", word)
        return True

    def has_anchor(self, path: str, anchor: str) -> bool:
        """Return whether a Markdown file has the heading to which an anchor leads."""
        return anchor in {anchor_of(heading[1]) for heading in _HEADING.finditer(self._read(path))}

    def _mentions(self, path: str, word: str) -> bool:
        return path in self._files and re.search(rf"\b{re.escape(word)}\b", self._read(path)) is not None


def anchor_of(heading: str) -> str:
    """Return the anchor that a web view of Markdown gives to a heading."""
    return _NOT_IN_ANCHOR.sub("", heading.lower()).replace(" ", "-")


def check_links(path: str, text: str, tree: Tree) -> Iterator[Finding]:
    """Report the relative links of a Markdown file that lead to nothing."""
    for link in _LINK.finditer(text):
        target, _, anchor = link[1].partition("#")
        if ":" in target:
            continue
        line = text.count("\n", 0, link.start()) + 1
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) if target else path
        if not tree.has(place):
            yield Finding(path, line, "dead-link", f"{link[1]}: there is no {place}")
        elif anchor and place.endswith(".md") and not tree.has_anchor(place, anchor):
            yield Finding(path, line, "dead-link", f"{link[1]}: no heading of {place} has this anchor")


def check_names(path: str, text: prose.Text, tree: Tree) -> Iterator[Finding]:
    """Report the paths, files and modules in a text that do not exist."""
    rules = (
        (_PATH, "dead-path", tree.has),
        (_FILE, "dead-path", tree.has_file),
        (_MODULE, "dead-module", tree.has_module),
    )
    for pattern, rule, exists in rules:
        for name in pattern.finditer(text.text):
            if not exists(name[0]):
                line = text.line + text.text.count("\n", 0, name.start())
                yield Finding(path, line, rule, f"{name[0]} does not exist: name the present one")


def check_text(path: str, text: str, tree: Tree) -> list[Finding]:
    """Check a Markdown or a Python file."""
    if path.startswith(SKIPPED):
        return []
    findings = list(check_names(path, prose.Text(1, text), tree))
    if path.endswith(".md"):
        return [*check_links(path, text, tree), *findings]
    if not findings:  # To find comments and docstrings takes much longer, and few files need it.
        return []
    texts = (piece for piece in prose.texts_of_python(text) if piece.is_prose)
    return [finding for piece in texts for finding in check_names(path, piece, tree)]


def check_files(paths: Iterable[str]) -> list[Finding]:
    """Check files of the repository against all of its files."""
    tree = Tree(list_files(), read)
    return [finding for path in paths for finding in check_text(path, read(path), tree)]
