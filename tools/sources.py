"""Files as the house lint sees them: parsed sources, and findings."""

import ast
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("gantry/", "services/", "spark/")


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation of a rule."""

    path: str
    line: int
    rule: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.advice}"


@dataclass(frozen=True)
class Source:
    """A Python file, read and parsed; `path` is relative to the repository."""

    path: str
    text: str
    tree: ast.Module

    @cached_property
    def lines(self) -> list[str]:
        """The file's lines."""
        return self.text.splitlines()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, a parent before its children. Several rules look at all of them."""
        return list(ast.walk(self.tree))

    @property
    def is_test(self) -> bool:
        """Whether the file is part of the tests."""
        return self.path.startswith("tests/")

    @property
    def is_shipped(self) -> bool:
        """Whether the file is part of the product."""
        return self.path.startswith(SHIPPED)


def parse(path: str, text: str) -> Source:
    """Return the parsed source of a file."""
    return Source(path, text, ast.parse(text, filename=path))


def list_files(*patterns: str) -> list[str]:
    """Return the files that match the patterns of git: those that git tracks, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted(path for path in set(listed.stdout.split()) if (ROOT / path).exists())


def read(path: str) -> str:
    """Return the text of a file of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")
