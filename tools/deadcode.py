"""Finds modules that only tests import, and functions and classes whose name occurs nowhere else.

A module is alive if a module that is no test imports it, if it can be started (`__main__.py`, or a block
`if __name__ == "__main__"`), or if a text of the sources, of pyproject.toml or of docker/ names it in full (such as
`services.gateway.app:create_app`). Spark jobs and child processes are started by such names.

A function or a class is dead if its name occurs nowhere else: in no code, no test and no text. Methods of classes with a
base class are left out, because the base class may call them. The search goes by name alone, so it misses a dead
function that shares its name with a live one, but it reports nothing that is in use.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from tools.sources import Finding, Source

# Modules that nothing imports yet, each with the reason why it stays.
MODULES_KEPT: dict[str, str] = {}
CHECKED = ("gantry/", "services/", "spark/", "benchmarks/", "examples/", "tools/")
# Names that a framework looks up: httptools calls the methods of the parser's protocol, and a class needs no base for it.
CALLED_BY_FRAMEWORKS = frozenset(
    {"on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete"}
)
# Decorators that do not hand the function to anybody who may call it.
PLAIN_DECORATORS = frozenset(
    {"property", "cached_property", "staticmethod", "classmethod", "dataclass", "final", "cache", "contextmanager"}
)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"[\w.]+(:\w+)?")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")


def dead_modules(sources: Iterable[Source], *, texts: Iterable[str] = ()) -> Iterator[Finding]:
    """Report modules that nothing but tests uses.

    Args:
        sources: All Python files of the repository.
        texts: Contents of other files that may name a module, such as pyproject.toml.
    """
    sources = list(sources)
    used: set[str] = set()
    for source in sources:
        if not source.is_test:
            used |= _modules_named(source) - {module_name(source.path)}
    for text in texts:
        used.update(_DOTTED.findall(text))
    for source in sources:
        module = module_name(source.path)
        if (
            source.path.startswith(CHECKED)
            and module not in used
            and module not in MODULES_KEPT
            and not _is_started(source)
        ):
            yield Finding(source.path, 1, "dead-module", "nothing but tests imports it: use it or remove it")


def dead_functions(sources: Iterable[Source]) -> Iterator[Finding]:
    """Report functions and classes whose name occurs only in their own definition."""
    sources = list(sources)
    used: set[str] = set()
    for source in sources:
        used.update(_names_used(source))
    for source in sources:
        if not source.path.startswith(CHECKED):
            continue
        for definition in _definitions(source.tree):
            name = definition.name
            if name not in used and name not in CALLED_BY_FRAMEWORKS and not name.startswith("__"):
                yield Finding(source.path, definition.lineno, "dead-function", f"{name}: nothing calls it: remove it")


def module_name(path: str) -> str:
    """Return the dotted name of the module in the file `path`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_started(source: Source) -> bool:
    return PurePosixPath(source.path).name in {"__init__.py", "__main__.py"} or '__name__ == "__main__"' in source.text


def _modules_named(source: Source) -> set[str]:
    """Return the dotted names that a file imports, or that one of its texts consists of."""
    names: set[str] = set()
    for node in source.nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
            names.add(node.value.partition(":")[0])
    return names


def _names_used(source: Source) -> Iterator[str]:
    """Yield the names that a file uses. A re-export in `__init__.py` is no use."""
    if PurePosixPath(source.path).name == "__init__.py":
        return
    for node in source.nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
            yield from _WORD.findall(node.value)


def _definitions(tree: ast.Module) -> Iterator[Definition]:
    """Yield the functions, classes and methods that no decorator registers and no base class calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module) or (isinstance(node, ast.ClassDef) and not node.bases):
            for member in node.body:
                if isinstance(member, Definition) and all(map(_is_plain, member.decorator_list)):
                    yield member


def _is_plain(decorator: ast.expr) -> bool:
    name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return name.rpartition(".")[2] in PLAIN_DECORATORS
