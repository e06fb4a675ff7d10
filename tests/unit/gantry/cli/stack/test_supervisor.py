"""The supervisor's decisions: how long it waits, what it prints, and which process it stops first."""

import signal
from pathlib import Path
from typing import Any

from gantry.cli.stack.supervisor import Child, ProcessSpec, describe_exit, restart_pause_s, stop_groups


def child(name: str, rank: int) -> Child:
    log: Any = Path(name)
    return Child(
        ProcessSpec(name=name, command=(name,), environment={}, is_ready=lambda pid: True, log=log, stop_rank=rank)
    )


def test_pauses_double_up_to_half_a_minute() -> None:
    assert [restart_pause_s(count) for count in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert restart_pause_s(10_000) == 30


def test_an_exit_code_is_described() -> None:
    assert describe_exit(0) == "ended with code 0"
    assert describe_exit(-signal.SIGKILL) == "was ended by SIGKILL"
    assert describe_exit(-63) == "was ended by signal 63"


def test_processes_stop_by_rank_and_not_in_start_order() -> None:
    started = [child("namesrv-0", 2), child("broker-a", 1), child("postgres", 3), child("broker-b", 1), child("gw", 0)]
    names = [[member.spec.name for member in group] for group in stop_groups(started)]
    assert names == [["gw"], ["broker-a", "broker-b"], ["namesrv-0"], ["postgres"]]
