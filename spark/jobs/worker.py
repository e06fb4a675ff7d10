"""`python -m spark.jobs.worker FD`: does one run after the other in one Spark session, for the scheduler.

To start a JVM and Spark takes longer than a small report. So the scheduler keeps this process for a while and gives it the
next run, of whichever job. Requests and answers are lines of JSON over a connected socket, whose descriptor is FD:

    {"job": "lag_report", "arguments": ["--run", "…", "--attempt", "1", …]}
    {"code": 0}

The code is the exit code of the job's command line (running.py). Whatever is printed, by Spark too, goes to this process's
output and is there before the answer. A worker is only good for further runs after the code 0; it ends when the socket
does.
"""

import json
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from spark.jobs.running import main

Do = Callable[[str, Sequence[str]], int]


def serve(descriptor: int, do: Do) -> None:
    """Take requests until the other side hangs up.

    Args:
        descriptor: Of a connected stream socket.
        do: Does a run: given the job's name and the arguments, returns the exit code.
    """
    # Neither the JVM nor what a job starts may hold it: the other side would never see this process end.
    with socket.socket(fileno=descriptor) as control:
        control.set_inheritable(False)
        with control.makefile("rwb") as lines:
            for line in lines:
                request = json.loads(line)
                try:
                    code = do(request["job"], request["arguments"])
                except SystemExit as refused:
                    code = refused.code if isinstance(refused.code, int) else 1
                sys.stdout.flush()
                sys.stderr.flush()
                lines.write(json.dumps({"code": code}).encode() + b"\n")
                lines.flush()


def run_job(name: str, arguments: Sequence[str]) -> int:
    """Do a run of a job, in the Spark session of the run before where there was one; return the exit code."""
    return main(import_module(f"spark.jobs.{name}").JOB, arguments, keeps_session=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), run_job)
