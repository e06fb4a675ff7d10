"""The bodies of requests 900030 and 900031, Gantry's own: the settings of a broker, and a change of them.

Names of settings are those of the broker's settings file (snake_case), and values are texts.
"""

import msgspec

from gantry.remoting.bodies.fastjson import JsonBody

SETTINGS_MAX = 256
"""The maximum number of settings in a change."""


class BrokerSetting(JsonBody, kw_only=True):
    """One setting. `is_live` tells whether a change takes effect at once; `is_changed` whether a request changed it."""

    default_value: str
    is_changed: bool
    is_live: bool
    name: str
    value: str


class BrokerSettingsBody(JsonBody, kw_only=True):
    """900030: all settings, in the order of the settings file, and the number of the changes so far."""

    settings: list[BrokerSetting]
    version: int


class SettingsChange(JsonBody, kw_only=True):
    """900031: the new values by name, and the values that the caller expects to replace."""

    expected: dict[str, str] = msgspec.field(default_factory=dict)
    settings: dict[str, str]


class SettingDifference(JsonBody, kw_only=True):
    """A setting whose value is not the expected one."""

    actual: str
    expected: str
    name: str


class SettingsChanged(JsonBody, kw_only=True):
    """The response to 900031. If there are differences, nothing was changed."""

    differences: list[SettingDifference]
