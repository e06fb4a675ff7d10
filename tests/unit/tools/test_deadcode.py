"""The search for dead code finds exactly the modules and functions that nothing uses."""

from tools import deadcode
from tools.sources import parse


def dead_modules(files: dict[str, str], *, texts: tuple[str, ...] = ()) -> list[str]:
    sources = [parse(path, text) for path, text in files.items()]
    return [finding.path for finding in deadcode.dead_modules(sources, texts=texts)]


def dead_functions(files: dict[str, str]) -> list[str]:
    sources = [parse(path, text) for path, text in files.items()]
    return [finding.advice.partition(":")[0] for finding in deadcode.dead_functions(sources)]


def test_a_module_that_only_tests_import_is_dead() -> None:
    test = "from gantry.model import offsets\nfrom gantry.model.topic import Topic\n"
    files = {"gantry/model/offsets.py": "", "gantry/model/topic.py": "", "tests/unit/test_offsets.py": test}
    assert dead_modules({**files, "services/x/__main__.py": "import gantry.model.topic\n"}) == [
        "gantry/model/offsets.py"
    ]


def test_a_module_is_alive_by_import_by_name_and_as_a_program() -> None:
    files = {
        "gantry/__init__.py": "",
        "gantry/cli/main.py": "",
        "gantry/model/topic.py": "",
        "services/gateway/app.py": "",
        "services/gateway/__main__.py": "from gantry.model import topic\nAPP = 'services.gateway.app:create_app'\n",
        "tools/contract.py": 'if __name__ == "__main__":\n    pass\n',
    }
    assert dead_modules(files, texts=('[project.scripts]\ngantry = "gantry.cli.main:main"\n',)) == []


def test_a_module_does_not_keep_itself_alive() -> None:
    assert dead_modules({"gantry/x.py": "NAME = 'gantry.x'\n"}) == ["gantry/x.py"]


def test_a_name_that_occurs_only_in_its_definition_is_dead() -> None:
    text = '''"""No use of `unused_function`."""
def unused_function(): ...
class UnusedClass: ...
class Used:
    @property
    def unused_property(self): ...
    def used_method(self): ...
Used().used_method()
'''
    assert dead_functions({"gantry/x.py": text, "gantry/__init__.py": "from gantry.x import unused_function\n"}) == [
        "unused_function",
        "UnusedClass",
        "unused_property",
    ]


def test_tests_texts_base_classes_and_decorators_keep_a_name_alive() -> None:
    text = """
import asyncio
class Protocol(asyncio.Protocol):
    def data_received(self, data): ...
Protocol()
@app.command()
def registered(): ...
def tested(): ...
def looked_up(): ...
getattr(module, "looked_up")
"""
    test = "from gantry.x import tested\ntested()\n"
    assert dead_functions({"gantry/x.py": text, "tests/unit/test_x.py": test}) == []
