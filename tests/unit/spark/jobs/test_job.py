"""The declarations of the jobs."""

import pytest

from spark.jobs.arguments import make_parser, read_arguments
from spark.jobs.worker import job_named
from spark.page import render
from spark.scheduler.jobs import JOBS
from tests.unit.spark.page.reportrows import NOW, RUN, read


def test_there_are_three_jobs() -> None:
    assert set(JOBS) == {"lag_report", "throughput_rollup", "backlog_profile"}
    with pytest.raises(ModuleNotFoundError, match="lag"):
        job_named("lag")


@pytest.mark.parametrize("name", JOBS)
def test_each_job_with_a_schedule_has_a_module_a_table_and_a_page(name: str) -> None:
    job = job_named(name)
    assert job.name == name
    assert job.table.json <= set(job.table.columns)
    assert read(render(job.page, [], history=[], generated_at=NOW, run=RUN)) is not None


@pytest.mark.parametrize("name", JOBS)
def test_only_a_job_that_opens_alerts_has_their_arguments(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_named(name)
    parser = make_parser(job.name, job.description, window_help=job.window_help, add_arguments=job.add_arguments)
    given = ["--alert-raise-after-ms", "1"]
    if name == "lag_report":
        assert read_arguments(parser, given, {}).alerts is not None
        return
    assert read_arguments(parser, [], {}).alerts is None
    with pytest.raises(SystemExit):
        read_arguments(parser, given, {})
    assert "unrecognized arguments: --alert-raise-after-ms" in capsys.readouterr().err
