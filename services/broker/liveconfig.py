"""The settings of a running broker: request 26 returns them, request 25 changes them and keeps the changes.

A change to a setting of LIVE_KEYS takes effect at once. Every other change is kept and takes effect at the next start, and
the reply says so. Kept settings lie in the store (config/gantry-settings.json), because the store moves with the
broker. They override the settings file and the environment.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from gantry.model.topic import DataVersion
from gantry.remoting.settingnames import camel_case, snake_case
from gantry.runtime.clock import Clock
from gantry.runtime.errors import SettingsError, StartupError
from gantry.runtime.settings import parse_value
from gantry.runtime.telemetry import logger
from services.broker.registry.configtext import ConfigText
from services.broker.registry.documents import SETTINGS_FILE, KeptSettings, settings_text
from services.broker.registry.persistence import Persistence
from services.broker.settings import LIVE_KEYS, BrokerSettings, LiveSettings

log = logger("broker.settings")

# A setting in the store can't say where the store is. The TLS paths are the choice of the person who starts the broker.
_NEVER_BY_REQUEST = frozenset(
    {
        "storePathRootDir",
        "rocketmqHome",
        "configBlackList",
        "brokerConfigPath",
        "tlsServerCertPath",
        "tlsServerKeyPath",
        "tlsServerTrustCertPath",
    }
)


class BlackListedError(Exception):
    """A setting may not be changed while the broker runs. The message is the name of the setting."""


def apply_kept(settings: BrokerSettings, kept: Mapping[str, str], *, above: Collection[str]) -> BrokerSettings:
    """Return the settings with the kept settings laid over those of file and environment.

    Args:
        settings: Settings from the file, the environment and the command line.
        kept: Texts of the kept settings, by name.
        above: Names of the settings that the command line gave; these keep their value.

    Raises:
        StartupError: A kept setting is unknown or has an invalid value.
    """
    try:
        changed = changed_settings(settings, {name: text for name, text in kept.items() if name not in above})
    except SettingsError as error:
        raise StartupError(
            f"config/{SETTINGS_FILE} in the store: {error}. The file holds what was set while the broker ran (request 25, "
            "mqadmin updateBrokerConfig). Correct the value there, or remove the file to start without these settings"
        ) from None
    return changed


def changed_settings(settings: BrokerSettings, changes: Mapping[str, str]) -> BrokerSettings:
    """Return a copy of the settings with these changes, given as texts. Raises SettingsError."""
    values: dict[str, Any] = {name: parse_value(BrokerSettings, name, text) for name, text in changes.items()}
    changed = dataclasses.replace(settings, **values)
    try:
        changed.check()
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return changed


class NotLiveError(Exception):
    """A setting takes effect only at the next start. The message is the name of the setting."""


class DifferentValuesError(Exception):
    """Settings do not have the values that the caller expects.

    Attributes:
        actual: Values of these settings, by snake_case name.
    """

    def __init__(self, actual: Mapping[str, str]) -> None:
        super().__init__(", ".join(f"{name}={value}" for name, value in actual.items()))
        self.actual = actual


class StartCheck(Protocol):
    """Checks whether the broker could start again."""

    async def check(self, current: BrokerSettings, kept: Mapping[str, str]) -> None:
        """Raise SettingsError if the next start would reject these kept settings."""
        ...


class LiveConfig:
    """The settings of a running broker.

    Args:
        settings: Settings with which the broker was started.
        kept: Settings that earlier requests changed.
        live_settings: Settings in force, which follow every change.
        persistence: Writer of the kept settings.
        clock: Clock that dates the version.
        effective: Actual values of settings that say "any" or "the usual", under RocketMQ's names.
        next_start: Check of everything that can make the next start fail; None if there is no process.
        on_permission: Callback after a change of the broker's perm.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        kept: KeptSettings,
        *,
        live_settings: LiveSettings,
        persistence: Persistence,
        clock: Clock,
        effective: Mapping[str, str],
        next_start: StartCheck | None,
        on_permission: Callable[[], None],
    ) -> None:
        self._settings = self._started = settings
        self._kept = dict(kept.settings)
        self._version = kept.data_version.to_model()
        self._live_settings = live_settings
        self._persistence = persistence
        self._clock = clock
        self._effective = effective
        self._next_start = next_start
        self._on_permission = on_permission
        # Changes run one after the other: each one is checked together with the changes before it.
        self._changing = asyncio.Lock()

    @property
    def version(self) -> DataVersion:
        """The version of the settings."""
        return self._version

    def properties(self) -> dict[str, str]:
        """Return all settings under RocketMQ's names."""
        return {camel_case(name): text for name, text in self.texts().items()}

    def texts(self) -> dict[str, str]:
        """Return the value of each setting as a text, by its snake_case name."""
        current = {
            field.name: setting_text(getattr(self._settings, field.name))
            for field in dataclasses.fields(self._settings)
        }
        # Settings that say "any" or "the usual" show the value that the start chose.
        return {**current, **{snake_case(name): text for name, text in self._effective.items()}}

    @property
    def changed_names(self) -> Collection[str]:
        """The snake_case names of the settings that requests have changed."""
        return self._kept.keys()

    async def change(self, changes: Mapping[str, str]) -> list[str]:
        """Change settings, all or none, and return the names of those that take effect only at the next start.

        Raises:
            BlackListedError: A request may not change one of these settings.
            SettingsError: A value is invalid, or the next start would reject it.
        """
        async with self._changing:
            return await self._change(changes)

    async def change_live(self, changes: Mapping[str, str], expected: Mapping[str, str]) -> None:
        """Change settings that take effect at once, all or none, if others have the expected values.

        Args:
            changes: New values by snake_case name.
            expected: Values that the caller has seen, by snake_case name.

        Raises:
            BlackListedError, SettingsError: As `change`; a setting that does not exist is a SettingsError, too.
            NotLiveError: A setting takes effect only at the next start.
            DifferentValuesError: A setting does not have the expected value.
        """
        async with self._changing:
            current = self.texts()
            for name in (*changes, *expected):
                if name not in current:
                    raise SettingsError(f"{name}: there is no such setting")
            for name in changes:
                if name not in LIVE_KEYS:
                    raise NotLiveError(name)
            actual = {name: current[name] for name, value in expected.items() if current[name] != value}
            if actual:
                raise DifferentValuesError(actual)
            await self._change({camel_case(name): text for name, text in changes.items()})

    async def _change(self, changes: Mapping[str, str]) -> list[str]:
        black_list = _NEVER_BY_REQUEST | {name.strip() for name in self._settings.config_black_list.split(";")}
        for wire_name in changes:
            if wire_name in black_list:
                raise BlackListedError(wire_name)
        current = self.properties()
        wanted: dict[str, str] = {}
        for wire_name, text in changes.items():
            if wire_name not in current:
                log.info("setting is not known here", name=wire_name)
            elif current[wire_name] != text:
                wanted[snake_case(wire_name)] = text
        if not wanted:
            return []
        before = self._settings.broker_permission
        changed = changed_settings(self._settings, wanted)
        if self._next_start is not None:
            await self._next_start.check(self._started, self._kept | wanted)
        self._settings = changed
        self._kept |= wanted
        self._version = self._version.next(self._clock.now_ms())
        self._live_settings.follow(self._settings)
        log.info("settings changed", changes=wanted)
        self._persistence.mark(SETTINGS_FILE)
        if self._settings.broker_permission != before:
            self._on_permission()
        await self._persistence.durable(SETTINGS_FILE)
        return [camel_case(name) for name in wanted if name not in LIVE_KEYS]

    @property
    def text(self) -> ConfigText:
        """The config file that keeps the changes."""
        return settings_text(lambda: self._version, lambda: self._kept)


def setting_text(value: object) -> str:
    """Return a value of a setting as a text."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
