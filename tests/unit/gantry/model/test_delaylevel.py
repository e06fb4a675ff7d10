import pytest

from gantry.model.delaylevel import DELAY_LEVELS_MS, parse_delay_levels


def test_default_levels() -> None:
    assert len(DELAY_LEVELS_MS) == 18
    assert DELAY_LEVELS_MS[0] == 1_000
    assert DELAY_LEVELS_MS[17] == 7_200_000


def test_units() -> None:
    assert parse_delay_levels("1s  2m 3h 4d") == (1_000, 120_000, 10_800_000, 345_600_000)


@pytest.mark.parametrize("text", ["", " ", "1s " * 1001, "1", "s", "1x", "-1s", "1s,2s", "1.5s", "9999999999s", "٣s"])
def test_invalid_delay_levels_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="delay level"):
        parse_delay_levels(text)
