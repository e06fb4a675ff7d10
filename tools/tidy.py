"""The house lint: rules that people would otherwise repeat in review.

Run it as `python -m tools.tidy [PATH …]`. It prints `path:line: rule: what to do` for each finding, and exits with 1 if
there is any. Each rule is a function from a parsed file to findings and has a test in tests/unit/tools. The rules of
plain English are in tools/prose.py. tools/references.py finds links and paths that lead to nothing. The rules that look
at all files together are in tools/deadcode.py.
"""

import ast
import gc
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tools import deadcode, prose, references
from tools.sources import Finding, Source, list_files, parse, read

MODULE_LINES_MAX = 400
CODEC_MODULE_LINES_MAX = 600  # A table of codes or layouts is easier to read in one piece.
FUNCTION_LINES_MAX = 70
TEST_FUNCTION_LINES_MAX = 40

CODEC_MODULES = ("gantry/remoting/", "gantry/storeformat/", "gantry/model/record.py", "services/gateway/schemas/")
NAMELESS = frozenset({"utils", "util", "common", "helpers", "helper", "misc", "base", "manager"})
RUNTIME = "gantry/runtime/"
# The command line and the first module of a service use the operating system directly.
BYPASS_FOLDERS = (RUNTIME, "gantry/cli/")
BYPASS_MODULES = ("__main__.py", "bootstrap.py")

BANNED_CALLS = {
    "time.time": "take a Clock",
    "time.time_ns": "take a Clock",
    "time.monotonic": "take a Clock",
    "time.monotonic_ns": "take a Clock",
    "time.sleep": "wait for a condition with a deadline",
    "datetime.now": "take a Clock",
    "datetime.datetime.now": "take a Clock",
    "datetime.utcnow": "take a Clock",
    "open": "take a FileSystem",
    "asyncio.create_task": "use TaskScope.spawn",
    "random.random": "take an Rng",
    "random.choice": "take an Rng",
    "random.randint": "take an Rng",
}
BANNED_MODULES = {"random": "take an Rng", "os": "take a FileSystem", "shutil": "take a FileSystem"}
REGISTRY_ADDRESS = re.compile(
    r"(files\.pythonhosted\.org|registry\.npmjs\.org|repo1?\.maven\.|pypi\.org/simple|index-url)"
)
BANNER = re.compile(r"^\s*#+\s*[-=~*_#─━]{3,}")
WORKPLACE = re.compile(r"(/root/|/home/[a-z]|/work/)")


def sizes(source: Source) -> Iterator[Finding]:
    """Report modules and functions that are too long to read at one sitting."""
    limit = CODEC_MODULE_LINES_MAX if source.path.startswith(CODEC_MODULES) or source.is_test else MODULE_LINES_MAX
    if len(source.lines) > limit:
        yield Finding(source.path, 1, "module-size", f"{len(source.lines)} lines, at most {limit}: split it by concept")
    limit = TEST_FUNCTION_LINES_MAX if source.is_test else FUNCTION_LINES_MAX
    for node in source.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > limit:
                yield Finding(
                    source.path, node.lineno, "function-size", f"{node.name}: {length} lines, at most {limit}"
                )


def names(source: Source) -> Iterator[Finding]:
    """Report module names that do not name a concept."""
    stem = Path(source.path).stem
    if stem in NAMELESS:
        yield Finding(source.path, 1, "module-name", f"`{stem}` says nothing: name the concept")


def init_modules(source: Source) -> Iterator[Finding]:
    """Report `__init__.py` files with anything but a docstring and re-exports."""
    if not source.is_shipped or Path(source.path).name != "__init__.py":
        return
    for node in source.tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        dunder = isinstance(node, ast.Assign) and all(
            isinstance(target, ast.Name) and target.id.startswith("__") for target in node.targets
        )
        if not (docstring or dunder or isinstance(node, ast.ImportFrom)):
            yield Finding(source.path, node.lineno, "init-module", "only a docstring and re-exports belong here")


def runtime_bypasses(source: Source) -> Iterator[Finding]:
    """Report time, files, randomness and tasks that do not come from gantry.runtime."""
    if not source.is_shipped or source.path.startswith(BYPASS_FOLDERS) or source.path.endswith(BYPASS_MODULES):
        return
    for node in source.nodes:
        if isinstance(node, ast.Call):
            name = _dotted(node.func)
            if name in BANNED_CALLS:
                yield Finding(source.path, node.lineno, "runtime-bypass", f"{name}: {BANNED_CALLS[name]}")
        imported = _imported(node)
        if imported in BANNED_MODULES:
            assert isinstance(node, ast.stmt)
            yield Finding(source.path, node.lineno, "runtime-bypass", f"import {imported}: {BANNED_MODULES[imported]}")


def broad_except(source: Source) -> Iterator[Finding]:
    """Report `except Exception` without the mark and reason of a process boundary."""
    if not source.is_shipped:
        return
    for node in source.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = _dotted(node.type) if node.type is not None else "everything"
        if (
            caught in {"everything", "Exception", "BaseException"}
            and "# boundary:" not in source.lines[node.lineno - 1]
        ):
            yield Finding(
                source.path, node.lineno, "broad-except", "catch what you can handle, or mark `# boundary: why`"
            )


def mocks(source: Source) -> Iterator[Finding]:
    """Report mocks. Tests use verified fakes instead."""
    for node in source.nodes:
        name = (node.module or "") if isinstance(node, ast.ImportFrom) else _imported(node)
        if name.startswith("unittest"):
            yield Finding(source.path, getattr(node, "lineno", 1), "mock", "use the real thing or a verified fake")


def text_rules(source: Source) -> Iterator[Finding]:
    """Report text that must not be in a file."""
    if source.path in {"tools/tidy.py", "tests/unit/tools/test_tidy.py"}:
        return
    for number, line in enumerate(source.lines, start=1):
        if re.search(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))", line) and "SCHEDULE_TOPIC_XXXX" not in line:
            yield Finding(source.path, number, "todo", "write TODO(#issue) or do it")
        if REGISTRY_ADDRESS.search(line):
            yield Finding(source.path, number, "registry-address", "no registry's address in the repository")
        if BANNER.match(line):
            yield Finding(source.path, number, "banner", "no banner comments: split the module if it needs chapters")
        if WORKPLACE.search(line):
            yield Finding(source.path, number, "machine-path", "no path of one machine in the repository")


RULES: tuple[Callable[[Source], Iterator[Finding]], ...] = (
    sizes,
    names,
    init_modules,
    runtime_bypasses,
    broad_except,
    mocks,
    text_rules,
)


def check(source: Source) -> list[Finding]:
    """Apply every rule to one file."""
    return [finding for rule in RULES for finding in rule(source)]


def _dotted(node: ast.expr | None) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ""


def _imported(node: ast.AST) -> str:
    if isinstance(node, ast.Import):
        return node.names[0].name
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return (node.module or "").split(".")[0] if node.module in BANNED_MODULES else ""
    return ""


def check_repository() -> list[Finding]:
    """Apply all rules to all files."""
    sources = [parse(path, read(path)) for path in list_files("*.py")]
    other_texts = [read(path) for path in list_files("pyproject.toml", "Makefile", "docker/*")]
    return [
        *(finding for source in sources for finding in check(source)),
        *deadcode.dead_modules(sources, texts=other_texts),
        *deadcode.dead_functions(sources),
        *prose.check_files({path: read(path) for path in prose.prose_files()}),
        *references.check_files(list_files("*.py", "*.md")),
    ]


def check_files(paths: Sequence[str]) -> list[Finding]:
    """Apply the rules that look at one file to the given files."""
    findings: list[Finding] = []
    for path in paths:
        if path.endswith(".py"):
            findings += check(parse(path, read(path)))
        findings += prose.check_files({path: read(path)})
    return [*findings, *references.check_files(path for path in paths if path.endswith((".py", ".md")))]


def main(arguments: list[str]) -> int:
    """Check the given files, or the whole repository."""
    gc.disable()  # The trees of all files stay until the end, and collections would look at all their nodes.
    findings = check_files(arguments) if arguments else check_repository()
    for finding in findings:
        print(finding)
    print(f"tidy: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
