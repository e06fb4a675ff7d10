"""The gateway keeps its contract: every call of openapi.yaml, with valid and invalid requests.

A stack of real processes serves; schemathesis makes the requests. `is_in_contract` leaves out the rules that a schema
can't express, with a reason beside each; tests/integration/test_gateway_http.py tests them by hand.

Each operation has a test of its own. Its requests are made when it runs: every process of a test run collects this file.
"""

import json
import re
from collections.abc import Iterator
from functools import cache

import msgspec
import psycopg
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.generation.hypothesis.builder import (
    InvalidHeadersExampleMark,
    InvalidRegexMark,
    MissingPathParameters,
    NonSerializableMark,
    UnsatisfiableExampleMark,
    UnserializablePayloadMark,
)
from schemathesis.pytest._test_builder import build_operation_test

from services.gateway.asgi.operation import Operation
from services.gateway.bootstrap import build
from services.gateway.features.console import PageOperation
from services.gateway.settings import GatewaySettings
from tests.support.stack import Stack
from tools.contract import TARGET, load, render

CONTRACT = json.loads(TARGET.read_text())
_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
METHODS = {"get", "put", "post", "delete", "patch"}
EXAMPLES = 8
# Notes of schemathesis about an operation for which it can't make some of the requests.
LEFT_OUT = (
    UnsatisfiableExampleMark,
    NonSerializableMark,
    InvalidRegexMark,
    InvalidHeadersExampleMark,
    UnserializablePayloadMark,
    MissingPathParameters,
)

CONFIG = SchemathesisConfig.from_dict(
    {
        "generation": {"deterministic": True, "max-examples": EXAMPLES},
        "checks": {"not_a_server_error": {"expected-statuses": ["2xx", 304, "4xx", 501]}},
        "operations": [
            # Each item has its own result there; one unreadable item is no reason to reject the others.
            {"include-operation-id": "sendBatch", "checks": {"negative_data_rejection": {"enabled": False}}},
            # A schema can't express that the topic exists, nor that an expression is valid.
            {
                "include-operation-id": "pullMessages",
                "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404]}},
            },
            # These routes accept only a WebSocket handshake.
            {
                "include-operation-id": "openStream",
                "checks": {
                    "positive_data_acceptance": {"enabled": False},
                    "negative_data_rejection": {"expected-statuses": [400, 401, 403, 426]},
                },
            },
            # A schema can't express which URLs are public, nor the alphabet of a secret.
            *(
                {
                    "include-operation-id": name,
                    "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404]}},
                }
                for name in ("createWebhook", "putWebhook", "putProducerGroup")
            ),
            # A schema can't express which settings a broker has, and their values.
            {
                "include-operation-id": "putBrokerSettings",
                "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404, 409]}},
            },
            # A schema can't express the language of SQL filters, nor that there is one filter at most, nor which parameters of
            # a search may stand beside each other.
            *(
                {
                    "include-operation-id": name,
                    "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404]}},
                }
                for name in ("readQueue", "findMessages")
            ),
            # A schema can't express which passwords are too simple, nor that a new user needs a role and a password.
            {
                "include-operation-id": "putUser",
                "checks": {
                    "positive_data_acceptance": {"expected-statuses": ["2xx", 400, 409, 412]},
                    "negative_data_rejection": {"expected-statuses": [400, 401, 403, 404, 405, 409, 412, 415]},
                },
            },
            # A random user has no such password, and each failed log-in makes the next one wait.
            {
                "include-operation-id": "logIn",
                "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 401, 429]}},
            },
            # A schema can't express that a moment lies in the future.
            {
                "include-operation-id": "putObjective",
                "checks": {
                    "positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404, 412]},
                    "negative_data_rejection": {"expected-statuses": [400, 401, 403, 404, 405, 412, 415]},
                },
            },
            # A schema can't express that a window ends after it starts, nor the language of cron, nor list the time zones.
            *(
                {
                    "include-operation-id": name,
                    "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400]}},
                }
                for name in ("startReportRun", "putReportSchedule", "listThroughput", "readLagHistory")
            ),
            *(
                # A schema can't express that times are in order, nor that groups, letters and waiting messages exist.
                {
                    "include-operation-id": name,
                    "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404]}},
                }
                for name in (
                    "shrinkTopic",
                    "resetOffsets",
                    "cloneOffsets",
                    "undoOffsetReset",
                    "listDeadLetters",
                    "exportDeadLetters",
                    "redriveDeadLetters",
                    "listScheduled",
                    "recallScheduled",
                    "rescheduleScheduled",
                    "beginTransaction",
                    "listTransactions",
                    "getTransaction",
                    "commitTransaction",
                    "rollBackTransaction",
                )
            ),
            *(
                # Random conditions are never met, and the gateway checks them before it reads the body.
                {
                    "include-operation-id": name,
                    "checks": {
                        "positive_data_acceptance": {"expected-statuses": ["2xx", 403, 404, 412]},
                        "negative_data_rejection": {"expected-statuses": [400, 401, 403, 404, 405, 412, 415]},
                    },
                }
                for name in ("putTopic", "putGroup", "deleteTopic", "deleteGroup", "deleteObjective")
            ),
        ],
    }
)


@pytest.fixture(scope="module")
def schema():
    load_all_checks()
    found = schemathesis.openapi.from_dict(CONTRACT, config=CONFIG)
    found.hook(filter_case)
    return found


@schemathesis.serializer("application/x-ndjson")
def serialize_lines(context, value):
    """A schema can't describe the content of lines, so the generated value becomes the body of one line."""
    return json.dumps({"body": repr(value)}).encode() + b"\n"


@schemathesis.serializer("application/vnd.gantry.batch")
def serialize_frames(context, value):
    """Serialize each frame as one line."""
    data = msgspec.msgpack.encode({"body": repr(value)})
    return len(data).to_bytes(4, "big") + data


@schemathesis.deserializer("application/msgpack")
def deserialize_msgpack(context, response):
    return msgspec.msgpack.decode(response.content)


def filter_case(context, case):
    return is_in_contract(case)


def is_in_contract(case) -> bool:
    """Return whether the schema states every rule that applies to a request."""
    if "cursor" in (case.query or {}):
        return False  # Opaque values: only the gateway creates them.
    headers = {name.lower() for name in case.headers or {}}
    is_json = case.media_type == "application/json"
    if is_json and any(name.startswith("gantry-") for name in headers):
        return False  # Metadata headers are only for raw bodies; OpenAPI can't express that.
    if headers & {"gantry-delay", "gantry-deliver-at"}:
        return False  # OpenAPI can't say that both together are refused.
    if any(_ESCAPE.search(str(value)) for value in (case.path_parameters or {}).values()):
        return False  # schemathesis decodes a name such as `a%3Ab` once more than it encodes it.
    if case.operation.path.startswith("/v1/keys") and is_json and has_member(case.body, "expires_at", "overlap"):
        return False  # An end must be in the future, and an overlap is at most 90 days.
    if has_integral_float(case.body):
        return False  # JSON Schema accepts 3.0 as an integer; the gateway requires integer notation.
    if case.operation.path == "/v1/groups/{group}/offsets" and names_a_queue_twice(case.body):
        return False  # JSON Schema compares whole items, and these differ in their offset.
    if case.operation.path in ("/v1/audit", "/v1/audit:export"):
        # A name needs a kind beside it, and `from` must be before `to`.
        names = set(case.query or {})
        return not ("name" in names and "kind" not in names) and not {"from", "to"} <= names
    return True


def has_member(body, *names: str) -> bool:
    return isinstance(body, dict) and any(body.get(name) is not None for name in names)


def names_a_queue_twice(body) -> bool:
    if not isinstance(body, dict) or not isinstance(body.get("offsets"), list):
        return False
    queues = [
        (item.get("topic"), item.get("broker"), item.get("queue_id"))
        for item in body["offsets"]
        if isinstance(item, dict)
    ]
    return len(set(map(repr, queues))) != len(queues)


def has_integral_float(value) -> bool:
    if isinstance(value, dict):
        return any(has_integral_float(member) for member in value.values())
    if isinstance(value, list):
        return any(has_integral_float(member) for member in value)
    return isinstance(value, float) and value.is_integer()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=1) as running:
        with running.http() as http:
            assert http.put("/v1/topics/FLIGHTS", json={"read_queues": 2, "write_queues": 2}).is_success
            assert http.put("/v1/groups/PRICING", json={}).is_success
            for number in range(3):
                body = {"body": f"message {number}", "tag": "AA", "keys": ["UA1545"]}
                assert http.post("/v1/topics/FLIGHTS/messages", json=body).status_code == 201
        make_report(running.facts["postgres"])
        yield running


def make_report(postgres: str) -> None:
    """Write a run of each job as the job itself does; no scheduler runs here."""
    with psycopg.connect(postgres) as connection:
        for job in ("backlog_profile", "lag_report", "throughput_rollup"):
            [[run]] = connection.execute(
                "INSERT INTO report_runs (job, trigger, status, attempt, rows, files, started_at, finished_at)"
                """ VALUES (%s, 'schedule', 'succeeded', 1, 2, '{"html": "x.html", "parquet": "x"}', now(), now())"""
                " RETURNING id",
                (job,),
            ).fetchall()
            connection.execute("INSERT INTO report_pages VALUES (%s, '<!doctype html><title>a page</title>')", (run,))
            connection.execute("INSERT INTO report_schedules VALUES (%s, '*/5 * * * *', now())", (job,))
            if job == "lag_report":
                rows = (("topic", None, None, None), ("queue", "broker-a", 0, 7))
                connection.cursor().executemany(
                    "INSERT INTO report_lag_rows (run_id, level, group_name, topic, broker, queue_id, as_of, lag_messages,"
                    " lag_seconds, top_tags, verdict, evidence) VALUES (%s, %s, 'PRICING', 'FLIGHTS', %s, %s, now(), %s, 1.5,"
                    """ '[{"tag": "AA", "messages": 7}]', 'LAGGING', '{"samples": 4}')""",
                    [(run, *row) for row in rows],
                )


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)
def check(case, stack, session):
    facts = stack.facts
    headers = {"Authorization": f"Bearer {facts['api_key']}"}
    case.call_and_validate(base_url=facts["http"], headers=headers, session=session)
    if case.operation.path.endswith(":drain"):
        # Other operations send messages to this broker.
        session.post(f"{facts['http']}/v1/brokers/broker-a:undrain", headers=headers)


@pytest.mark.parametrize(
    "operation",
    [f"{method} {path}" for path, item in CONTRACT["paths"].items() for method in item if method in METHODS],
)
def test_the_gateway_does_what_the_contract_says(operation, schema, stack, session):
    method, path = operation.split()
    # `schema.parametrize` would build all these tests in each process that collects this file.
    test = build_operation_test(
        config=schema.config,
        operation=schema[path][method],
        test_func=check,
        given_kwargs={},
        feedback=FeedbackSources(),
    )
    try:
        test(stack=stack, session=session)
    finally:
        left_out = [mark.get(test) for mark in LEFT_OUT]
        assert not any(left_out), left_out


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/reports", {}),
        ("/v1/reports/{job}/runs", {"limit": 1}),
        ("/v1/reports/{job}/runs/{run}", {}),
        ("/v1/reports/{job}/runs/{run}/html", {}),
        ("/v1/reports/lag_report/rows", {"group": "PRICING", "limit": 1}),
        ("/v1/reports/lag_report/history", {"group": "PRICING", "topic": "FLIGHTS"}),
        ("/v1/reports/backlog_profile/rows", {"section": "age"}),
        ("/v1/reports/throughput_rollup/rows", {"unit": "day", "time_zone": "Asia/Kolkata"}),
    ],
)
def test_reports_are_shown_as_the_contract_says(path, query, schema, stack, session):
    case = schema[path]["GET"].Case(path_parameters={"job": "lag_report", "run": "latest"}, query=query)
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    answer = case.call_and_validate(base_url=stack.facts["http"], headers=headers, session=session)
    assert answer.status_code == 200


def make_alert(postgres: str) -> str:
    """Write an open alert and its event as a lag report does; return its id."""
    with psycopg.connect(postgres) as connection:
        run, alert = "00000000-0000-0000-0000-000000000005", "00000000-0000-0000-0000-000000000007"
        connection.execute(
            "INSERT INTO alert_states (group_name, topic, alert_id, verdict, opened_at, since, seen_at, seen_verdict, run_id)"
            " VALUES ('PRICING', 'FLIGHTS', %s, 'STOPPED', now(), now(), now(), 'OK', %s) ON CONFLICT DO NOTHING",
            (alert, run),
        )
        connection.execute(
            "INSERT INTO alert_events (at, alert_id, kind, group_name, topic, new_verdict, since, lag_seconds, run_id)"
            " VALUES (now(), %s, 'opened', 'PRICING', 'FLIGHTS', 'STOPPED', now(), 1.5, %s)",
            (alert, run),
        )
    return alert


def test_alerts_and_webhooks_are_shown_as_the_contract_says(schema, stack, session):
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}

    def ask(method, path, expected, **case):
        answer = (
            schema[path][method]
            .Case(**case)
            .call_and_validate(base_url=stack.facts["http"], headers=headers, session=session)
        )
        assert answer.status_code == expected, answer.text
        return answer.json() if answer.content else None

    # Other requests delete groups and topics, too.
    for path in ("groups/PRICING", "topics/FLIGHTS"):
        assert session.put(f"{stack.facts['http']}/v1/{path}", json={}, headers=headers).ok
    group = {"path_parameters": {"group": "PRICING"}, "query": {"topic": "FLIGHTS"}}
    body = {"max_lag_seconds": 1.5, "ignore": True, "ignore_until": "2126-01-01T00:00:00Z", "reason": "moves"}
    ask("PUT", "/v1/groups/{group}/objective", 201, **group, body=body, media_type="application/json")
    assert ask("GET", "/v1/groups/{group}/objective", 200, **group)["topic"] == "FLIGHTS"
    assert ask("GET", "/v1/objectives", 200, query={"group": "PRICING"})["items"]
    ask("DELETE", "/v1/groups/{group}/objective", 204, **group)
    alert = make_alert(stack.facts["postgres"])
    assert ask("GET", "/v1/alerts", 200)["items"][0]["verdict"] == "STOPPED"
    assert ask("GET", "/v1/alerts/events", 200, query={"group": "PRICING", "limit": 1})["items"][0]["alert"] == alert
    made = ask("POST", "/v1/webhooks", 201, body={"url": "https://hooks.invalid/"}, media_type="application/json")
    mine = {"path_parameters": {"id": made["id"]}}
    assert "secret" not in ask("GET", "/v1/webhooks/{id}", 200, **mine)
    tested = ask("POST", "/v1/webhooks/{id}/deliveries", 202, **mine)
    # The delivery of the alert may have come in between.
    assert tested["id"] in {each["id"] for each in ask("GET", "/v1/webhooks/{id}/deliveries", 200, **mine)["items"]}
    body = {"enabled": False}
    assert not ask("PUT", "/v1/webhooks/{id}", 200, **mine, body=body, media_type="application/json")["enabled"]
    ask("DELETE", "/v1/webhooks/{id}", 204, **mine)


@cache
def operations() -> list[Operation]:
    """Return the operations of the gateway. The pages of the console are no part of the API."""
    routes = build(GatewaySettings()).routes
    return [each for each in routes if isinstance(each, Operation) and not isinstance(each, PageOperation)]


def test_every_route_is_in_the_contract_and_the_other_way_round():
    routes = {(route.method, route.path) for route in operations()}
    documented = {
        (method.upper(), path) for path, item in CONTRACT["paths"].items() for method in item if method in METHODS
    }
    assert routes == documented


def test_query_parameters_are_those_of_the_contract():
    for route in operations():
        item = CONTRACT["paths"][route.path]
        operation = item[route.method.lower()]
        documented = {
            parameter["name"]
            for parameter in map(resolve, [*item.get("parameters", []), *operation.get("parameters", [])])
            if parameter["in"] == "query"
        }
        # Parameters of later versions are known by name, so that the gateway can reject them by name.
        assert route.query >= documented, route.path
        assert route.query - documented <= {"from", "to", "tag", "filter", "not_consumed_by", "cursor"}, route.path


def test_routes_that_take_no_body_are_those_without_a_request_body():
    empty = {(route.method, route.path) for route in operations() if route.is_empty}
    documented = {
        (method.upper(), path)
        for path, item in CONTRACT["paths"].items()
        for method, operation in item.items()
        if method in {"post", "put", "delete"} and "requestBody" not in operation
    }
    assert empty == documented


def test_public_routes_are_those_without_security():
    public = {(route.method, route.path) for route in operations() if route.is_public}
    documented = {
        (method.upper(), path)
        for path, item in CONTRACT["paths"].items()
        for method, operation in item.items()
        if method in METHODS and operation.get("security") == []
    }
    assert public == documented
    assert public == {("GET", "/livez"), ("GET", "/readyz"), ("GET", "/openapi.json"), ("POST", "/v1/session")}


def test_the_served_contract_is_current():
    contract = load()
    assert TARGET.read_text() == render(contract), "run: python -m tools.contract"
    assert contract == CONTRACT


def resolve(parameter):
    if "$ref" not in parameter:
        return parameter
    return CONTRACT["components"]["parameters"][parameter["$ref"].rpartition("/")[2]]
