"""Records: rows of plain tables as typed values."""

from dataclasses import dataclass, fields

import pytest
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData

from services.gateway.db.alerts import AlertEvent, OpenAlert
from services.gateway.db.alerttables import ALERT_EVENTS, ALERT_STATES, LAG_OBJECTIVES, WEBHOOK_DELIVERIES, WEBHOOKS
from services.gateway.db.objectives import Objective
from services.gateway.db.records import find_one, read_all
from services.gateway.db.reportrows import BacklogRow, LagRow, ThroughputBucket
from services.gateway.db.reports import Run, Schedule
from services.gateway.db.reporttables import (
    REPORT_BACKLOG_ROWS,
    REPORT_LAG_ROWS,
    REPORT_RUNS,
    REPORT_SCHEDULES,
    REPORT_THROUGHPUT,
)
from services.gateway.db.webhooks import Delivery, Webhook


@dataclass(frozen=True, slots=True)
class Pair:
    name: str
    count: int


def result(*rows):
    return IteratorResult(SimpleResultMetaData(["count", "other", "name"]), iter(rows))


def test_a_record_takes_the_columns_of_its_fields_whatever_their_order():
    assert read_all(Pair, result((2, None, "a"), (3, None, "b"))) == [Pair("a", 2), Pair("b", 3)]


def test_at_most_one_record_is_found():
    assert find_one(Pair, result()) is None
    assert find_one(Pair, result((2, None, "a"))) == Pair("a", 2)
    with pytest.raises(AssertionError, match="2 rows"):
        find_one(Pair, result((2, None, "a"), (3, None, "b")))


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (OpenAlert, ALERT_STATES),
        (AlertEvent, ALERT_EVENTS),
        (Webhook, WEBHOOKS),
        (Delivery, WEBHOOK_DELIVERIES),
        (Objective, LAG_OBJECTIVES),
        (Run, REPORT_RUNS),
        (Schedule, REPORT_SCHEDULES),
        (LagRow, REPORT_LAG_ROWS),
        (BacklogRow, REPORT_BACKLOG_ROWS),
        (ThroughputBucket, REPORT_THROUGHPUT),
    ],
)
def test_each_field_of_a_record_is_a_column_of_its_table(kind, table):
    assert {field.name for field in fields(kind)} <= set(table.c.keys())
