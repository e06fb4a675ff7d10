"""Verdicts by severity, and durations in words."""

import pytest

from gantry.model.lag import VERDICTS, brief_duration, severity


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.04, "< 0.1 s"), (0.42, "0.4 s"), (9.96, "10 s"), (31, "31 s"), (59.6, "59 s"), (61, "1 min 1 s"),
        (3_600, "1 h"), (3_661, "1 h 1 min"), (86_399.9, "23 h 59 min"), (97_200, "1 d 3 h"), (86_400 * 1_234, "1,234 d"),
    ],
)  # fmt: skip
def test_durations_in_words(seconds: float, words: str) -> None:
    assert brief_duration(seconds) == words


def test_a_verdict_of_a_later_version_ranks_as_unknown() -> None:
    assert severity("SOMETHING_NEW") == severity("UNKNOWN")
    assert [severity(verdict) for verdict in VERDICTS] == list(range(len(VERDICTS)))
    assert severity("OK") == max(map(severity, VERDICTS))
