"""`spark-submit`, with the command lines of docs/internals/clusters.md."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

import spark.jobs
from spark.java import find_java
from tests.support.sparkcluster import QUICK
from tests.support.sparkjobs import JOB_TIMEOUT_S, ROOT
from tests.support.stack import environment

PAGE = ROOT / "docs" / "internals" / "clusters.md"
JOBS = Path(next(iter(spark.jobs.__path__)))


def documented(master: str, **placeholders: str) -> list[str]:
    """Return the words of the command line for a kind of master.

    Args:
        master: The value of `--master` in the command line.
        placeholders: Words of the documented command line, and the words that replace them.
    """
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (found,) = (block for block in blocks if f"spark-submit --master {master} " in block)
    text = found.replace("\\\n", " ").replace("$JOBS", str(JOBS))
    for name, value in placeholders.items():
        assert name in text, f"{PAGE.name} does not say {name}"
        text = text.replace(name, value)
    program, *words = shlex.split(text)
    assert program == "spark-submit"
    return words


def submit(*words: str, extra: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run spark-submit to its end."""
    own = {
        "JAVA_HOME": find_java(os.environ).home,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": QUICK,
    }
    command = [str(Path(own["SPARK_HOME"]) / "bin" / "spark-submit"), *words]
    return subprocess.run(
        command, env=environment({**own, **extra}), capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False
    )
