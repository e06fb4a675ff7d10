"""Invalid thresholds are rejected before any data is read."""

import dataclasses

import pytest

from spark.transforms.lagsettings import LagSettings


def test_the_defaults_can_be_meant():
    LagSettings().check()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("window_s", 0.0, "window_s: 0.0 is not above 0"),
        ("pieces", 0, "pieces: 0 is not above 0"),
        ("hot_share_min", 1.5, "hot_share_min: 1.5 is no share"),
        ("retry_share_min", 0.0, "retry_share_min: 0.0 is no share"),
        ("clock_skew_max_s", -1.0, "clock_skew_max_s: -1.0 is below 0"),
        ("rewind_messages_min", 0, "rewind_messages_min: 0 is not at least 1"),
        ("stall_min_s", 601.0, "stall_min_s: 601.0 is longer than the window of 600.0"),
    ],
)
def test_invalid_thresholds_are_refused_by_name_and_reason(name, value, reason):
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(LagSettings(), **{name: value}).check()


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(LagSettings)])
def test_every_threshold_is_checked(field):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(LagSettings(), **{field: -1}).check()
