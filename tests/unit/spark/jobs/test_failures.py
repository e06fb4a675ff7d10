"""A job's errors, each in one line."""

from uuid import UUID

import psycopg
import pytest
from pyspark.errors import AnalysisException, PySparkRuntimeError

from gantry.runtime.errors import StartupError
from spark.jobs.failures import CLUSTER_GONE, FAILED, PERMANENT, Failure, failure_of, raised_in
from spark.jobs.ledger import RunRefusedError
from spark.jobs.surveying import NotSurveyedError
from spark.results import FencedError

WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "spark/datasource/kinds/offsets.py", line 61, in partitions
    found = run(self._options, survey)
gantry.client.errors.NoNameServerError: no name server answers: 127.0.0.1:39876: connection refused

	at org.apache.spark.sql.execution.python.PythonPlannerRunner.runInPython(PythonPlannerRunner.scala:136)
Caused by: org.apache.spark.SparkException: Job aborted: Something
"""


def test_the_error_of_a_worker_is_found_among_all_frames() -> None:
    assert raised_in(WORKER) == "NoNameServerError: no name server answers: 127.0.0.1:39876: connection refused"


def test_a_text_without_an_error_line_gives_its_first_line() -> None:
    assert raised_in("\n\n Java heap space \n\tat java.lang.X") == "Java heap space"
    assert raised_in("") == "it said nothing"


def test_an_error_of_the_jvm_alone() -> None:
    assert (
        raised_in("org.apache.spark.SparkException: Job aborted\n\tat x")
        == "org.apache.spark.SparkException: Job aborted"
    )


def test_the_name_of_the_failed_call_is_left_out() -> None:
    text = """An error occurred while calling o54.load.
: java.io.IOException: Cannot run program "/opt/none/bin/python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
Caused by: java.io.IOException: error=2, No such file or directory
"""
    expected = 'java.io.IOException: Cannot run program "/opt/none/bin/python": error=2, No such file or directory'
    assert raised_in(text) == expected
    assert raised_in("An error occurred while calling o54.load.") == "it said nothing"


def test_an_unreachable_master_is_named() -> None:
    text = """An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.
: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.
This stopped SparkContext was created at:
"""
    assert raised_in(text) == CLUSTER_GONE


@pytest.mark.parametrize(
    ("raised", "reason", "code"),
    [
        (
            "gantry.client.errors.NoAnswerError: 10.0.0.1:9876: timed out",
            "NoAnswerError: 10.0.0.1:9876: timed out",
            FAILED,
        ),
        ("ModuleNotFoundError: No module named 'numpy'", "ModuleNotFoundError: No module named 'numpy'", PERMANENT),
        ("spark.datasource.options.OptionError: from: no time", "OptionError: from: no time", PERMANENT),
    ],
)
def test_some_errors_of_planning_are_worth_a_retry(raised: str, reason: str, code: int) -> None:
    text = f"""[PYTHON_DATA_SOURCE_ERROR] Failed to generate read partitions: Traceback (most recent call last):
  File "spark/datasource/kinds/offsets.py", line 29, in partitions
{raised}
 SQLSTATE: 38000"""
    assert failure_of(AnalysisException(text)) == Failure(reason, code)


def test_a_long_error_is_shortened_to_a_line() -> None:
    assert len(raised_in("a.BError: " + "x" * 10_000)) == 500


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (StartupError("Spark needs Java: install one"), Failure("Spark needs Java: install one", PERMANENT)),
        (RunRefusedError("run x is queued"), Failure("run x is queued", PERMANENT)),
        (AnalysisException("no column x"), Failure("no column x", PERMANENT)),
        (FencedError(f"run {UUID(int=1)}"), Failure(f"run {UUID(int=1)}", PERMANENT)),
        (PySparkRuntimeError("first\nsecond"), Failure("first", FAILED)),
        (OSError(28, "No space left on device", "/out/x"), Failure("/out/x: No space left on device", FAILED)),
    ],
)
def test_errors_are_temporary_or_permanent(error: Exception, failure: Failure) -> None:
    assert failure_of(error) == failure


def test_postgres_is_worth_another_attempt() -> None:
    found = failure_of(psycopg.OperationalError("connection refused\nIs the server running?"))
    assert found == Failure("Postgres can't be reached: connection refused", FAILED)


def test_a_bug_of_ours_is_in_neither_class() -> None:
    assert failure_of(KeyError("x")) is None


def test_brokers_that_could_not_be_surveyed_may_answer_the_next_attempt() -> None:
    reason = "SurveyError: no broker is registered with the name servers"
    assert failure_of(NotSurveyedError(reason)) == Failure(reason, FAILED)
