"""`python -m spark.jobs.worker FD`: does one run after the other in one Spark session, for the scheduler.

To start a JVM and Spark takes longer than a small report. So the scheduler keeps this process for a while and gives it the
next run, of whichever job. Requests and answers are lines of JSON over a connected socket, whose descriptor is FD:

    {"job": "lag_report", "arguments": ["--run", "…", "--attempt", "1", …]}
    {"code": 0}

    {"ready_for": "lag_report", "arguments": [… those that are no single run's]}
    {"code": 0}

    {"record": "FOLDER"}
    {"code": 0}

The second one opens the Spark session ahead of a run, and rehearses it; the third one makes the archive of Spark's classes
(recording.py), after which the process is good for nothing else.

The code is the exit code of the job's command line (running.py). Whatever is printed, by Spark too, goes to this process's
output and is there before the answer. A worker is only good for further runs after the code 0; it ends when the socket
does.
"""

import json
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from spark.jobs.job import Job
from spark.jobs.running import get_ready, main

Do = Callable[[str, Sequence[str]], int]


def serve(descriptor: int, do: Do, get_ready: Do, record: Callable[[str], int]) -> None:
    """Take requests until the other side hangs up.

    Args:
        descriptor: Of a connected stream socket.
        do: Does a run: given the job's name and the arguments, returns the exit code.
        get_ready: Does what can be done before a run; the same.
        record: Makes the archive of classes in a folder; returns the exit code.
    """

    def answer(request: dict[str, Any]) -> int:
        if "record" in request:
            return record(request["record"])
        if "ready_for" in request:
            return get_ready(request["ready_for"], request["arguments"])
        return do(request["job"], request["arguments"])

    # Neither the JVM nor what a job starts may hold it: the other side would never see this process end.
    with socket.socket(fileno=descriptor) as control:
        control.set_inheritable(False)
        with control.makefile("rwb") as lines:
            for line in lines:
                try:
                    code = answer(json.loads(line))
                except SystemExit as refused:
                    code = refused.code if isinstance(refused.code, int) else 1
                sys.stdout.flush()
                sys.stderr.flush()
                lines.write(json.dumps({"code": code}).encode() + b"\n")
                lines.flush()


def run_job(name: str, arguments: Sequence[str]) -> int:
    """Do a run of a job, in the Spark session of the run before where there was one; return the exit code."""
    return main(job_named(name), arguments, keeps_session=True)


def get_job_ready(name: str, arguments: Sequence[str]) -> int:
    """Open the Spark session of the runs that follow; return the exit code."""
    return get_ready(job_named(name), arguments)


def record_classes(folder: str) -> int:
    """Make the archive of Spark's classes in a folder; return the exit code."""
    code: int = import_module("spark.jobs.recording").main(folder)
    return code


def job_named(name: str) -> Job:
    """Return a job by its name."""
    job: Job = import_module(f"spark.jobs.{name}").JOB
    return job


if __name__ == "__main__":
    serve(int(sys.argv[1]), run_job, get_job_ready, record_classes)
