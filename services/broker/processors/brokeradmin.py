"""Requests of tools about the broker itself: its settings (25, 26) and its figures (28)."""

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
    """A setting may not be changed while the broker runs. The message is the name of the setting."""


class ConfigOwner(Protocol):
    """The owner of the settings."""

    @property
    def version(self) -> DataVersion:
        """The version of the settings."""
        ...

    def properties(self) -> Mapping[str, str]:
        """Return all settings under RocketMQ's names."""
        ...

    async def change(self, changes: Mapping[str, str]) -> list[str]:
        """Change settings, all or none, and keep them. Return those that take effect only at the next start.

        Raises:
            BlackListedError: A request may not change one of these settings.
            SettingsError: One of these settings has an invalid value.
        """
        ...


class BrokerAdminProcessor:
    """Answers requests of tools about the broker itself."""

    def __init__(self, *, config: ConfigOwner, runtime_info: Callable[[], dict[str, str]]) -> None:
        self._config = config
        self._runtime_info = runtime_info

    async def change_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """25: change settings. Unknown settings are ignored, as in RocketMQ."""
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
        """26: return all settings as Java properties."""
        return RemotingCommand.response_to(
            request,
            ResponseCode.SUCCESS,
            GetBrokerConfigResponseHeader(version=encode_data_version(self._config.version).decode()),
            body=encode_properties_text(self._config.properties()),
        )

    def runtime_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """28: return the figures of the broker."""
        return RemotingCommand.response_to(
            request, ResponseCode.SUCCESS, body=KVTable(table=self._runtime_info()).encode()
        )
