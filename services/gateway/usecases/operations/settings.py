"""The settings of a running broker: reading, changing what takes effect at once, and draining.

The broker compares the values that a caller expects with its own and changes all settings of a request or none
(requests 900030 and 900031). So two operators who change a setting at the same time don't overwrite each other. Every
change is recorded in the audit trail before the broker is asked.

A drain removes the permission to write from brokerPermission. The broker refuses messages then, and announces its topics
without that permission, so that clients send to other brokers. Consumers go on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gantry.client.answers import read_body
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError
from gantry.model.errors import NO_VALUE
from gantry.model.topic import Perm
from gantry.remoting.bodies import decode_properties_text, encode_properties_text
from gantry.remoting.bodies.brokersettings import BrokerSettingsBody, SettingsChange, SettingsChanged
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.settingnames import snake_case
from gantry.runtime.digits import parse_digits
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.errors import (
    BROKER_ERROR,
    SETTINGS_CHANGED,
    ProblemError,
    invalid,
    not_implemented,
    problem_of,
)
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.metadata import Metadata

KIND: Final = "broker"
PERMISSION: Final = "broker_permission"
_PERMISSION_MAX: Final = 15
_WIRE_PERMISSION: Final = "brokerPermission"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a broker; a broker that is not Gantry's does not tell `default`, `is_live` and `is_changed`.

    Attributes:
        name: Name in snake_case.
        value: Value as a text.
        default: Default as a text.
        is_live: Whether a change takes effect at once; only such settings may be changed.
        is_changed: Whether a request changed it, so that it overrides the settings file.
    """

    name: str
    value: str
    default: str | None = None
    is_live: bool | None = None
    is_changed: bool | None = None


class BrokerSettings:
    """Reads and changes settings of brokers. The caller checks the rights."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, metadata: Metadata) -> None:
        self._engine = engine
        self._brokers = brokers
        self._metadata = metadata

    async def read(self, broker: str) -> Sequence[Setting]:
        """Return all settings of the master of a broker set.

        Raises:
            ProblemError: 404: there is no such broker; 502, 503, 504: it does not answer.
        """
        address = await self._brokers.master(broker)
        try:
            response = await self._engine.call(address, RequestCode.GANTRY_SETTINGS)
            body = read_body(BrokerSettingsBody.decode, response, address)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            properties = await self._properties(address)
            return [Setting(snake_case(name), value) for name, value in sorted(properties.items())]
        return [Setting(one.name, one.value, one.default_value, one.is_live, one.is_changed) for one in body.settings]

    async def change(
        self, broker: str, wanted: Mapping[str, str], expected: Mapping[str, str], actor: Actor
    ) -> Sequence[Setting]:
        """Change settings that take effect at once, all or none, and return all settings.

        Args:
            broker: Name of the broker set.
            wanted: New values, by name.
            expected: Values that the broker must still have, by name.
            actor: Origin of the change.

        Raises:
            ProblemError: 400: a setting does not exist, takes effect only at the next start, or has an invalid value;
                409: a value is not the expected one; 501: the broker is not Gantry's; 503: Postgres is unavailable.
        """
        known = {setting.name: setting for setting in await self.read(broker)}
        for name in wanted:
            if name not in known:
                raise invalid(f"/settings/{name}", NO_VALUE, "the broker has no such setting")
            if known[name].is_live is None:
                raise not_implemented("broker", f"{broker} is not a Gantry broker; mqadmin changes its settings")
            if not known[name].is_live:
                raise invalid(f"/settings/{name}", wanted[name], "would take effect only at the next start")
        for name in expected:
            if name not in known:
                raise invalid(f"/expected/{name}", NO_VALUE, "the broker has no such setting")
        _require_expected(expected, {name: setting.value for name, setting in known.items()})
        changes = {name: value for name, value in wanted.items() if known[name].value != value}
        if not changes:
            return list(known.values())
        before = {name: known[name].value for name in changes}
        await self._record(actor, "broker.settings", broker, before, changes)
        address = await self._brokers.master(broker)
        body = SettingsChange(settings=dict(wanted), expected={**before, **expected}).encode()
        try:
            response = await self._engine.call(address, RequestCode.GANTRY_CHANGE_SETTINGS, body=body)
        except BrokerError as error:
            raise _refused_value(error, wanted) from None
        changed = read_body(SettingsChanged.decode, response, address)
        _require_expected(
            {one.name: one.expected for one in changed.differences},
            {one.name: one.actual for one in changed.differences},
        )
        return await self.read(broker)

    async def set_drained(self, broker: str, *, drained: bool, actor: Actor) -> bool:
        """Drain a broker, or let it take messages again; return whether this changed anything.

        The answer of the broker comes when name servers know the change, or after 3 s.

        Raises:
            ProblemError: 404, 502, 503, 504 as `read`; 503: Postgres is unavailable.
        """
        address = await self._brokers.master(broker)
        properties = await self._properties(address)
        permission = parse_digits(properties.get(_WIRE_PERMISSION, ""), _PERMISSION_MAX)
        if permission is None:
            shown = properties.get(_WIRE_PERMISSION)
            raise ProblemError(
                BROKER_ERROR, f"broker: {broker} has {_WIRE_PERMISSION}={shown!r}, which is no permission"
            )
        wanted = permission & ~Perm.WRITE if drained else permission | Perm.WRITE
        if wanted == permission:
            return False
        action = "broker.drain" if drained else "broker.undrain"
        await self._record(actor, action, broker, {PERMISSION: str(permission)}, {PERMISSION: str(int(wanted))})
        body = encode_properties_text({_WIRE_PERMISSION: str(int(wanted))})
        await self._engine.call(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)
        return True

    async def _properties(self, address: str) -> Mapping[str, str]:
        response = await self._engine.call(address, RequestCode.GET_BROKER_CONFIG)
        return read_body(decode_properties_text, response, address)

    async def _record(
        self, actor: Actor, action: str, broker: str, before: Mapping[str, str], after: Mapping[str, str]
    ) -> None:
        async with self._metadata.transaction() as session:
            AuditRepository(session).record(actor, action, KIND, broker, before=dict(before), after=dict(after))


def _require_expected(expected: Mapping[str, str], actual: Mapping[str, str]) -> None:
    """Raise ProblemError (409) if a value is not the expected one."""
    differences = [
        {"name": name, "expected": value, "actual": actual[name]}
        for name, value in expected.items()
        if actual[name] != value
    ]
    if differences:
        shown = "; ".join(f"{one['name']} is {one['actual']!r}, not {one['expected']!r}" for one in differences)
        raise ProblemError(SETTINGS_CHANGED, f"expected: {shown}", field="/expected", differences=differences)


def _refused_value(error: BrokerError, wanted: Mapping[str, str]) -> ProblemError:
    """Return the problem of a change that the broker refuses; its remark names the setting, the value and the reason."""
    name, _, value_and_reason = (error.remark or "").partition(": ")
    if error.code == ResponseCode.INVALID_PARAMETER and name in wanted:
        return invalid(f"/settings/{name}", NO_VALUE, value_and_reason)
    return problem_of(error)
