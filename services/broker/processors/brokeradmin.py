"""Requests of tools about the broker itself: its settings (25, 26, 900030, 900031) and its figures (28).

The reply to a change of brokerPermission comes when the name servers know the new permissions of the topics, or their
time is up. So the routes that a tool's next request gets are up to date.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping

from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies import (
    KVTable,
    decode_properties_text,
    encode_data_version,
    encode_properties_text,
)
from gantry.remoting.bodies.brokersettings import (
    SETTINGS_MAX,
    BrokerSetting,
    BrokerSettingsBody,
    SettingDifference,
    SettingsChange,
    SettingsChanged,
)
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import GetBrokerConfigResponseHeader
from gantry.remoting.settingnames import snake_case
from gantry.runtime.errors import SettingsError
from services.broker.assembly import Broker
from services.broker.coldreader import ColdReader
from services.broker.liveconfig import (
    BlackListedError,
    DifferentValuesError,
    LiveConfig,
    NotLiveError,
    setting_text,
)
from services.broker.processors.reading import reading
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.settings import LIVE_KEYS, BrokerSettings

_PERMISSION = "brokerPermission"
_DEFAULTS = {field.name: setting_text(field.default) for field in dataclasses.fields(BrokerSettings)}


class BrokerAdminProcessor:
    """Answers requests of tools about the broker itself."""

    def __init__(
        self,
        *,
        config: LiveConfig,
        runtime_info: Callable[[], dict[str, str]],
        cold: ColdReader,
        wait_until_announced: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._runtime_info = runtime_info
        self._cold = cold
        self._wait_until_announced = wait_until_announced

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.UPDATE_BROKER_CONFIG: self.change_config,
                code.GET_BROKER_CONFIG: self.config,
                code.GET_BROKER_RUNTIME_INFO: reading(self._cold, self.runtime_info),
                code.GANTRY_SETTINGS: self.settings,
                code.GANTRY_CHANGE_SETTINGS: self.change_settings,
            }
        )

    async def change_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """25: change settings. Unknown settings are ignored, as in RocketMQ."""
        changes = decode_properties_text(request.body_bytes)
        try:
            deferred = await self._config.change(changes)
        except BlackListedError as error:
            raise RefusalError(ResponseCode.NO_PERMISSION, f"Can not update config in black list. ({error})") from None
        except SettingsError as error:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if _PERMISSION in changes:
            await self._wait_until_announced()
        remark = f"takes effect at the next start: {', '.join(deferred)}" if deferred else None
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, remark=remark)

    def config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """26: return all settings as Java properties."""
        return RemotingCommand.response_to(
            request,
            ResponseCode.SUCCESS,
            GetBrokerConfigResponseHeader(version=encode_data_version(self._config.version).decode()),
            body=encode_properties_text(self._config.properties()),
        )

    def settings(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900030: return all settings with their defaults (docs/formats/remoting.md)."""
        changed = self._config.changed_names
        settings = [
            BrokerSetting(
                name=name,
                value=value,
                default_value=_DEFAULTS[name],
                is_live=name in LIVE_KEYS,
                is_changed=name in changed,
            )
            for name, value in self._config.texts().items()
        ]
        body = BrokerSettingsBody(settings=settings, version=self._config.version.counter).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    async def change_settings(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900031: change settings that take effect at once, if they have the values that the caller expects."""
        wanted = SettingsChange.decode(request.body_bytes)
        if not 1 <= len(wanted.settings) <= SETTINGS_MAX:
            raise _invalid("settings", f"has {len(wanted.settings)} members, which is not within 1 and {SETTINGS_MAX}")
        try:
            await self._config.change_live(wanted.settings, wanted.expected)
        except BlackListedError as error:
            name = snake_case(str(error))
            raise RefusalError(ResponseCode.NO_PERMISSION, f"{name}: may not be changed by a request") from None
        except NotLiveError as error:
            raise _invalid(str(error), "takes effect only at the next start; change it in the settings file") from None
        except SettingsError as error:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        except DifferentValuesError as error:
            differences = [
                SettingDifference(name=name, expected=wanted.expected[name], actual=actual)
                for name, actual in error.actual.items()
            ]
            body = SettingsChanged(differences=differences).encode()
            return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)
        if snake_case(_PERMISSION) in wanted.settings:
            await self._wait_until_announced()
        body = SettingsChanged(differences=[]).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def runtime_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """28: return the figures of the broker."""
        return RemotingCommand.response_to(
            request, ResponseCode.SUCCESS, body=KVTable(table=self._runtime_info()).encode()
        )


def _invalid(field: str, reason: str) -> RefusalError:
    return RefusalError(ResponseCode.INVALID_PARAMETER, f"{field}: {reason}")


def build(broker: Broker) -> BrokerAdminProcessor:
    """Build the processor from the broker's parts."""
    return BrokerAdminProcessor(
        config=broker.config,
        runtime_info=broker.collect_runtime_info,
        cold=broker.core.cold,
        wait_until_announced=broker.wait_until_topics_announced,
    )
