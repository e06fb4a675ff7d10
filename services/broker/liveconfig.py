"""The settings of a running broker: shown by request 26, changed by 25, and kept for the next start.

A change of what Policy reads is in force at once; everything else is kept and waits for the next start, and the answer
says so. Kept settings lie in the store (config/gantry-settings.json), over file and environment: the store goes
where the broker goes.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from gantry.model.topic import DataVersion
from gantry.runtime.clock import Clock
from gantry.runtime.errors import SettingsError, StartupError
from gantry.runtime.settings import parse_value
from gantry.runtime.telemetry import logger
from services.broker.policy import POLICY_KEYS, Policy
from services.broker.processors.brokeradmin import BlackListedError
from services.broker.registry.configtext import ConfigText
from services.broker.registry.documents import SETTINGS_FILE, KeptSettings, settings_text
from services.broker.registry.persistence import Persistence
from services.broker.settings import BrokerSettings, camel_case, snake_case

log = logger("broker.settings")

# Where the store lies can't be said in the store; secrets' paths are for whoever starts the broker.
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


def apply_kept(settings: BrokerSettings, kept: Mapping[str, str], *, above: Collection[str]) -> BrokerSettings:
    """Lay kept settings over those of file and environment.

    Args:
        settings: What file, environment and command line gave.
        kept: Texts by name.
        above: Names that the command line gave; they stay.

    Raises:
        StartupError: A kept setting is unknown or has a wrong value.
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
    """Return the settings with some of them changed, given as texts. Raises SettingsError."""
    values: dict[str, Any] = {name: parse_value(BrokerSettings, name, text) for name, text in changes.items()}
    changed = dataclasses.replace(settings, **values)
    try:
        changed.check()
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return changed


class StartCheck(Protocol):
    """Says whether the broker would start again."""

    async def check(self, current: BrokerSettings, kept: Mapping[str, str]) -> None:
        """Raise SettingsError if the next start would refuse what would be kept."""
        ...


class LiveConfig:
    """Owns the settings while the broker runs.

    Args:
        settings: As the broker was started.
        kept: What earlier requests changed.
        policy: Follows the settings.
        persistence: Writes what is kept.
        clock: For the version.
        effective: What is shown instead of a setting that says "any" or "the usual", by RocketMQ's names.
        next_start: Knows what the next start refuses beside a wrong setting; None where there is no process.
        on_permission: Called when the broker's perm has changed.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        kept: KeptSettings,
        *,
        policy: Policy,
        persistence: Persistence,
        clock: Clock,
        effective: Mapping[str, str],
        next_start: StartCheck | None,
        on_permission: Callable[[], None],
    ) -> None:
        self._settings = self._started = settings
        self._kept = dict(kept.settings)
        self._version = kept.data_version.to_model()
        self._policy = policy
        self._persistence = persistence
        self._clock = clock
        self._effective = effective
        self._next_start = next_start
        self._on_permission = on_permission
        # Changes come one after the other: each is checked against those before it.
        self._changing = asyncio.Lock()

    @property
    def version(self) -> DataVersion:
        """The settings' version."""
        return self._version

    def properties(self) -> dict[str, str]:
        """Return all settings under RocketMQ's names."""
        shown = {
            camel_case(field.name): _text(getattr(self._settings, field.name))
            for field in dataclasses.fields(self._settings)
        }
        # What was left to the start, as it turned out.
        return {**shown, **self._effective}

    async def change(self, changes: Mapping[str, str]) -> list[str]:
        """Change settings, all or none; return those that take effect at the next start only.

        Raises:
            BlackListedError: One of them may not be changed by request.
            SettingsError: One of them has a wrong value, or one that the next start would refuse.
        """
        async with self._changing:
            return await self._change(changes)

    async def _change(self, changes: Mapping[str, str]) -> list[str]:
        black_list = _NEVER_BY_REQUEST | {name.strip() for name in self._settings.config_black_list.split(";")}
        for wire_name in changes:
            if wire_name in black_list:
                raise BlackListedError(wire_name)
        shown = self.properties()
        wanted: dict[str, str] = {}
        for wire_name, text in changes.items():
            if wire_name not in shown:
                log.info("setting is not known here", name=wire_name)
            elif shown[wire_name] != text:
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
        self._policy.follow(self._settings)
        log.info("settings changed", changes=wanted)
        self._persistence.mark(SETTINGS_FILE)
        if self._settings.broker_permission != before:
            self._on_permission()
        await self._persistence.durable(SETTINGS_FILE)
        return [camel_case(name) for name in wanted if name not in POLICY_KEYS]

    @property
    def text(self) -> ConfigText:
        """The file that keeps the changes."""
        return settings_text(lambda: self._version, lambda: self._kept)


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
