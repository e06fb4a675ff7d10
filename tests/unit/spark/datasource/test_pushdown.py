"""Push-down: which filters the data source applies, and which stay with Spark."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from spark.datasource.pushdown import EVERYTHING, ColumnFilter, Pushed, push_down

MOMENT = datetime(2026, 11, 21, 9, 30, 0, 123, tzinfo=UTC)
MOMENT_US = 1_795_253_400_000_123


def test_filters_of_exact_columns_are_taken_and_combined():
    filters = [EqualTo(("topic",), "A"), In(("topic",), ("A", "B", None)), LessThan(("queue_id",), 4)]
    pushed, left = push_down(filters, exact=("topic", "queue_id"))
    assert left == []
    assert pushed.filter_of("topic") == ColumnFilter(frozenset({"A"}))
    assert [pushed.passes("queue_id", number) for number in (0, 3, 4)] == [True, True, False]
    assert (pushed.filter_of("group"), pushed.passes("group", None)) == (EVERYTHING, True)


def test_filters_of_narrowing_columns_are_used_and_returned():
    filters = [EqualTo(("tag",), "A")]
    pushed, left = push_down(filters, exact=("topic",), narrowing=("tag",))
    assert left == filters
    assert pushed.passes("tag", "A")
    assert not pushed.passes("tag", "B")


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("lag",), 1),
        EqualTo(("a", "topic"), "A"),
        EqualTo(("topic",), None),
        EqualTo(("topic",), True),
        EqualTo(("topic",), 1.5),
        EqualNullSafe(("topic",), None),
        IsNull(("topic",)),
        Not(EqualTo(("topic",), "A")),
        StringStartsWith(("topic",), "A"),
        GreaterThan(("topic",), "A"),
        GreaterThan(("topic",), MOMENT.replace(tzinfo=None)),
        In(("topic",), ("A", 1.5)),
    ],
)
def test_filters_that_can_not_be_pushed_down_stay_with_spark(one):
    pushed, left = push_down([one], exact=("topic",))
    assert (left, pushed) == ([one], Pushed())
    assert left[0] is one


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (EqualTo(("stored_at",), MOMENT), ColumnFilter(frozenset({MOMENT_US}))),
        (EqualNullSafe(("stored_at",), MOMENT), ColumnFilter(frozenset({MOMENT_US}))),
        (GreaterThan(("stored_at",), MOMENT), ColumnFilter(at_least=MOMENT_US + 1)),
        (GreaterThanOrEqual(("stored_at",), MOMENT), ColumnFilter(at_least=MOMENT_US)),
        (LessThan(("stored_at",), MOMENT), ColumnFilter(at_most=MOMENT_US - 1)),
        (LessThanOrEqual(("stored_at",), MOMENT), ColumnFilter(at_most=MOMENT_US)),
        (IsNotNull(("stored_at",)), EVERYTHING),
    ],
)
def test_times_are_compared_to_the_microsecond(one, wanted):
    pushed, left = push_down([one], exact=("stored_at",))
    assert (pushed.filter_of("stored_at"), left) == (wanted, [])
    assert not pushed.passes("stored_at", None)


numbers = st.integers(-5, 5)
filters_of_number = st.one_of(
    st.builds(lambda value: EqualTo(("n",), value), numbers),
    st.builds(lambda values: In(("n",), tuple(values)), st.lists(st.one_of(numbers, st.none()))),
    *(
        st.builds(lambda value, kind=kind: kind(("n",), value), numbers)
        for kind in (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    ),
)
MEANING = {
    EqualTo: lambda n, value: n == value,
    In: lambda n, values: n in values,
    GreaterThan: lambda n, value: n > value,
    GreaterThanOrEqual: lambda n, value: n >= value,
    LessThan: lambda n, value: n < value,
    LessThanOrEqual: lambda n, value: n <= value,
}


@given(st.lists(filters_of_number, max_size=4), numbers)
def test_a_row_passes_if_and_only_if_all_filters_hold(filters, number):
    pushed, left = push_down(filters, exact=("n",))
    assert left == []
    assert pushed.passes("n", number) == all(MEANING[type(one)](number, one.value) for one in filters)
