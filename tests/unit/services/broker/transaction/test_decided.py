"""The table of decided half messages: what it keeps, and how far the next start must read the op topic."""

import pytest

from gantry.runtime.rng import Rng
from services.broker.transaction.decided import DecidedOffsets


def test_the_op_position_stays_at_the_first_op_message_that_is_still_needed() -> None:
    decided = DecidedOffsets(position=10, op_position=4)
    decided.add(4, [10, 12])
    decided.add(5, [11])
    decided.add(6, [3, 9])
    assert (12 in decided, 9 in decided, len(decided), decided.op_position) == (True, False, 3, 4)
    decided.move_to(12)
    assert (len(decided), decided.op_position) == (1, 4)
    decided.move_to(13)
    assert (len(decided), decided.op_position) == (0, 7)


def test_an_offset_that_two_op_messages_name_belongs_to_the_first() -> None:
    decided = DecidedOffsets(position=0, op_position=0)
    decided.add(0, [1])
    decided.add(1, [1, 1, 2])
    decided.move_to(2)
    assert decided.op_position == 1
    decided.move_to(3)
    assert decided.op_position == 2


def test_the_position_may_not_go_back() -> None:
    decided = DecidedOffsets(position=5, op_position=0)
    decided.move_to(5)
    with pytest.raises(AssertionError, match="may not go back"):
        decided.move_to(4)


@pytest.mark.parametrize("seed", range(20))
def test_the_table_equals_a_simple_model(seed: int) -> None:
    rng = Rng(seed)
    decided, named, position = DecidedOffsets(0, 0), dict[int, int](), 0
    for op_offset in range(30):
        offsets = [rng.below(200) for _ in range(rng.below(8))]
        decided.add(op_offset, offsets)
        for offset in offsets:
            if offset >= position:
                named.setdefault(offset, op_offset)
        position += rng.below(9)
        decided.move_to(position)
        named = {offset: op for offset, op in named.items() if offset >= position}
        assert [offset for offset in range(200) if offset in decided] == sorted(named)
        assert decided.op_position == min(named.values(), default=op_offset + 1)
