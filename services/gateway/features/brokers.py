"""`/v1/brokers`: settings of brokers, draining them, and removing old data.

Reading needs the role viewer, a change the role operator.
"""

import msgspec

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.core import Core, Feature
from services.gateway.features.actor import actor_of
from services.gateway.schemas.brokers import CleanRequest, SettingsRequest, setting_texts
from services.gateway.usecases.operations.cleaning import Cleaning
from services.gateway.usecases.operations.settings import BrokerSettings
from services.gateway.views.brokers import cleaned_view, settings_view

_clean = msgspec.json.Decoder(CleanRequest)
_change = msgspec.json.Decoder(SettingsRequest)


def broker_feature(core: Core) -> Feature:
    """Return the routes of brokers."""
    settings = BrokerSettings(core.engine, core.brokers, core.metadata)
    cleaning = Cleaning(core.engine, core.brokers, core.metadata)
    return Feature([*setting_routes(settings), *cleaning_routes(cleaning)])


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
        Operation("POST", f"{path}:drain", drain, is_empty=True),
        Operation("POST", f"{path}:undrain", undrain, is_empty=True),
    ]


def cleaning_routes(cleaning: Cleaning) -> list[Operation]:
    """Return the route of removals."""

    async def clean(call: Call) -> Answer:
        call.principal.require_operator()
        wanted: CleanRequest = await call.read_optional_json(_clean, CleanRequest())
        broker, what = call.path_params["broker"], list(dict.fromkeys(wanted.what))
        cleaned = await cleaning.clean(broker, what, dry_run=wanted.dry_run, actor=actor_of(call))
        return json_answer(cleaned_view(broker, what, cleaned, dry_run=wanted.dry_run))

    return [Operation("POST", "/v1/brokers/{broker}:clean", clean)]
