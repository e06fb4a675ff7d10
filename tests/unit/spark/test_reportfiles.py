"""The paths of a run's files, all of which contain its id."""

from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID

from spark.reportfiles import is_uri, log_file, page_file, parquet_folder, remove_run, write_page

RUN, OTHER = UUID(int=1), UUID(int=2)
# Still the 20th in UTC.
EARLY = datetime(2026, 11, 21, 1, tzinfo=timezone(timedelta(hours=8)))


def write_all(output: str, run: UUID) -> None:
    write_page(page_file(output, "lag_report", run), "<p>é</p>")
    log_file(output, "lag_report", run).write_text("said")
    folder = parquet_folder(output, "lag_report", run, EARLY)
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"PAR1")


def names(output: Path) -> list[str]:
    return sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())


def test_files_are_where_the_documentation_says(tmp_path: Path) -> None:
    write_all(str(tmp_path), RUN)
    assert names(tmp_path) == [
        f"lag_report/{RUN}.html",
        f"lag_report/{RUN}.log",
        f"lag_report/day=2026-11-20/run={RUN}/part-0.parquet",
    ]
    assert page_file(str(tmp_path), "lag_report", RUN).read_text(encoding="utf-8") == "<p>é</p>"


def test_a_run_is_removed_and_no_other(tmp_path: Path) -> None:
    for run in (RUN, OTHER):
        write_all(str(tmp_path), run)
    before = names(tmp_path)
    remove_run(str(tmp_path), "lag_report", RUN, with_log=False)
    assert names(tmp_path) == [name for name in before if str(RUN) not in name or name.endswith(".log")]
    remove_run(str(tmp_path), "lag_report", RUN, with_log=True)
    assert names(tmp_path) == [name for name in before if str(RUN) not in name]
    remove_run(str(tmp_path), "lag_report", OTHER, with_log=True)
    assert not list((tmp_path / "lag_report").iterdir()), "days without a run go as well"
    remove_run(str(tmp_path), "lag_report", OTHER, with_log=True)


def test_a_uri_is_not_a_folder() -> None:
    for uri in ("s3a://bucket/reports", "hdfs:///reports", "file:/mnt/reports", "abfs://c@a.dfs/reports"):
        assert is_uri(uri)
    for folder in ("/var/lib/gantry", ".gantry/reports", "a b/c:d", "./s3a:/x"):
        assert not is_uri(folder)
