"""Setting values are converted strictly, and errors name the setting and the value."""

import enum
from dataclasses import dataclass

import pytest

from gantry.runtime.errors import SettingsError
from gantry.runtime.settings import load_settings, parse_value


class Colour(enum.StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Example:
    count: int = 1
    ratio: float = 0.5
    is_on: bool = False
    colour: Colour = Colour.RED
    hosts: tuple[str, ...] = ()
    path: str | None = None
    port: int | None = None


def from_file(tmp_path, text: str) -> Example:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    return load_settings(Example, service="broker", environment={}, file=str(file))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "-5", -5),
        ("count", "1_000", 1000),
        ("count", " 05", 5),
        ("ratio", "2", 2.0),
        ("is_on", "Yes", True),
        ("is_on", "off", False),
        ("colour", "green", Colour.GREEN),
        ("hosts", "a; b,,c", ("a", "b", "c")),
        ("path", "", None),
        ("path", "null", "null"),
        ("port", "", None),
        ("port", "7", 7),
    ],
)
def test_a_text_is_converted(name: str, text: str, value: object):
    assert parse_value(Example, name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("count", "1e3", "'1e3' is not a whole number"),
        ("count", "", "'' is not a whole number"),
        ("ratio", "half", "'half' is not a number"),
        ("is_on", "maybe", "'maybe' is neither true nor false"),
        ("colour", "RED", "'RED' is not one of red, green"),
        ("port", "null", "'null' is not a whole number"),
    ],
)
def test_an_error_names_the_setting_and_the_value(name: str, text: str, reason: str):
    with pytest.raises(SettingsError, match=f"^{name}: {reason}$"):
        parse_value(Example, name, text)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("count = 2.7", "2.7 is not a whole number"),
        ("count = 2.0", "2.0 is not a whole number"),
        ("count = true", "True is not a whole number"),
        ("path = 5", "5 is not a text"),
        ("hosts = ['a', 1]", "is not a list of texts"),
        ("is_on = 1", "1 is neither true nor false"),
    ],
)
def test_a_value_of_a_file_has_the_type_of_its_setting(tmp_path, line: str, reason: str):
    with pytest.raises(SettingsError, match=reason) as caught:
        from_file(tmp_path, line)
    assert line.split(maxsplit=1)[0] in str(caught.value)


def test_a_file_gives_values_unconverted(tmp_path):
    text = "count = 7\nratio = 2\nis_on = true\ncolour = 'green'\nhosts = ['a', 'b']\n"
    assert from_file(tmp_path, text) == Example(7, 2.0, is_on=True, colour=Colour.GREEN, hosts=("a", "b"))
