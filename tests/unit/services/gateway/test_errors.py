"""Every error has a row in the table of problems, and each problem has a page."""

from pathlib import Path

import pytest

from gantry.client import errors as client
from gantry.model import errors as model
from gantry.remoting.codes import ResponseCode
from gantry.remoting.errors import BodyError, HeaderError
from gantry.sqlfilter import SqlError
from services.gateway.errors import BROKER_PROBLEMS, PROBLEM_TYPES, ProblemError, invalid, problem_of
from services.gateway.schemas import reading

PAGES = Path(__file__).parents[4] / "docs" / "problems"


def subclasses(kind):
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


def test_every_response_code_has_a_row():
    assert set(BROKER_PROBLEMS) == set(ResponseCode)
    for code in ResponseCode:
        problem = problem_of(client.BrokerError(code, "remark", "127.0.0.1:10911"))
        assert problem.kind is BROKER_PROBLEMS[code]
        assert "remark" in problem.detail
    assert problem_of(client.BrokerError(9_999, None, "x")).kind.name == "broker-error"


def test_every_error_of_the_client_has_a_row():
    samples = [
        client.InvalidArgumentError("f", "v", "r"),
        client.NotStartedError("no"),
        client.NoRouteError("T"),
        client.NotWritableError("T", is_transient=True),
        client.NotWritableError("T", is_transient=False),
        client.BrokerUnavailableError("b"),
        client.OffsetsFileError("/offsets/one/g/offsets.json", "is broken"),
        client.BrokerError(2, None, "x"),
        client.NotServedError(900_001, "x"),
        client.DrainedError(16, None, "x"),
        client.GroupDeletedError(26, None, "x"),
        client.NoAnswerError("a", "r", sent=True),
        client.RequestTimeoutError("a", "r", sent=True),
        client.ConnectionFailedError("a", "r", sent=False),
        client.BackpressureError("a", "r", sent=False),
        client.SendError(client.NoRouteError("T"), outcome=client.Outcome.NOT_STORED, retryable=False),
    ]
    covered = {type(sample) for sample in samples} | {client.ClientError}
    assert covered >= subclasses(client.ClientError)
    for sample in samples:
        assert problem_of(sample).kind.name != "internal-error"


def test_every_error_of_model_and_schemas_has_a_row():
    bad_filter = problem_of(SqlError(3, "a value stands where a condition is needed"))
    assert (bad_filter.kind.name, bad_filter.field, "at character 3" in bad_filter.detail) == (
        "invalid-field",
        "sql",
        True,
    )
    for kind in subclasses(model.InvalidValueError) - {reading.WrongTypeError, SqlError}:
        problem = problem_of(kind("/field", "value", "is wrong"))
        assert problem.status in (400, 413, 501)
        assert (problem.field, "value" in problem.detail) == ("/field", True)
    assert problem_of(model.CorruptRecordError("torn", 3)).kind.name == "corrupt-record"
    assert (
        problem_of(HeaderError("f", "v", "r")).kind.name
        == problem_of(BodyError("k", "f", "r")).kind.name
        == "broker-error"
    )


def test_a_send_that_may_have_been_stored_is_unknown():
    lost = client.ConnectionFailedError("a", "gone", sent=True)
    problem = problem_of(client.send_error(lost))
    assert (problem.kind.name, problem.outcome, problem.retryable) == ("outcome-unknown", "unknown", True)
    refused = problem_of(client.send_error(client.BrokerError(ResponseCode.SYSTEM_BUSY, "busy", "a")))
    assert (refused.status, refused.outcome, refused.retryable, refused.retry_after_s) == (503, "not_stored", True, 1)


def test_an_internal_error_reveals_nothing():
    problem = problem_of(KeyError("secret"))
    assert problem.kind.name == "internal-error"
    assert "secret" not in str(problem.to_dict("r"))


@pytest.mark.parametrize("name", sorted(PROBLEM_TYPES))
def test_every_problem_has_its_page(name):
    page = (PAGES / f"{name}.md").read_text()
    kind = PROBLEM_TYPES[name]
    assert page.startswith(f"# {kind.title}\n")
    assert f"`{kind.uri}` · status {kind.status} " in page
    assert f"[{name}]({name}.md) | {kind.status} | {kind.title}" in (PAGES / "README.md").read_text()


def test_every_page_has_a_problem():
    assert {page.stem for page in PAGES.glob("*.md")} - {"README"} == set(PROBLEM_TYPES)


def test_a_problem_names_field_and_value_and_shortens_it():
    problem = invalid("limit", "x" * 500, "is not a whole number")
    body = problem.to_dict("req-1")
    assert body["field"] == "limit"
    assert "xxx" in body["detail"]
    assert len(body["detail"]) < 200
    assert set(body) == {"type", "title", "status", "detail", "field", "retryable", "request_id"}
    busy = ProblemError(PROBLEM_TYPES["overloaded"], "full", retry_after_ms=1_500)
    assert busy.retry_after_s == 2


@pytest.mark.parametrize(
    "remark", ["topic[T-9] not exist, apply first please!\nSee https://rocketmq.apache.org", "Topic T-9 not exist!"]
)
def test_a_missing_topic_is_named_in_our_words(remark):
    problem = problem_of(client.BrokerError(ResponseCode.TOPIC_NOT_EXIST, remark, "127.0.0.1:10911"))
    assert (problem.status, problem.detail) == (404, "topic: 'T-9' does not exist; PUT /v1/topics/T-9 creates it")
    other = problem_of(client.BrokerError(ResponseCode.TOPIC_NOT_EXIST, "gone", "127.0.0.1:10911"))
    assert other.detail == "127.0.0.1:10911 answered 17 (TOPIC_NOT_EXIST): gone"
