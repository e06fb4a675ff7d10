"""Benchmarks reports: Spark's reads from a broker and from a store, the time of reports, and their effect on sends.

A separate stack with one broker holds 2 million messages of 1 KiB in 64 queues. The profiled group has consumed none of
them. Jobs run as under the scheduler, in separate processes, including the start of the JVM. Reads with the data source
share one session that is open already. A small report is made by the scheduler of another stack, on request and by its
schedule. Requests come over HTTP: the first one starts a worker, and the others find the worker with its session.
"""

import contextlib
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvloop

from benchmarks import frames
from benchmarks.bench_http import CREATED, address_and_key, single_body
from benchmarks.load import frames_closed_loop, http_open_loop
from benchmarks.report import Row
from benchmarks.stack import ROOT, anonymous_mib, scratch
from gantry.remoting.codes import RequestCode
from tests.support.stack import Stack

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader

TOPIC, GROUP = "BacklogTopic", "GID_backlog"
QUEUES, MESSAGES, BATCH = 64, 2_000_000, 100
WIDE_TOPIC, WIDE_GROUPS, WIDE_QUEUES = "WideTopic", 2_000, 16
SMALL_TOPIC, SMALL_GROUPS, SMALL_QUEUES = "SmallTopic", 24, 16
SMALL_MESSAGES, SMALL_WARM_RUNS = 32_000, 3
RECORD_TIMEOUT_S = 300.0
COLD_S_MAX, WARM_S_MAX = 12.0, 5.0
REPORT_TIMEOUT_S, REPORT_POLL_S = 240.0, 0.05
PROFILE_S_MAX, PROFILE_MIB_MAX = 60.0, 2_048.0
FROM_BROKER_MIN, FROM_STORE_MIN = 80_000, 150_000
OFFSETS_S_MAX = 15.0
GROWTH = 4
SENDS_PER_S, DISTURBED_MAX = 1_000, 2.0
MASTER = "local[2]"
IN_FLIGHT = 8


def _fill(stack: Stack, messages: int, *, topic: str = TOPIC, queues: int = QUEUES) -> None:
    """Send batches to all queues in turn."""
    address = _broker(stack)
    requests = messages // BATCH
    uvloop.run(
        frames_closed_loop(
            address,
            lambda number: frames.batch_frame(topic, number, messages=BATCH, queues=queues),
            in_flight=IN_FLIGHT,
            requests=requests,
        )
    )


def _commit(stack: Stack, groups: list[str], topic: str, queues: int) -> None:
    """Create groups and commit offset 0 for them on every queue, so that they have consumed nothing."""
    made = [
        frames.frame(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, number, json.dumps({"groupName": group}).encode()
        )
        for number, group in enumerate(groups)
    ]
    _send_frames(stack, made, in_flight=IN_FLIGHT)
    made = [
        frames.frame(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": "0"},
            number * queues + queue,
        )
        for number, group in enumerate(groups)
        for queue in range(queues)
    ]
    _send_frames(stack, made, in_flight=IN_FLIGHT * 8)


def _send_frames(stack: Stack, made: list[bytes], *, in_flight: int) -> None:
    result = uvloop.run(frames_closed_loop(_broker(stack), made.__getitem__, in_flight=in_flight, requests=len(made)))
    assert result.failures == 0, f"{result.failures} of {result.requests} requests failed"


def _broker(stack: Stack) -> tuple[str, int]:
    host, port = stack.facts["brokers"][0]["address"].rsplit(":", 1)
    return host, int(port)


def _put_topic(stack: Stack, topic: str, queues: int) -> None:
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    config = {"read_queues": queues, "write_queues": queues}
    httpx.put(f"{stack.facts['http']}/v1/topics/{topic}", json=config, headers=headers).raise_for_status()


@contextlib.contextmanager
def _job(stack: Stack, folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job while the block runs. Its output goes to a log, which is shown if the job fails."""
    command = [sys.executable, "-m", f"spark.jobs.{name}", "--data", str(stack.directory), "--master", MASTER]
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [*command, "--output", str(folder / "reports"), *arguments], stdout=output, stderr=output, cwd=ROOT
        )
    try:
        yield child
    finally:
        child.terminate()
        child.wait()


def _finish(child: subprocess.Popen[bytes], folder: Path, name: str) -> tuple[float, float]:
    """Wait for a job; return the seconds from now, and the peak of anonymous memory of its processes in MiB."""
    began, peak = time.perf_counter(), 0.0
    while child.poll() is None:
        peak = max(peak, _family_mib(child.pid))
        time.sleep(0.2)
    if child.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{(folder / f'{name}.log').read_text(errors='replace')[-3000:]}")
    return time.perf_counter() - began, peak


def _family_mib(pid: int) -> float:
    total, waiting = 0.0, [pid]
    while waiting:
        member = waiting.pop()
        with contextlib.suppress(OSError, StopIteration):
            total += anonymous_mib(member)
            for thread in Path(f"/proc/{member}/task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
    return total


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    messages = QUEUES * BATCH if tiny else MESSAGES
    yield from _small_reports(tiny=tiny)
    with Stack(brokers=1) as stack, scratch("spark") as folder:
        _put_topic(stack, TOPIC, QUEUES)
        _fill(stack, messages)
        _commit(stack, [GROUP], TOPIC, QUEUES)
        yield from _profile(stack, folder, messages)
        yield from _from_broker(stack, messages, tiny=tiny)
        store = Path(stack.facts["brokers"][0]["store"])
        yield _growth(stack, folder, tiny=tiny)
        yield from _disturbance(stack, folder, tiny=tiny)
        stack.terminate()
        yield from _from_store(store, messages)


def _small_reports(*, tiny: bool) -> Iterator[Row]:
    """Measure a report of some hundred rows in four cases.

    The cases are: the first one on a machine, one by a worker that starts, one by a worker that waits, and one by
    schedule.
    """
    with scratch("classes") as archives:
        # A tiny run uses the archive of the tests, if there is one, because building an archive takes half a minute.
        archived = {} if tiny else {"GANTRY_SCHEDULER_CLASS_ARCHIVE": str(archives)}
        first = math.nan
        if not tiny:
            with _small_stack(archived) as stack:
                first, _ = ask_for_report(stack)
                stack.wait_for(
                    lambda: list(archives.glob("spark-*.jsa")), "to archive classes", timeout_s=RECORD_TIMEOUT_S
                )
        with _small_stack(archived) as stack:
            cold, made = ask_for_report(stack)
            warm = [ask_for_report(stack)[0] for _ in range(1 if tiny else SMALL_WARM_RUNS)]
        rows = made["rows"]
        assert rows == SMALL_GROUPS * (SMALL_QUEUES + 1), f"{rows} rows"
        name = f"small report ({rows} rows)"
        yield Row(
            f"{name}, cold",
            cold,
            "s",
            "" if tiny else "first on a machine",
            None if tiny else first,
            f"≤ {COLD_S_MAX:.0f} s",
            cold <= COLD_S_MAX,
        )
        # The median, because other load on the machine may affect one of them.
        middle = sorted(warm)[len(warm) // 2]
        yield Row(f"{name}, warm", middle, "s", "cold", cold, f"≤ {WARM_S_MAX:.0f} s", middle <= WARM_S_MAX)
        if not tiny:
            scheduled = _scheduled_report(archived)
            aim = f"≤ {WARM_S_MAX:.0f} s"
            yield Row(f"{name}, by schedule", scheduled, "s", "cold", cold, aim, scheduled <= WARM_S_MAX)


@contextlib.contextmanager
def _small_stack(environment: Mapping[str, str], *, cron: str = "") -> Iterator[Stack]:
    """Run a stack with groups that have a backlog, and a scheduler that makes lag reports by `cron` and on request."""
    quiet = {f"GANTRY_SCHEDULER_{job.upper()}_CRON": "" for job in ("throughput_rollup", "backlog_profile")}
    variables = {**quiet, "GANTRY_SCHEDULER_LAG_REPORT_CRON": cron, "GANTRY_SCHEDULER_MASTER": MASTER, **environment}
    with Stack(brokers=1, scheduler=True, environment=variables) as stack:
        _put_topic(stack, SMALL_TOPIC, SMALL_QUEUES)
        _fill(stack, SMALL_MESSAGES, topic=SMALL_TOPIC, queues=SMALL_QUEUES)
        _commit(stack, [f"GID_small_{number}" for number in range(SMALL_GROUPS)], SMALL_TOPIC, SMALL_QUEUES)
        yield stack


def _scheduled_report(environment: Mapping[str, str]) -> float:
    """Wait for a scheduled report; return the seconds from its due time until it can be read."""
    # The schedule is due in two minutes, so that the stack has started before the lead time of the worker begins.
    due = time.gmtime(time.time() + 120)
    with _small_stack(environment, cron=f"{due.tm_min} {due.tm_hour} * * *") as stack, stack.http() as client:
        began = time.perf_counter()
        while True:
            runs = client.get("/v1/reports/lag_report/runs").raise_for_status().json()["items"]
            if runs and runs[0]["status"] not in {"queued", "running"}:
                break
            assert time.perf_counter() - began < REPORT_TIMEOUT_S, f"no report was made: {runs}"
            time.sleep(REPORT_POLL_S)
    assert runs[0]["status"] == "succeeded", runs[0]["error"]
    moments = (datetime.fromisoformat(runs[0][name]) for name in ("finished_at", "created_at"))
    return (next(moments) - next(moments)).total_seconds()


def ask_for_report(stack: Stack) -> tuple[float, dict[str, Any]]:
    """Request a lag report over HTTP; return the seconds until it can be read, and its run."""
    with stack.http() as client:
        began = time.perf_counter()
        run = client.post("/v1/reports/lag_report/runs", json={}).raise_for_status().json()
        while run["status"] in {"queued", "running"}:
            assert time.perf_counter() - began < REPORT_TIMEOUT_S, f"the report is {run['status']}"
            time.sleep(REPORT_POLL_S)
            run = client.get(f"/v1/reports/lag_report/runs/{run['id']}").raise_for_status().json()
        seconds = time.perf_counter() - began
    assert run["status"] == "succeeded", run["error"]
    return seconds, run


def _profile(stack: Stack, folder: Path, messages: int) -> Iterator[Row]:
    with _job(stack, folder, "backlog_profile", "--group", GROUP) as child:
        seconds, peak = _finish(child, folder, "backlog_profile")
    name = f"backlog_profile of {messages:,} messages"
    aim = f"≤ {PROFILE_S_MAX:.0f} s"
    yield Row(name, seconds, "s", "", None, aim, seconds <= PROFILE_S_MAX)
    aim = f"≤ {PROFILE_MIB_MAX:,.0f} MiB"
    yield Row("its memory, JVM and workers", peak, "MiB", "", None, aim, peak <= PROFILE_MIB_MAX)


@contextlib.contextmanager
def _reader() -> Iterator["DataFrameReader"]:
    # Other benchmarks run without Java.
    from spark.session import open_session  # noqa: PLC0415

    session = open_session("bench", master=MASTER)
    try:
        yield session.read.format("gantry")
    finally:
        session.stop()


def _from_broker(stack: Stack, messages: int, *, tiny: bool) -> Iterator[Row]:
    """Read the broker's messages, and the offsets of many groups."""
    groups = _wide_groups(tiny=tiny)
    _put_topic(stack, WIDE_TOPIC, WIDE_QUEUES)
    _commit(stack, groups, WIDE_TOPIC, WIDE_QUEUES)
    pulled = _pulled(stack, messages)
    with _reader() as reader:
        reader.option("namesrv", stack.facts["namesrv"][0])
        began = time.perf_counter()
        rows = (
            reader.option("kind", "offsets").option("topics", WIDE_TOPIC).load().where("committed_offset = 0").count()
        )
        seconds = time.perf_counter() - began
        assert rows == len(groups) * WIDE_QUEUES, f"{rows} rows"
        name = f"offsets of {len(groups):,} groups x {WIDE_QUEUES} queues"
        yield Row(name, seconds, "s", "", None, f"≤ {OFFSETS_S_MAX:.0f} s", seconds <= OFFSETS_S_MAX)
        rate = _read(reader, messages)
        aim = f"≥ {FROM_BROKER_MIN:,}/s"
        yield Row("messages, broker", rate, "messages/s", "bare pull", pulled, aim, rate >= FROM_BROKER_MIN)


def _from_store(store: Path, messages: int) -> Iterator[Row]:
    """Read the messages of a store without a running broker."""
    copied = _copied(store / "commitlog", messages)
    with _reader() as reader:
        rate = _read(reader.option("path", str(store)), messages)
        aim = f"≥ {FROM_STORE_MIN:,}/s"
        yield Row("messages, store directory", rate, "messages/s", "bytes read", copied, aim, rate >= FROM_STORE_MIN)


def _read(reader: "DataFrameReader", messages: int) -> float:
    """Read every body once; return messages per second. An earlier read of a part warms up."""
    from pyspark.sql import functions as fn  # noqa: PLC0415

    frame = reader.option("kind", "messages").option("topics", TOPIC).load()
    frame.where(f"queue_id < {QUEUES // 4}").agg(fn.sum(fn.length("body"))).collect()
    began = time.perf_counter()
    count, size = frame.agg(fn.count(fn.lit(1)), fn.sum(fn.length("body"))).collect()[0]
    assert (count, size) == (messages, messages * len(frames.BODY)), f"read {count} messages, {size} bytes"
    return messages / (time.perf_counter() - began)


def _pulled(stack: Stack, messages: int) -> float:
    """Pull the same messages, 32 at a time, without reading them; return messages per second."""
    per_queue = messages // QUEUES // 32
    result = uvloop.run(
        frames_closed_loop(
            _broker(stack),
            lambda number: frames.pull_frame(TOPIC, number, number // QUEUES * 32, queue_id=number % QUEUES),
            in_flight=IN_FLIGHT,
            requests=per_queue * QUEUES,
        )
    )
    return result.rate * 32


def _copied(log: Path, messages: int) -> float:
    """Read the bytes of the CommitLog without using them; return messages per second."""
    began = time.perf_counter()
    for path in sorted(log.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
    return messages / (time.perf_counter() - began)


def _growth(stack: Stack, folder: Path, *, tiny: bool) -> Row:
    """Compare a report on many queues with a report on a part of them."""
    groups = _wide_groups(tiny=tiny)

    def seconds(count: int) -> float:
        chosen = [word for group in groups[:count] for word in ("--group", group)]
        with _job(stack, folder, "lag_report", *chosen) as child:
            return _finish(child, folder, "lag_report")[0]

    whole = seconds(len(groups))
    # In a tiny run, a second report would start one more JVM and prove nothing more.
    part = whole if tiny else seconds(len(groups) // GROWTH)
    queues = len(groups) * WIDE_QUEUES
    name = f"lag_report of {queues:,} group queues"
    return Row(name, whole, "s", f"of {queues // GROWTH:,}", part, f"≤ {GROWTH} x", whole <= GROWTH * part)


def _wide_groups(*, tiny: bool) -> list[str]:
    return [f"GID_wide_{number}" for number in range(20 if tiny else WIDE_GROUPS)]


def _disturbance(stack: Stack, folder: Path, *, tiny: bool) -> Iterator[Row]:
    """Measure the latency of sends at a fixed rate, alone and while lag_report runs repeatedly."""
    address, key = address_and_key(stack)
    path = f"/v1/topics/{WIDE_TOPIC}/messages"
    made = [frames.http_request(path, key, single_body(number)) for number in range(1000)]

    def p99() -> float:
        result = uvloop.run(
            http_open_loop(
                address,
                lambda number: made[number % 1000],
                connections=64,
                rate=SENDS_PER_S,
                requests=200 if tiny else 20 * SENDS_PER_S,
                success=CREATED,
            )
        )
        assert result.failures == 0, f"{result.failures} sends failed"
        return result.percentile_ms(99)

    p99()
    alone = p99()
    done = threading.Event()

    def report() -> None:
        while not done.is_set():
            with _job(stack, folder, "lag_report", "--group", GROUP) as child:
                while child.poll() is None and not done.is_set():
                    time.sleep(0.1)

    reporting = threading.Thread(target=report)
    reporting.start()
    try:
        disturbed = p99()
    finally:
        done.set()
        reporting.join()
    name = f"send, HTTP, p99 at {SENDS_PER_S:,}/s while lag_report runs"
    ratio = disturbed / alone
    yield Row(name, disturbed, "ms", "alone", alone, f"≤ {DISTURBED_MAX} x", ratio <= DISTURBED_MAX)
