"""A lag report of as many rows as is said: python -m tests.integration.spark.largejob ROWS [ARGUMENTS OF A JOB]…

Prints how much memory it took more at the end, at most, than before the job computed anything, in KiB:

    {"rows": 8000, "python": 51200, "heap": 190000}
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark.jobs import running
from spark.jobs.job import JobContext
from spark.jobs.lag_report import JOB
from spark.jobs.running import main

QUEUES = 16
"""The number of queues of a group and topic. Each has a row, and all of them together have one more."""
# As wide as real rows are: texts of three sentences, evidence of thirty numbers.
EVIDENCE = json.dumps({f"number_of_something_{n}": n * 1_000 for n in range(30)})
COLUMNS = {
    "level": f"if(id % {QUEUES + 1} = 0, 'topic', 'queue')",
    "group": f"concat('group-', id div {QUEUES + 1})",
    "topic": "'TOPIC'",
    "broker": f"if(id % {QUEUES + 1} = 0, null, 'broker-a')",
    "queue_id": f"if(id % {QUEUES + 1} = 0, null, int(id % {QUEUES + 1} - 1))",
    "as_of": "timestamp '2026-11-21 12:00:00Z'",
    "lag_messages": "id % 1000",
    "lag_seconds": "double(id % 777)",
    "oldest_unconsumed_at": "timestamp '2026-11-21 11:00:00Z'",
    **dict.fromkeys(("in_rate", "out_rate", "drain_eta_s", "drain_eta_low_s", "drain_eta_high_s"), "double(id)"),
    "retention_left_s": "double(id)",
    "skew": "double(1)",
    "top_tags": "array(named_struct('tag', 'AA', 'messages', id), named_struct('tag', 'BB', 'messages', id))",
    "clients": "int(3)",
    "verdict": "if(id % 3 = 0, 'LAGGING', 'OK')",
    "cause": "concat('Messages come in faster than they are consumed, for ', id, ' seconds. Nothing else is known.')",
    "next_step": "if(id % 3 = 0, concat('Start more consumers of group-', id, ', or make them faster.'), null)",
    "evidence": f"'{EVIDENCE}'",
}


def compute(work: JobContext) -> DataFrame:
    """Return the rows."""
    rows = work.spark.range(ROWS, numPartitions=8)
    return rows.selectExpr(*(f"{expression} AS `{name}`" for name, expression in COLUMNS.items()))


def peak_kib() -> int:
    """Return the most memory that this process has had."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def heap_kib(context: Any) -> int:
    """Return the most memory that objects of the JVM have had, all of them at once."""
    beans = context._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    return sum(bean.getPeakUsage().getUsed() for bean in beans if bean.getType().name() == "HEAP") // 1_024


class Measured:
    """A session that says, before it is stopped, how large its JVM has become."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def stop(self) -> None:
        """Look, and stop."""
        FOUND["heap"] = heap_kib(self._session.sparkContext)
        self._session.stop()


if __name__ == "__main__":
    ROWS = int(sys.argv[1])
    FOUND: dict[str, int] = {"rows": ROWS}
    opened = running.open_session

    def open_measured(app: str, **rest: Any) -> Any:
        """Open the session that the job asks for, and begin to measure."""
        session = Measured(opened(app, **rest))
        # Every job loads this.
        session._session.range(10).toArrow()
        FOUND["before"] = peak_kib()
        return session

    running.open_session = open_measured
    code = main(replace(JOB, compute=compute, surveys=False, finish=None), sys.argv[2:])
    FOUND["python"] = peak_kib() - FOUND.pop("before")
    FOUND["arrow"] = pa.default_memory_pool().max_memory() // 1_024
    print(json.dumps(FOUND))
    sys.exit(code)
