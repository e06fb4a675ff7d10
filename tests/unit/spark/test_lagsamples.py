"""Samples on their way from Postgres into Spark."""

from datetime import timedelta

import pytest

from spark.lagsamples import ROWS_MAX, choose_step

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("rows", "span", "step"),
    [
        (0, HOUR, None),
        (ROWS_MAX, HOUR, None),
        (ROWS_MAX + 1, HOUR, timedelta(seconds=30)),
        (4 * ROWS_MAX, HOUR, timedelta(seconds=60)),
        (20 * ROWS_MAX, HOUR, timedelta(seconds=300)),
        (10_000 * ROWS_MAX, HOUR, timedelta(hours=1)),
        (ROWS_MAX + 1, timedelta(0), timedelta(seconds=30)),
    ],
)
def test_the_interval_grows_with_the_number_of_samples(rows: int, span: timedelta, step: timedelta | None) -> None:
    assert choose_step(rows, span) == step
