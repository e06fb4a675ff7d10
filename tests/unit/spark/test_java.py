"""The search for the Java that starts Spark: its order, and the error if there is none."""

import pytest

from gantry.runtime.errors import StartupError
from spark.java import Java, JavaNotFoundError, find_java
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock

FULL = ("java.base", "java.sql", "jdk.incubator.vector")
TRIMMED = ("java.base", "java.sql")


class Machine:
    """Java installations at given paths: the output of each."""

    def __init__(self, **javas):
        self.files = MemFileSystem(FakeClock())
        self.asked = []
        self._said = {}
        for home, (version, modules) in javas.items():
            self.add("/" + home.replace("__", "/"), version, modules)

    def add(self, home, version, modules):
        program = f"{home}/bin/java"
        self.files.make_dirs(f"{home}/bin")
        self.files.write(program, b"")
        listed = "\n".join(f"{name}@{version}.0.1" for name in modules)
        settings = f"    java.home = {home}\n    java.specification.version = {version}\n"
        self._said[program] = f"Property settings:\n{settings}\n{listed}\n"

    def ask(self, program):
        self.asked.append(program)
        if program not in self._said:
            raise FileNotFoundError(2, "No such file or directory", program)
        return self._said[program]

    def find(self, **environment):
        return find_java(environment, files=self.files, ask=self.ask)


def test_java_home_comes_first():
    machine = Machine(opt__mine=(21, FULL), usr=(17, FULL))
    assert machine.find(JAVA_HOME="/opt/mine/", PATH="/usr/bin") == Java("/opt/mine", 21)
    assert machine.asked == ["/opt/mine/bin/java"]


def test_the_build_of_java_is_read():
    machine = Machine(opt__mine=(21, FULL))
    said = machine.ask("/opt/mine/bin/java") + "    java.vm.name = HotSpot\n    java.vm.version = 21.0.1+12\n"
    assert find_java({"JAVA_HOME": "/opt/mine"}, files=machine.files, ask=lambda _: said).build == "HotSpot 21.0.1+12"


def test_then_the_path_in_its_order_skipping_unsuitable_javas():
    machine = Machine(venv=(17, TRIMMED), usr=(17, FULL), opt=(21, FULL))
    assert machine.find(PATH="/venv/bin::/usr/bin:/opt/bin") == Java("/usr", 17)


def test_then_the_oldest_suitable_installed_java():
    machine = Machine(
        usr__lib__jvm__java_25=(25, FULL), usr__lib__jvm__java_21=(21, FULL), usr__lib__jvm__java_11=(11, FULL)
    )
    assert machine.find(PATH="/bin") == Java("/usr/lib/jvm/java_21", 21)


def test_a_wrong_java_home_does_not_hide_a_suitable_java():
    machine = Machine(usr=(17, FULL))
    assert machine.find(JAVA_HOME="/gone", PATH="/usr/bin").home == "/usr"


def test_the_old_version_format_of_java_8_is_parsed():
    machine = Machine()
    machine.add("/usr", "1.8", FULL)
    with pytest.raises(JavaNotFoundError, match="/usr/bin/java is Java 8"):
        machine.find(PATH="/usr/bin")


@pytest.mark.parametrize(
    ("home", "found", "reason"),
    [
        ("/usr", (11, FULL), "/usr/bin/java is Java 11"),
        ("/usr", (17, TRIMMED), "/usr/bin/java has no module jdk.incubator.vector"),
        ("/gone", None, "/gone/bin/java doesn't run: No such file"),
    ],
)
def test_the_error_names_the_attempts_and_the_package_to_install(home, found, reason):
    machine = Machine()
    if found is not None:
        machine.add(home, *found)
    with pytest.raises(JavaNotFoundError, match=reason) as raised:
        machine.find(JAVA_HOME=home)
    assert isinstance(raised.value, StartupError)
    assert "apt-get install openjdk-17-jre-headless" in str(raised.value)


def test_no_java_at_all_and_one_without_output():
    with pytest.raises(JavaNotFoundError, match="no java was found"):
        Machine().find()
    machine = Machine(usr=(17, FULL))
    with pytest.raises(JavaNotFoundError, match="doesn't say its version"):
        find_java({"PATH": "/usr/bin"}, files=machine.files, ask=lambda program: "Segmentation fault")
