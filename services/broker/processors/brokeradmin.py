"""Requests of tools about the broker itself: its settings (25, 26) and its figures (28)."""

from collections.abc import Callable, Mapping

from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies import (
    KVTable,
    decode_properties_text,
    encode_data_version,
    encode_properties_text,
)
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import GetBrokerConfigResponseHeader
from gantry.runtime.errors import SettingsError
from services.broker.assembly import Broker
from services.broker.coldreader import ColdReader
from services.broker.liveconfig import BlackListedError, LiveConfig
from services.broker.processors.reading import reading
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError


class BrokerAdminProcessor:
    """Answers requests of tools about the broker itself."""

    def __init__(self, *, config: LiveConfig, runtime_info: Callable[[], dict[str, str]], cold: ColdReader) -> None:
        self._config = config
        self._runtime_info = runtime_info
        self._cold = cold

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.UPDATE_BROKER_CONFIG: self.change_config,
                code.GET_BROKER_CONFIG: self.config,
                code.GET_BROKER_RUNTIME_INFO: reading(self._cold, self.runtime_info),
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

    def runtime_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """28: return the figures of the broker."""
        return RemotingCommand.response_to(
            request, ResponseCode.SUCCESS, body=KVTable(table=self._runtime_info()).encode()
        )


def build(broker: Broker) -> BrokerAdminProcessor:
    """Build the processor from the broker's parts."""
    return BrokerAdminProcessor(config=broker.config, runtime_info=broker.collect_runtime_info, cold=broker.core.cold)
