"""`python -m spark.jobs.worker FD`: does one run after the other in one Spark session, for the scheduler.

Starting a JVM and Spark takes longer than a small report. So the scheduler keeps this process for some time and gives
it the next run, of any job. Requests and answers are lines of JSON over a connected socket with the descriptor FD:

    {"job": "lag_report", "arguments": ["--run", "…", "--attempt", "1", …]}
    {"code": 0}

    {"ready_for": "lag_report", "arguments": [… those that all runs share]}
    {"code": 0}

    {"record": "FOLDER"}
    {"code": 0}

The second request opens the Spark session ahead of a run, and rehearses the job. The third one makes the archive of
Spark's classes (recording.py); after that, the process can't do anything else.

The code is the exit code of the job's command line (running.py). All output, also Spark's, goes to this process's
output, and is written before the answer. Only after the code 0 can a worker do further runs. It ends when the socket is
closed.
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
    """Answer requests until the other side closes the connection.

    Args:
        descriptor: The descriptor of a connected stream socket.
        do: Does a run, given the job's name and the arguments; returns the exit code.
        get_ready: Prepares a run, with the same arguments and result.
        record: Makes the archive of classes in a folder; returns the exit code.
    """

    def answer(request: dict[str, Any]) -> int:
        if "record" in request:
            return record(request["record"])
        if "ready_for" in request:
            return get_ready(request["ready_for"], request["arguments"])
        return do(request["job"], request["arguments"])

    # Child processes must not inherit the socket, or the scheduler would not see that this process has ended.
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
    """Do a run of a job, in the Spark session of the previous run if there was one; return the exit code."""
    return main(job_named(name), arguments, keeps_session=True)


def get_job_ready(name: str, arguments: Sequence[str]) -> int:
    """Open the Spark session for the next runs, and rehearse the job; return the exit code."""
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
