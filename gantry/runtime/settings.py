"""Settings: defaults, then a TOML file, then the environment, then the command line. The result is a frozen dataclass.

The settings of a service are a frozen dataclass. All its fields have defaults. The field `flush_disk_type` of the
broker is the key `flush_disk_type` in its TOML file, and the variable `GANTRY_BROKER_FLUSH_DISK_TYPE` in the
environment. Unknown settings are rejected, so that a typing error does not silently keep a default.
"""

import dataclasses
import enum
import tomllib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from gantry.runtime.errors import SettingsError

T = TypeVar("T")

# Every process reads these variables, or the command line does, from the same shell. Every other variable belongs to one
# service.
PROCESS_WIDE = frozenset(
    {"GANTRY_DATABASE_URL", "GANTRY_DATA", "GANTRY_CONFIG", "GANTRY_FAILPOINTS", "GANTRY_URL", "GANTRY_API_KEY"}
)
SERVICES = ("namesrv", "broker", "gateway", "scheduler")
# The settings of the test suite. A service that a test starts inherits them.
TESTS_PREFIX = "GANTRY_TEST_"

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


def load_settings(
    settings_type: type[T],
    *,
    service: str,
    environment: Mapping[str, str],
    file: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> T:
    """Return the settings of a service.

    Args:
        settings_type: A frozen dataclass. The type of a field is str, int, float, bool, an Enum or a tuple of str, or
            the union of one of these and None. It may have a method `check()` that raises ValueError("field: reason").
        service: The name of the service, one of SERVICES. It gives the prefix `GANTRY_<SERVICE>_`.
        environment: The environment variables, usually os.environ.
        file: The path of a TOML file, or None.
        overrides: The settings from the command line. Values that are None are ignored.

    Raises:
        SettingsError: A key is unknown, a value can't be converted to the type of its field, or a value is out of
            range.
    """
    fields = {field.name: field for field in dataclasses.fields(settings_type)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(settings_type)
    values: dict[str, Any] = {}

    def take(name: str, value: Any, origin: str) -> None:
        if name not in fields:
            raise SettingsError(
                f"{origin}: there is no such setting of the {service}; known: {', '.join(sorted(fields))}"
            )
        values[name] = _convert(value, hints[name], origin)

    if file is not None:
        for name, value in _read_toml(file).items():
            take(name, value, f"{file}: {name}")
    prefix = f"GANTRY_{service.upper()}_"
    for key, value in environment.items():
        if key.startswith(prefix):
            take(key[len(prefix) :].lower(), value, key)
    refuse_unknown_environment(environment)
    for name, value in (overrides or {}).items():
        if value is not None:
            take(name, value, f"--{name.replace('_', '-')}")
    settings = settings_type(**values)
    check = getattr(settings, "check", None)
    if check is not None:
        try:
            check()
        except ValueError as error:
            raise SettingsError(str(error)) from None
    return settings


def refuse_unknown_environment(environment: Mapping[str, str]) -> None:
    """Raise SettingsError if a variable starts with GANTRY_ but no part of Gantry reads it."""
    prefixes = (*(f"GANTRY_{service.upper()}_" for service in SERVICES), TESTS_PREFIX)
    for key in environment:
        if key.startswith("GANTRY_") and key not in PROCESS_WIDE and not key.startswith(prefixes):
            known = ", ".join([*sorted(PROCESS_WIDE), *(prefix + "…" for prefix in prefixes)])
            raise SettingsError(f"{key}: no part of Gantry reads this environment variable; known: {known}")


def parse_value(settings_type: type, name: str, text: str) -> Any:
    """Convert the text of one setting, as for an environment variable. Used for settings that change at run time.

    Raises:
        SettingsError: The field does not exist, or the text can't be converted to its type.
    """
    hints = typing.get_type_hints(settings_type)
    if name not in hints:
        raise SettingsError(f"{name}: there is no such setting")
    return _convert(text, hints[name], name)


def _read_toml(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as source:
            return tomllib.load(source)
    except FileNotFoundError:
        raise SettingsError(f"{file}: there is no such settings file") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: can't be read as TOML: {error}") from None


def _convert(value: Any, hint: Any, origin: str) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [member for member in typing.get_args(hint) if member is not type(None)]
        assert len(inner) == 1, f"{origin}: a setting has one type, or one type and None"
        return None if value in (None, "") else _convert(value, inner[0], origin)
    if typing.get_origin(hint) is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.replace(";", ",").split(",") if part.strip()]
        if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
            return tuple(value)
        raise SettingsError(f"{origin}: {value!r} is not a list of texts")
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        if isinstance(value, hint):
            return value
        try:
            return hint(value)
        except ValueError:
            allowed = ", ".join(str(member.value) for member in hint)
            raise SettingsError(f"{origin}: {value!r} is not one of {allowed}") from None
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
        raise SettingsError(f"{origin}: {value!r} is neither true nor false")
    if hint in (int, float):
        try:
            # `int` would cut a fraction off.
            if isinstance(value, bool) or (hint is int and isinstance(value, float)):
                raise ValueError
            return hint(value)
        except (ValueError, TypeError):
            kind = "a whole number" if hint is int else "a number"
            raise SettingsError(f"{origin}: {value!r} is not {kind}") from None
    if not isinstance(value, str):
        raise SettingsError(f"{origin}: {value!r} is not a text")
    return value
