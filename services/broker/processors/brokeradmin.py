"""The broker as tools see it: its settings (25, 26) and its figures (28)."""

from collections.abc import Callable, Mapping
from typing import Protocol

from gantry.model.topic import DataVersion
from gantry.remoting.aio.channel import Channel
from gantry.remoting.bodies import (
    KVTable,
    decode_properties_text,
    encode_data_version,
    encode_properties_text,
)
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import GetBrokerConfigResponseHeader
from gantry.runtime.errors import SettingsError
from services.broker.processors.refusal import RefusalError


class BlackListedError(Exception):
    """A setting may not be changed while the broker runs; its name is the message."""


class ConfigOwner(Protocol):
    """Who keeps the settings."""

    @property
    def version(self) -> DataVersion:
        """The settings' version."""
        ...

    def properties(self) -> Mapping[str, str]:
        """Return all settings under RocketMQ's names."""
        ...

    async def change(self, changes: Mapping[str, str]) -> list[str]:
        """Change settings, all or none, and keep them; return those that take effect at the next start only.

        Raises:
            BlackListedError: One of them may not be changed.
            SettingsError: One of them has a wrong value.
        """
        ...


class BrokerAdminProcessor:
    """Answers what tools ask of the broker itself."""

    def __init__(self, *, config: ConfigOwner, runtime_info: Callable[[], dict[str, str]]) -> None:
        self._config = config
        self._runtime_info = runtime_info

    async def change_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """25: change settings; unknown ones are ignored, as RocketMQ does."""
        changes = decode_properties_text(request.body_bytes)
        try:
            later = await self._config.change(changes)
        except BlackListedError as error:
            raise RefusalError(ResponseCode.NO_PERMISSION, f"Can not update config in black list. ({error})") from None
        except SettingsError as error:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        remark = f"takes effect at the next start: {', '.join(later)}" if later else None
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, remark=remark)

    def config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """26: all settings as Java properties."""
        return RemotingCommand.response_to(
            request,
            ResponseCode.SUCCESS,
            GetBrokerConfigResponseHeader(version=encode_data_version(self._config.version).decode()),
            body=encode_properties_text(self._config.properties()),
        )

    def runtime_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """28: the broker's figures."""
        return RemotingCommand.response_to(
            request, ResponseCode.SUCCESS, body=KVTable(table=self._runtime_info()).encode()
        )
