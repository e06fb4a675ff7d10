"""The environment that libraries and child processes see."""

import os
import resource

from gantry.runtime.environment import cpu_count, process_environment, raise_descriptor_limit


def test_child_processes_inherit_variables_that_are_set(monkeypatch):
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    process_environment()["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    finally:
        del os.environ["SPARK_LOCAL_IP"]


def test_there_is_at_least_one_processor():
    assert 1 <= cpu_count() <= (os.cpu_count() or 1)


def test_the_limit_of_open_files_is_raised_to_its_maximum():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    assert raise_descriptor_limit() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
