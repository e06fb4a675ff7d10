"""The session itself: what was asked for is what runs."""

import sys


def test_a_session_speaks_utc_and_knows_the_data_source(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.master == "local[2]"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.read.format("gantry").option("kind", "nonsense") is not None


def test_times_leave_it_in_utc(spark):
    rows = spark.sql("SELECT timestamp '2026-11-21 09:30:00.123' AS at").toArrow().to_pylist()
    assert rows[0]["at"].isoformat() == "2026-11-21T09:30:00.123000+00:00"


def test_nothing_is_left_in_the_folder_it_was_started_in(spark):
    warehouse = spark.conf.get("spark.sql.warehouse.dir")
    assert warehouse.endswith("gantry-spark-warehouse")
