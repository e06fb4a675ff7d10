"""Bodies of the operations on brokers, as typed structs."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

SETTINGS_MAX: Final = 256
VALUE_LENGTH_MAX: Final = 4_096

SettingName = Annotated[str, Meta(min_length=1, max_length=128)]
SettingText = Annotated[str, Meta(max_length=VALUE_LENGTH_MAX)]
SettingValue = SettingText | int | bool
SettingValues = Annotated[dict[SettingName, SettingValue], Meta(max_length=SETTINGS_MAX)]


class SettingsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of settings; `expected` has the values that the broker must still have."""

    settings: Annotated[dict[SettingName, SettingValue], Meta(min_length=1, max_length=SETTINGS_MAX)]
    expected: SettingValues = {}


class CleanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A removal of old data. Topics without configuration are removed only if they are named."""

    what: Annotated[
        list[Literal["expired_files", "expired_queues", "unused_topics"]], Meta(min_length=1, max_length=3)
    ] = msgspec.field(default_factory=lambda: ["expired_files", "expired_queues"])
    dry_run: bool = False


def setting_texts(values: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Return values as the texts that a broker's settings file has."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
