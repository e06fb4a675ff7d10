"""The wheel contains the packages that users run, and nothing else of the repository."""

import tomllib

from tools.sources import ROOT
from tools.wheel_smoke import SHIPPED


def test_the_wheel_contains_the_packages_that_users_run() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == SHIPPED
