"""Verdicts of reports open, change and resolve an alert, in virtual time."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.alert import (
    CHANGED,
    GONE,
    GOOD,
    IGNORED,
    OK,
    OPENED,
    RESOLVED,
    UNKNOWN,
    AlertDecision,
    AlertSettings,
    AlertState,
    decide_alert,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SPACE = UUID(int=7)
SETTINGS = AlertSettings(timedelta(minutes=5), timedelta(minutes=10))
VERDICTS = (OK, IGNORED, UNKNOWN, GONE, "LAGGING", "STALLED", "OVER_OBJECTIVE")


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def run(reports: Iterable[tuple[float, str]], settings: AlertSettings = SETTINGS) -> list[tuple[float, AlertDecision]]:
    """Apply reports (minute, verdict) one after the other; return each decision."""
    state: AlertState | None = None
    decisions = []
    for minute, verdict in reports:
        decision = decide_alert(state, verdict, at(minute), alert_id=uuid5(SPACE, str(minute)), settings=settings)
        decisions.append((minute, decision))
        state = decision.state
    return decisions


def events(
    reports: Iterable[tuple[float, str]], settings: AlertSettings = SETTINGS
) -> list[tuple[float, str, str | None, str, float]]:
    """Return (minute, kind, old verdict, new verdict, minute since when) of each event."""
    return [
        (
            minute,
            found.event.kind,
            found.event.old_verdict,
            found.event.new_verdict,
            (found.event.since - NOON).seconds / 60,
        )
        for minute, found in run(reports, settings)
        if found.event is not None
    ]


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        # The verdict must hold.
        ([(0, "LAGGING")], []),
        ([(0, "LAGGING"), (4.9, "LAGGING")], []),
        ([(0, "LAGGING"), (5, "LAGGING")], [(5, OPENED, None, "LAGGING", 0)]),
        ([(0, "LAGGING"), (3, OK), (6, "LAGGING")], []),
        # While no alert is open, one bad verdict may follow another; the last one names the alert.
        ([(0, "LAGGING"), (5, "STALLED")], [(5, OPENED, None, "STALLED", 0)]),
        # An open alert is reported once.
        ([(0, "LAGGING"), (5, "LAGGING"), (10, "LAGGING")], [(5, OPENED, None, "LAGGING", 0)]),
        # The alert changes when another verdict holds by itself.
        (
            [(0, "LAGGING"), (5, "LAGGING"), (10, "STALLED"), (15, "STALLED")],
            [(5, OPENED, None, "LAGGING", 0), (15, CHANGED, "LAGGING", "STALLED", 10)],
        ),
        (
            [(0, "LAGGING"), (5, "LAGGING"), (10, "STALLED"), (14, "LAGGING"), (18, "STALLED"), (22, "PAUSED")],
            [(5, OPENED, None, "LAGGING", 0)],
        ),
        # The alert is resolved when the verdict has been good for long enough.
        (
            [(0, "LAGGING"), (5, "LAGGING"), (10, OK), (19, OK), (20, OK)],
            [(5, OPENED, None, "LAGGING", 0), (20, RESOLVED, "LAGGING", OK, 10)],
        ),
        ([(0, "LAGGING"), (5, "LAGGING"), (10, OK), (15, "LAGGING"), (20, OK)], [(5, OPENED, None, "LAGGING", 0)]),
        # A user made the group ignored: the alert is resolved at once.
        (
            [(0, "LAGGING"), (5, "LAGGING"), (6, IGNORED)],
            [(5, OPENED, None, "LAGGING", 0), (6, RESOLVED, "LAGGING", IGNORED, 6)],
        ),
        (
            [(0, "LAGGING"), (5, "LAGGING"), (70, GONE)],
            [(5, OPENED, None, "LAGGING", 0), (70, RESOLVED, "LAGGING", GONE, 70)],
        ),
        ([(0, "LAGGING"), (1, IGNORED), (6, "LAGGING")], []),
        # The verdict "unknown" is neither good nor bad.
        ([(0, UNKNOWN), (60, UNKNOWN)], []),
        ([(0, "LAGGING"), (3, UNKNOWN), (6, "LAGGING")], [(6, OPENED, None, "LAGGING", 0)]),
        ([(0, "LAGGING"), (5, "LAGGING"), (10, UNKNOWN), (60, UNKNOWN)], [(5, OPENED, None, "LAGGING", 0)]),
        # A verdict of a later version is bad.
        ([(0, "NEW"), (5, "NEW")], [(5, OPENED, None, "NEW", 0)]),
    ],
)
def test_a_verdict_must_hold_before_an_alert_opens(reports, expected):
    assert events(reports) == expected


def test_without_hysteresis_every_change_is_an_event():
    at_once = AlertSettings(timedelta(0), timedelta(0))
    assert events([(0, "LAGGING"), (1, "STALLED"), (2, OK), (3, OK)], at_once) == [
        (0, OPENED, None, "LAGGING", 0),
        (1, CHANGED, "LAGGING", "STALLED", 1),
        (2, RESOLVED, "STALLED", OK, 2),
    ]


def test_a_swinging_group_opens_one_alert():
    swings = [(5.0 * index, "LAGGING" if index % 3 else OK) for index in range(300)]
    assert [kind for _, kind, *_ in events(swings)] == [OPENED]


def test_no_state_is_kept_for_healthy_groups():
    assert [decision.state for _, decision in run([(0, OK), (1, IGNORED), (2, "LAGGING"), (3, OK)])][-1] is None


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(VERDICTS)), max_size=40),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_events_form_a_chain_and_the_state_repeats_the_last_one(steps, raise_after, clear_after):
    minute, reports = 0, []
    for step, verdict in steps:
        minute += step
        reports.append((minute, verdict))
    settings = AlertSettings(timedelta(minutes=raise_after), timedelta(minutes=clear_after))
    opened: tuple[UUID, str] | None = None
    for when, decision in run(reports, settings):
        event, state = decision.event, decision.state
        if event is not None:
            assert event.since <= at(when)
            if event.kind == OPENED:
                assert opened is None
                opened = event.alert_id, event.new_verdict
            else:
                assert opened == (event.alert_id, event.old_verdict)
                opened = None if event.kind == RESOLVED else (event.alert_id, event.new_verdict)
            assert (event.new_verdict in GOOD) == (event.kind == RESOLVED)
        assert opened == (None if state is None or state.verdict is None else (state.alert_id, state.verdict))
        assert state != AlertState()
