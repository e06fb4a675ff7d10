"""Blocks of samples: the writer stores them, and readers get the same samples back."""

import random
from dataclasses import replace

import pytest

from gantry.model.sampleblock import Kind, decode_block
from services.gateway.usecases.sampling.blocks import FULL_EVERY_MS, STATE_EVERY_MS, BlockWriter
from spark.lagblocks import block_content
from tests.support.sampleblocks import figures, sample_of_one, served

START_MS = 1_700_000_000_000
ROUND_MS = 15_000


class Reader:
    """Writes samples and reads them as the lag report does: together with the full block that each one refers to."""

    def __init__(self):
        self.writer = BlockWriter()
        self.fulls = {}

    def look(self, samples, now_ms):
        is_whole = self.writer.is_whole_due(now_ms)
        plan = self.plan(samples, now_ms)
        assert is_whole == (plan is not None and plan.kind >= Kind.STATE)
        if plan is not None:
            self.writer.keep(plan, now_ms=now_ms)
        return plan

    def plan(self, samples, now_ms):
        return self.writer.plan(samples, at_ms=START_MS + now_ms, now_ms=now_ms)

    def read(self, plan):
        base = None if plan.based_at_ms is None else self.fulls[plan.based_at_ms]
        looked = block_content(decode_block(plan.data), plan.kind, at_ms=plan.at_ms, base=base)
        if plan.kind is Kind.FULL:
            self.fulls[plan.at_ms] = looked
        assert plan.queues == len(looked.queue_ids)
        return figures(looked)


@pytest.fixture
def reader():
    return Reader()


def one(group, topic="T", *, end=100, committed=(7, None), low=0, first=None):
    queues = [(low, end, offset, first if index == 0 else None) for index, offset in enumerate(committed)]
    return replace(sample_of_one(group, topic, "a", *queues), is_age_known=first is not None)


def expected(sample):
    stored = [at for at in sample.first_stored_at_ms if at is not None]
    columns = (sample.queue_ids, sample.min_offsets, sample.max_offsets, sample.committed_offsets)
    return (*map(list, columns), min(stored, default=None))


def test_the_first_block_is_full_and_later_ones_have_changes(reader):
    quiet, busy = one("QUIET"), one("BUSY", first=START_MS - 5)
    plan = reader.look([quiet, busy], 0)
    assert (plan.kind, plan.based_at_ms, plan.queues) == (Kind.FULL, None, 4)
    assert reader.read(plan) == {("QUIET", "T"): expected(quiet), ("BUSY", "T"): expected(busy)}
    assert reader.look([quiet, busy], ROUND_MS) is None
    moved = one("BUSY", end=110, committed=(12, 0), low=3, first=START_MS + 20_000)
    plan = reader.look([quiet, moved], 2 * ROUND_MS)
    assert (plan.kind, plan.based_at_ms, plan.queues) == (Kind.CHANGES, START_MS, 2)
    assert reader.read(plan) == {("BUSY", "T"): expected(moved)}
    # The value changes back.
    assert reader.read(reader.look([quiet, busy], 3 * ROUND_MS)) == {("BUSY", "T"): expected(busy)}
    assert reader.look([quiet, busy], 4 * ROUND_MS) is None


def test_every_kind_of_block_has_the_connections(reader):
    def read(plan):
        base = (
            None
            if plan.based_at_ms is None
            else block_content(decode_block(bases[plan.based_at_ms]), Kind.FULL, at_ms=0)
        )
        looked = block_content(decode_block(plan.data), plan.kind, at_ms=plan.at_ms, base=base)
        return {group: is_served for (group, _), is_served in served(looked).items()}

    seen = {"YES": True, "NO": False, "MAYBE": None}
    samples = {group: replace(one(group), is_served=is_served) for group, is_served in seen.items()}
    full = reader.look(list(samples.values()), 0)
    bases = {full.at_ms: full.data}
    assert read(full) == seen
    assert reader.look(list(samples.values()), ROUND_MS) is None
    samples["MAYBE"] = replace(samples["MAYBE"], is_served=True)
    samples["NEW"] = replace(one("NEW"), is_served=False)
    changes = reader.look(list(samples.values()), 2 * ROUND_MS)
    assert (changes.kind, read(changes)) == (Kind.CHANGES, {"MAYBE": True, "NEW": False})
    state = reader.look(list(samples.values()), STATE_EVERY_MS)
    assert (state.kind, read(state)) == (Kind.STATE, {**seen, "MAYBE": True, "NEW": False})


def test_all_pairs_are_written_every_few_minutes_and_with_their_names_every_hour(reader):
    quiet, moved = one("QUIET", first=START_MS - 9), one("BUSY", end=200)
    reader.read(reader.look([quiet, one("BUSY")], 0))
    reader.look([quiet, moved], ROUND_MS)
    assert reader.look([quiet, moved], STATE_EVERY_MS - 1) is None
    state = reader.look([quiet, moved], STATE_EVERY_MS)
    assert (state.kind, state.based_at_ms) == (Kind.STATE, START_MS)
    assert reader.read(state) == {("QUIET", "T"): expected(quiet), ("BUSY", "T"): expected(moved)}
    assert reader.look([quiet, moved], 2 * STATE_EVERY_MS - 1) is None
    for now_ms in range(2 * STATE_EVERY_MS, FULL_EVERY_MS, STATE_EVERY_MS):
        assert reader.look([quiet, moved], now_ms).kind is Kind.STATE
    full = reader.look([quiet, moved], FULL_EVERY_MS)
    assert (full.kind, full.based_at_ms) == (Kind.FULL, None)
    assert reader.look([quiet, moved], FULL_EVERY_MS + STATE_EVERY_MS).based_at_ms == START_MS + FULL_EVERY_MS


def test_pairs_without_change_take_almost_no_space(reader):
    still = [one(f"G{number}", end=number * 12_345) for number in range(1_000)]
    reader.read(reader.look(still, 0))
    assert len(reader.look(still, STATE_EVERY_MS).data) < 100


def test_pairs_are_added_and_removed_and_change_their_queues(reader):
    kept, gone, wide = one("KEPT"), one("GONE"), one("WIDE")
    reader.read(reader.look([kept, gone, wide], 0))
    new, wider = one(None, "NEW", committed=(None,)), one("WIDE", committed=(1, 2, 3))
    changes = reader.look([kept, wider, new], ROUND_MS)
    assert reader.read(changes) == {
        ("WIDE", "T"): expected(wider), (None, "NEW"): expected(new), ("GONE", "T"): GONE
    }  # fmt: skip
    state = reader.look([kept, wider, new], STATE_EVERY_MS)
    assert reader.read(state) == {pair: expected(sample) for pair, sample in (
        (("KEPT", "T"), kept), (("WIDE", "T"), wider), ((None, "NEW"), new))}  # fmt: skip
    # A pair that returns unchanged is written again.
    back = reader.look([kept, gone, wide, new], STATE_EVERY_MS + ROUND_MS)
    assert reader.read(back) == {("GONE", "T"): expected(gone), ("WIDE", "T"): expected(wide)}
    state = reader.look([kept, gone, wide], 2 * STATE_EVERY_MS)
    assert reader.read(state) == {pair: expected(sample) for pair, sample in (
        (("KEPT", "T"), kept), (("GONE", "T"), gone), (("WIDE", "T"), wide))}  # fmt: skip


GONE = ([], [], [], [], None)


def test_a_pair_that_disappears_is_gone_in_the_round_that_notices_it(reader):
    kept, gone, wide = one("KEPT"), one("GONE"), one("WIDE")
    reader.read(reader.look([kept, gone, wide], 0))
    new, wider = one("NEW"), one("WIDE", committed=(1, 2, 3))
    reader.look([kept, gone, wider, new], ROUND_MS)
    plan = reader.look([kept], 2 * ROUND_MS)
    assert plan.kind is Kind.CHANGES
    assert reader.read(plan) == {("GONE", "T"): GONE, ("NEW", "T"): GONE, ("WIDE", "T"): GONE}
    assert reader.look([kept], 3 * ROUND_MS) is None
    back = reader.look([kept, gone, wide, new], 4 * ROUND_MS)
    assert reader.read(back) == {
        ("GONE", "T"): expected(gone), ("WIDE", "T"): expected(wide), ("NEW", "T"): expected(new)
    }  # fmt: skip


def test_no_message_is_distinguished_from_an_unknown_one(reader):
    none = {"NONE": replace(one("NONE"), is_age_known=True), "OLD": one("OLD", first=START_MS - 5)}
    full = reader.look([*none.values(), one("UNKNOWN")], 0)
    assert [reader.read(full)[group, "T"][-1] for group in ("NONE", "OLD", "UNKNOWN")] == [
        "none", START_MS - 5, None
    ]  # fmt: skip
    # If one queue is unknown, a known message of another one may not be the oldest.
    half = replace(none["OLD"], is_age_known=False)
    plan = reader.look([one("NONE"), half, replace(one("UNKNOWN"), is_age_known=True)], ROUND_MS)
    assert [reader.read(plan)[group, "T"][-1] for group in ("NONE", "OLD", "UNKNOWN")] == [None, None, "none"]


def test_a_broker_without_topics_has_a_sample_too(reader):
    assert reader.read(reader.look([], 0)) == {}
    assert reader.look([], ROUND_MS) is None
    assert reader.read(reader.look([], STATE_EVERY_MS)) == {}


def test_a_block_that_was_not_stored_is_planned_again(reader):
    before, after = one("G"), one("G", end=200)
    assert reader.plan([before], 0).kind is Kind.FULL
    assert reader.look([before], ROUND_MS).kind is Kind.FULL
    first = reader.plan([after], 2 * ROUND_MS)
    assert reader.plan([after], 2 * ROUND_MS) == first
    assert reader.look([after], 3 * ROUND_MS).kind is Kind.CHANGES
    assert reader.look([after], 4 * ROUND_MS) is None


def test_an_invalid_offset_is_refused_and_does_not_affect_other_pairs(reader):
    reader.read(reader.look([one("G")], 0))
    for sample in (one("G", end=2**63), one("G", end=2**63 - 1, low=-5, committed=(-(2**62), 0))):
        with pytest.raises(OverflowError):
            reader.look([sample], ROUND_MS)
    assert reader.look([one("G")], 2 * ROUND_MS) is None


def test_every_encoded_sample_decodes(reader):
    rng = random.Random(11)

    def number(most):
        return rng.choice((0, rng.randrange(most), rng.randrange(10)))

    def queue(now_ms):
        low = number(2**40)
        end = low + number(2**40)
        committed = rng.choice((None, low + number(2**40), number(5), end))
        return (
            low,
            end,
            committed,
            rng.choice((None, START_MS + now_ms - number(10**9), START_MS + now_ms + number(99))),
        )

    def drawn(now_ms):
        group, topic = f"G{rng.randrange(9)}", f"T{rng.randrange(3)}"
        queues = [queue(now_ms) for _ in range(rng.choice((1, 2, 2, 3)))]
        sample = sample_of_one(group, topic, "a", *queues)
        return (group, topic), replace(sample, is_age_known=sample.first_stored_at_ms.count(None) < len(queues))

    there, last = {}, {}
    for turn in range(1_200):
        now_ms = turn * ROUND_MS
        for _ in range(rng.randrange(3)):
            pair, sample = drawn(now_ms)
            there[pair] = sample
        if there and rng.random() < 0.1:
            del there[rng.choice(list(there))]
        plan = reader.look(list(there.values()), now_ms)
        seen = {pair: expected(sample) for pair, sample in there.items()}
        moved = {pair: figures for pair, figures in seen.items() if last.get(pair) != figures}
        moved |= dict.fromkeys(last.keys() - seen.keys(), GONE)
        if plan is None:
            assert not moved
        else:
            assert reader.read(plan) == (moved if plan.kind is Kind.CHANGES else seen), turn
        last = seen
