import random

import pytest

from gantry.model.javahash import tags_code
from gantry.storeformat.layout import UNIT
from gantry.storeformat.tagcodes import EXTENDED_MAX, TagCodes

TAGS = ["TagA", "polygenelubricants", "", "AA", "UA", "x", "ÄÖ"]


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_a_comparison_of_each_unit_finds(seed: int) -> None:
    rng = random.Random(seed)
    codes = [tags_code(tag) for tag in TAGS]
    others = [codes[0] ^ 0x100, codes[0] + (1 << 32), -1, 2**40, *([] if seed % 2 else [EXTENDED_MAX, -(2**63)])]
    units = [rng.choice(codes + others) for _ in range(rng.randrange(900))]
    wanted = TagCodes(frozenset(rng.sample(codes, rng.randrange(1, 5))))
    data = b"".join(UNIT.pack(rng.randrange(2**40), 100, code) for code in units)
    assert wanted.find(data) == [index for index, code in enumerate(units) if wanted(code)]


def test_an_address_in_the_place_of_a_hash_may_match() -> None:
    wanted = TagCodes({5})
    assert [wanted(code) for code in (5, 6, -(2**31), EXTENDED_MAX, -(2**63))] == [True, False, False, True, True]
    assert wanted.find(UNIT.pack(0, 100, -(2**63) + 96) + UNIT.pack(100, 100, 7)) == [0]
    assert wanted.find(b"") == []
