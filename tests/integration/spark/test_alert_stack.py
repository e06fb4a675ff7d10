"""An objective with a known overrun on a real stack: a broker is silent, and the alert is opened nevertheless."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.integration.spark.test_reports_stack import finished, send
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(420)


@pytest.fixture
def stack() -> Iterator[Stack]:
    settings = {
        f"GANTRY_SCHEDULER_{job.upper()}_CRON": "" for job in ("lag_report", "throughput_rollup", "backlog_profile")
    }
    settings["GANTRY_SCHEDULER_ALERT_RAISE_AFTER_MS"] = "0"
    with Stack(brokers=2, environment=settings, scheduler=True) as running:
        yield running


def test_a_group_whose_known_queues_are_over_its_objective_is_an_alert_while_a_broker_is_silent(stack: Stack) -> None:
    with stack.http() as client:
        assert client.put("/v1/topics/PARTLY", json={"read_queues": 1, "write_queues": 1}).status_code in {200, 201}
        assert client.put("/v1/groups/PARTIAL", json={}).status_code in {200, 201}
        send(client, "PARTLY", 10)
        places = [
            {"topic": "PARTLY", "broker": broker, "queue_id": 0, "offset": "0"} for broker in ("broker-a", "broker-b")
        ]
        answer = client.put("/v1/groups/PARTIAL/offsets", json={"offsets": places})
        assert answer.status_code == 200, answer.text
        objective = client.put("/v1/groups/PARTIAL/objective", json={"max_lag_messages": 5})
        assert objective.status_code == 201, objective.text
        silent = stack.pid_of("broker-b")
        os.kill(silent, signal.SIGSTOP)
        try:
            asked = client.post("/v1/reports/lag_report/runs", json={})
            run = finished(client, stack, asked.json()["id"])
        finally:
            os.kill(silent, signal.SIGCONT)
        assert (run["status"], run["error"]) == ("succeeded", None)
        rows = client.get("/v1/reports/lag_report/rows", params={"group": "PARTIAL"}).json()["items"]
        [event] = client.get("/v1/alerts/events", params={"group": "PARTIAL"}).json()["items"]
        [alert] = client.get("/v1/alerts", params={"group": "PARTIAL"}).json()["items"]
    (topic,) = [row for row in rows if row["level"] == "topic"]
    assert (topic["verdict"], topic["lag_messages"]) == ("OVER_OBJECTIVE", None)
    assert topic["evidence"]["known_lag_messages"] == 10
    assert (event["kind"], event["new_verdict"], event["lag_messages"]) == ("opened", "OVER_OBJECTIVE", None)
    assert event["cause"].startswith("1 of 2 queues can't be judged: ")
    assert event["cause"].endswith("It is over its objective: 10 messages behind, 5 allowed.")
    assert (alert["id"], alert["verdict"]) == (event["alert"], "OVER_OBJECTIVE")
