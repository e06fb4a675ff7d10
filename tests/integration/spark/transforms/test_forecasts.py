"""When backlogs will be gone, against when they are: simulated drains, all of them groups of one report."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from tests.integration.spark.transforms.lagworld import World
from tests.support.forecasts import ForecastOutcome, judge

SEED = 20261121
DRAINS_OF_EACH = 100
WINDOW_S, SAMPLE_S, TICK_S = 600.0, 15.0, 0.5
YOUNG_S = 100.0, 400.0
"""For how long groups have been sampled that came back a few minutes ago."""
HORIZON_S = WINDOW_S + 5_000


@dataclass(frozen=True)
class Kind:
    """The pace of a group: its speed varies and lasts for a while; commits and messages come in steps.

    Attributes:
        speed: Messages a second, from and to.
        spread: The spread of the speed's logarithm.
        keeps_s: The time for which a speed lasts.
        incoming: The share of the speed at which messages come in meanwhile.
        burst_s: The mean time between incoming messages; 0: evenly.
        commit_s: The time between commits.
        queues: On two brokers.
    """

    speed: tuple[float, float]
    spread: float
    keeps_s: float
    incoming: float
    burst_s: float
    commit_s: float
    queues: int = 1


KINDS = {
    "steady": Kind((20, 400), 0.1, 5, 0.3, 0, 5),
    "slow": Kind((3, 15), 0.3, 5, 0.5, 0, 1),
    "gusty": Kind((50, 2_000), 0.3, 20, 0.4, 0, 5),
    "bursts": Kind((20, 400), 0.2, 10, 0.3, 10, 5),
    "queues": Kind((50, 500), 0.3, 10, 0.4, 0, 5, queues=4),
}


class Drain:
    """One group's way to the end of its backlog, from WINDOW_S before the report to HORIZON_S; sampled since `known_s` before it."""

    def __init__(self, kind: Kind, rng: np.random.Generator, known_s: float = WINDOW_S) -> None:
        ticks = round(HORIZON_S / TICK_S)
        at = np.arange(ticks) * TICK_S
        speed = rng.uniform(*kind.speed)
        came = self._came(kind, speed, rng, ticks)
        worked = np.cumsum(rng.poisson(_speeds(kind, speed, rng, ticks) * TICK_S))
        phase = rng.uniform(0, kind.commit_s)
        committed_at = np.clip(np.floor((at - phase) / kind.commit_s) * kind.commit_s + phase, 0, None)
        committed = worked[(committed_at / TICK_S).astype(int)]
        self._now = round(WINDOW_S / TICK_S)
        lasts_s = math.exp(rng.uniform(math.log(120), math.log(1_200)))
        backlog = round(speed * (1 - kind.incoming) * lasts_s) + committed[self._now] - came[self._now]
        self._high, self._committed = came + backlog, np.minimum(committed, came + backlog)
        done = np.flatnonzero(self._committed[self._now :] >= self._high[self._now :])
        self.true_s = done[0] * TICK_S if len(done) else math.inf
        first = rng.uniform(11, 25)
        sampled = [WINDOW_S, *np.arange(first, WINDOW_S - 5, SAMPLE_S)[::-1]]
        self.sampled = [ago_s for ago_s in sampled if ago_s <= known_s]
        self.queues = kind.queues

    @staticmethod
    def _came(kind: Kind, speed: float, rng: np.random.Generator, ticks: int) -> np.ndarray:
        mean = speed * kind.incoming * TICK_S
        if not kind.burst_s:
            return np.cumsum(rng.poisson(mean, ticks))
        chance = TICK_S / kind.burst_s
        bursts = rng.random(ticks) < chance
        return np.cumsum(np.where(bursts, rng.poisson(rng.exponential(mean / chance, ticks)), 0))

    def offsets(self, ago_s: float, queue: int) -> tuple[int, int]:
        """Return max and committed offset of a queue so long before the report."""
        tick = round((WINDOW_S - ago_s) / TICK_S)
        high, committed = int(self._high[tick]), int(self._committed[tick])
        return (high + queue) // self.queues, (committed + queue) // self.queues


def _speeds(kind: Kind, speed: float, rng: np.random.Generator, ticks: int) -> np.ndarray:
    kept = math.exp(-TICK_S / kind.keeps_s)
    noise = rng.standard_normal(ticks) * math.sqrt(1 - kept * kept)
    level, levels = rng.standard_normal(), np.empty(ticks)
    for tick, new in enumerate(noise):
        levels[tick] = level = kept * level + new
    return speed * np.exp(kind.spread * levels - kind.spread**2 / 2)


@pytest.fixture(scope="module")
def drains():
    rng, young = np.random.default_rng(SEED), np.random.default_rng(SEED + 1)
    each = [(name, kind, number) for name, kind in KINDS.items() for number in range(DRAINS_OF_EACH)]
    return {f"{name}-{number}": Drain(kind, rng) for name, kind, number in each} | {
        f"young-{name}-{number}": Drain(kind, young, young.uniform(*YOUNG_S)) for name, kind, number in each
    }


@pytest.fixture(scope="module")
def outcomes(spark, drains):
    world = World()
    for group, drain in drains.items():
        for queue in range(drain.queues):
            broker = f"b{queue % 2}"
            samples = [(ago_s, *drain.offsets(ago_s, queue)) for ago_s in drain.sampled]
            high, committed = drain.offsets(0, queue)
            world.group(group, broker=broker)
            world.queue(group, queue, broker=broker, high=high, committed=committed, head={"age": 60}, samples=samples)
    report = world.report(spark)
    return {
        group: ForecastOutcome(
            drain.true_s, *(report.topic(group)[f"drain_eta_{name}s"] for name in ("", "low_", "high_"))
        )
        for group, drain in drains.items()
    }


@pytest.mark.parametrize("is_young", [False, True])
def test_nine_of_ten_ends_lie_in_an_interval_that_is_no_wider_than_it_has_to_be(outcomes, is_young):
    made = [one for group, one in outcomes.items() if group.startswith("young") == is_young]
    found = judge(made)
    assert len(made) == 500
    assert found.within >= 0.9, found
    assert found.width <= 3, found
