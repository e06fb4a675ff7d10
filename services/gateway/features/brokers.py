"""`/v1/brokers`: settings of brokers, and draining them. Reading needs the role viewer, changes the role operator."""

import msgspec

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.core import Core, Feature
from services.gateway.features.actor import actor_of
from services.gateway.schemas.brokers import SettingsRequest, setting_texts
from services.gateway.usecases.operations.settings import BrokerSettings
from services.gateway.views.brokers import settings_view

_change = msgspec.json.Decoder(SettingsRequest)


def broker_feature(core: Core) -> Feature:
    """Return the routes of brokers."""
    return Feature(setting_routes(BrokerSettings(core.engine, core.brokers, core.metadata)))


def setting_routes(settings: BrokerSettings) -> list[Operation]:
    """Return the routes of settings and drains."""

    async def show(call: Call) -> Answer:
        call.principal.require_viewer()
        broker = call.path_params["broker"]
        return json_answer(settings_view(broker, await settings.read(broker)))

    async def change(call: Call) -> Answer:
        call.principal.require_operator()
        broker = call.path_params["broker"]
        wanted: SettingsRequest = await call.read_json(_change)
        changed = await settings.change(
            broker, setting_texts(wanted.settings), setting_texts(wanted.expected), actor_of(call)
        )
        return json_answer(settings_view(broker, changed))

    async def drain(call: Call) -> Answer:
        return await _set_drained(call, drained=True)

    async def undrain(call: Call) -> Answer:
        return await _set_drained(call, drained=False)

    async def _set_drained(call: Call, *, drained: bool) -> Answer:
        call.principal.require_operator()
        broker = call.path_params["broker"]
        changed = await settings.set_drained(broker, drained=drained, actor=actor_of(call))
        return json_answer({"broker": broker, "drained": drained, "changed": changed})

    path = "/v1/brokers/{broker}"
    return [
        Operation("GET", f"{path}/settings", show),
        Operation("PUT", f"{path}/settings", change),
        Operation("POST", f"{path}:drain", drain),
        Operation("POST", f"{path}:undrain", undrain),
    ]
