"""The meaning of a broker's answer for a send."""

import pytest

from gantry.client.errors import (
    DISPOSITIONS,
    BackpressureError,
    BrokerError,
    BrokerUnavailableError,
    ConnectionFailedError,
    InvalidArgumentError,
    NoRouteError,
    Outcome,
    RequestTimeoutError,
    combine_outcomes,
    disposition_of,
    no_answer,
    send_error,
)
from gantry.remoting import errors as wire
from gantry.remoting.codes import ResponseCode


@pytest.mark.parametrize("code", list(ResponseCode))
def test_every_code_has_a_row(code: ResponseCode):
    row = DISPOSITIONS[code]
    assert disposition_of(int(code)) is row
    # An immediate retry only makes sense for a send that did not arrive, or may not have arrived.
    assert not (row.retry and row.outcome is Outcome.STORED)


def test_only_success_is_stored():
    assert [code for code, row in DISPOSITIONS.items() if row.outcome is Outcome.STORED] == [ResponseCode.SUCCESS]


def test_the_codes_that_rocketmq_retries_are_retried():
    retried = {int(code) for code, row in DISPOSITIONS.items() if row.retry}
    assert {17, 14, 1, 2, 16, 204, 205, 1500} <= retried
    assert not retried & {10, 11, 12, 13, 3, 29}


@pytest.mark.parametrize("code", [2, 3, 13, 14, 15, 16, 17, 29, 215])
def test_a_refusal_before_the_append_is_certainly_not_stored(code: int):
    assert disposition_of(code).outcome is Outcome.NOT_STORED


@pytest.mark.parametrize("code", [1, 10, 11, 12, 22, 2007, 987_654])
def test_codes_of_sends_that_may_be_stored_are_unknown(code: int):
    assert disposition_of(code).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("outcomes", "combined"),
    [
        ([], Outcome.NOT_STORED),
        ([Outcome.NOT_STORED, Outcome.NOT_STORED], Outcome.NOT_STORED),
        ([Outcome.NOT_STORED, Outcome.UNKNOWN, Outcome.NOT_STORED], Outcome.UNKNOWN),
        ([Outcome.UNKNOWN, Outcome.STORED, Outcome.NOT_STORED], Outcome.STORED),
    ],
)
def test_outcomes_of_attempts_become_one(outcomes: list[Outcome], combined: Outcome):
    assert combine_outcomes(outcomes) is combined


@pytest.mark.parametrize(
    ("cause", "outcome", "retryable"),
    [
        (wire.ConnectError("b:1", "refused"), Outcome.NOT_STORED, True),
        (wire.ConnectionLostError("b:1", "reset", sent=False), Outcome.NOT_STORED, True),
        (wire.ConnectionLostError("b:1", "reset", sent=True), Outcome.UNKNOWN, True),
        (wire.RequestTimeoutError("b:1", "late", sent=True), Outcome.UNKNOWN, True),
        (wire.RequestTimeoutError("b:1", "late", sent=False), Outcome.NOT_STORED, True),
        (wire.BackpressureError("b:1", "full"), Outcome.NOT_STORED, True),
    ],
)
def test_the_outcome_of_a_failed_send_follows_from_its_cause(
    cause: wire.RequestFailedError, outcome: Outcome, retryable: bool
):
    error = send_error(no_answer(cause))
    assert (error.outcome, error.retryable) == (outcome, retryable)


def test_each_failure_of_the_wire_has_its_own_class():
    assert isinstance(no_answer(wire.RequestTimeoutError("b:1", "x", sent=True)), RequestTimeoutError)
    assert isinstance(no_answer(wire.ConnectError("b:1", "x")), ConnectionFailedError)
    assert isinstance(no_answer(wire.BackpressureError("b:1", "x")), BackpressureError)


def test_one_doubtful_attempt_makes_the_whole_doubtful():
    error = send_error(BrokerError(13, "too long", "b:1"), [Outcome.UNKNOWN])
    assert (error.outcome, error.retryable) == (Outcome.UNKNOWN, False)
    assert "13 (MESSAGE_ILLEGAL): too long" in str(error)


def test_nothing_was_stored_without_a_route_or_a_master():
    assert send_error(NoRouteError("T")).retryable is False
    assert send_error(BrokerUnavailableError("a")).retryable is True


def test_error_texts_name_their_subject():
    assert "987654 (unknown code): no remark" in str(BrokerError(987_654, None, "b:1"))
    assert "broker a" in str(BrokerUnavailableError("a"))
    assert str(InvalidArgumentError("body", "x" * 200, "is too long")).startswith("body: 'xxx")
    assert len(str(InvalidArgumentError("body", "x" * 200, "is too long"))) < 110
