"""Describes a job's error in one line, and decides whether a retry may succeed."""

import re
from dataclasses import dataclass
from typing import Final

import psycopg
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException

from gantry.runtime.errors import StartupError
from spark.datasource.options import OptionError
from spark.jobs.ledger import RunRefusedError
from spark.jobs.surveying import NotSurveyedError
from spark.postgres import reason as postgres_reason
from spark.results import FencedError

FAILED: Final = 1
USAGE: Final = 2
PERMANENT: Final = 3
"""The exit code for failures that a retry can't correct before something is changed: there is no Java, a setting is
wrong."""

REASON_CHARACTERS_MAX: Final = 500
# The last line of a Python traceback. In Spark's errors it is part of a long text with frames of Python and of the JVM.
_RAISED: Final = re.compile(
    r"^(?:pyspark\.\S*: )?(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)): (?P<text>\S.*)$"
)

# The line that Py4J puts before the message of a JVM error.
_CALLED: Final = re.compile(r"^An error occurred while calling \S+$")
_STOPPED: Final = "Cannot call methods on a stopped SparkContext"
_PLANNING: Final = "[PYTHON_DATA_SOURCE_ERROR]"
"""The start of Spark's message if a data source raises an error during planning, even one that may pass."""
_LASTING: Final = frozenset({OptionError.__name__, ModuleNotFoundError.__name__, ImportError.__name__})
CLUSTER_GONE: Final = "Spark stopped: the cluster's master can't be reached, or has ended the application"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job failed, and its exit code."""

    reason: str
    code: int


def failure_of(error: Exception) -> Failure | None:
    """Return the reason and the exit code of an error; None for an unexpected error."""
    if isinstance(error, (StartupError, OptionError, RunRefusedError)):
        return Failure(first_line(str(error)), PERMANENT)
    if isinstance(error, AnalysisException):
        return Failure(raised_in(str(error)), FAILED if _may_pass(str(error)) else PERMANENT)
    if isinstance(error, FencedError):
        return Failure(str(error), PERMANENT)
    if isinstance(error, NotSurveyedError):
        return Failure(first_line(str(error)), FAILED)
    if isinstance(error, psycopg.Error):
        return Failure(postgres_reason(error), FAILED)
    if isinstance(error, (PySparkException, Py4JError)):
        return Failure(raised_in(str(error)), FAILED)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Failure(f"{where}{error.strerror or error}", FAILED)
    return None


def raised_in(text: str) -> str:
    """Return the last Python error in the text of a Spark error; the JVM's own message if there is none."""
    raised = _raised_by_python(text)
    if raised is None:
        return _jvm_message(text)
    return f"{raised['name'].rpartition('.')[2]}: {raised['text']}"[:REASON_CHARACTERS_MAX]


def _raised_by_python(text: str) -> re.Match[str] | None:
    found = [match for line in text.splitlines() if (match := _RAISED.match(line.strip()))]
    # Frames of the JVM follow those of Python, and describe Spark's internals.
    ours = [match for match in found if not match["name"].startswith(("org.", "java.", "py4j."))]
    return ours[-1] if ours else None


def _may_pass(text: str) -> bool:
    """Return whether a retry may succeed although Spark reports an invalid query, raised by a data source."""
    if not text.lstrip().startswith(_PLANNING):
        return False
    raised = _raised_by_python(text)
    return raised is not None and raised["name"].rpartition(".")[2] not in _LASTING


def _jvm_message(text: str) -> str:
    if _STOPPED in text:
        return CLUSTER_GONE
    first = first_line(text)
    if _CALLED.match(first):
        return first_line(text.strip().removeprefix(first)).removeprefix(": ")
    return first


def first_line(text: str) -> str:
    """Return the first line that is not empty."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line), "it said nothing")[:REASON_CHARACTERS_MAX]
