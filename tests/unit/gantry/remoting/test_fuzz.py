"""A short run of the fuzzer; `make fuzz` is the long one."""

import os
import time

from tests.fuzz.fuzz_remoting import fuzz, main


def test_parsing_succeeds_or_raises_a_documented_error():
    seed = int(os.environ.get("GANTRY_TEST_SEED") or time.time_ns())
    print(f"seed {seed}")

    outcomes = fuzz(seed, cases=150)

    assert sum(outcomes.values()) == 150
    assert {"parsed", "refused"} <= outcomes.keys()


def test_a_case_can_be_repeated(capsys):
    assert main(["--seed", "1", "--case", "3"]) == 0
    assert "1 inputs" in capsys.readouterr().out
