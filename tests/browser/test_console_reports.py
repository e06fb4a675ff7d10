"""Reports in the console, over a real stack with its scheduler: run one, read its rows, plan it, and open its page."""

import time
from collections.abc import Iterator

import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

GROUP = "billing"
RUN_S = 300.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(scheduler=True) as running:
        fall_behind(running)
        yield running


def fall_behind(stack: Stack) -> None:
    """Make a group that has consumed a part of a topic, and is gone."""
    with stack.http() as client:
        client.put("/v1/topics/orders", json={}).raise_for_status()
        client.put(f"/v1/groups/{GROUP}", json={}).raise_for_status()
        for number in range(20):
            client.post("/v1/topics/orders/messages", json={"body": str(number), "tag": "eu"}).raise_for_status()
        wanted = {"topic": "orders", "max": 4, "wait": "5s"}
        client.post(f"/v1/groups/{GROUP}/messages:pull", json=wanted).raise_for_status()


def test_a_report_is_run_read_and_planned(console: ConsolePage, stack: Stack) -> None:
    console.enter("/reports")
    console.click("link", "Lag")
    console.wait_until("location.pathname === '/console/reports/lag_report'")
    console.click("button", "Run now")
    console.wait_for_text("Lag: the run is queued.")
    wait_for_success(stack, "lag_report")
    console.wait_for_text(GROUP)
    console.click("button", GROUP)
    console.wait_for_text("Evidence")
    console.wait_for_text("broker-a / 0")
    assert console.violations() == []
    console.click("button", "Close")

    console.click("tab", "Runs")
    console.wait_for_text("By hand")

    console.click("button", "Change schedule")
    console.type_into("Cron expression", "61 * * * *")
    console.click("button", "Save schedule")
    console.wait_for_text("/cron: ")
    console.type_into("Cron expression", "0 8 * * 1-5")
    console.type_into("Time zone", "Europe/Berlin")
    console.click("button", "Save schedule")
    console.wait_for_text("The schedule is saved.")
    console.wait_for_text("Set by user:admin")
    with stack.http() as client:
        items = client.get("/v1/reports").json()["items"]
        set_over_rest = next(item["schedule_set"] for item in items if item["job"] == "lag_report")
    assert (set_over_rest["cron"], set_over_rest["time_zone"]) == ("0 8 * * 1-5", "Europe/Berlin")

    # The cookie of the session opens the page of the run in a tab of its own.
    console.click("tab", "Results")
    find = "[...document.querySelectorAll('a')].find(each => each.innerText.trim() === 'Open page')"
    console.wait_until(f"{find} !== undefined")
    got = console.evaluate(f"fetch({find}.href).then(async found => [found.status, await found.text()])")
    assert got[0] == 200
    assert GROUP in got[1]


def wait_for_success(stack: Stack, job: str, run: str | None = None) -> None:
    """Wait until a run, or else one that somebody started by hand, has succeeded."""
    deadline = time.monotonic() + RUN_S
    with stack.http() as client:
        while True:
            runs = client.get(f"/v1/reports/{job}/runs").json()["items"]
            states = [
                each["status"] for each in runs if (each["trigger"] == "manual" if run is None else each["id"] == run)
            ]
            if "succeeded" in states:
                return
            assert "failed" not in states, runs
            assert time.monotonic() < deadline, runs
            time.sleep(0.5)


@pytest.fixture(scope="module")
def results(stack: Stack) -> None:
    """Run each report once: its next scheduled run may be hours away."""
    for job in ("lag_report", "backlog_profile", "throughput_rollup"):
        with stack.http() as client:
            started = client.post(f"/v1/reports/{job}/runs", json={}).raise_for_status().json()
        wait_for_success(stack, job, started["id"])


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1_280, 320])
def test_pages_of_reports_fit_and_have_no_violations(console: ConsolePage, width: int, dark: bool) -> None:
    pages = (
        ("/reports", "Throughput"),
        ("/reports/lag_report?tab=runs", "Took"),
        ("/reports/backlog_profile", "Show by"),
        ("/reports/throughput_rollup", "Buckets of"),
    )
    for path, text in pages:
        console.enter(path, width=width, dark=dark)
        console.wait_for_text(text)
        assert console.evaluate("document.documentElement.scrollWidth") <= width, path
        assert console.violations() == [], path
