"""Sample blocks: decoding returns what was encoded, damage is reported, and the encoding never changes."""

from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model import sampleblock
from gantry.model.sampleblock import (
    AGE_NONE,
    AGE_UNKNOWN,
    Block,
    SampleBlockError,
    Section,
    age_code,
    behind_code,
    decode_block,
    empty_section,
    encode_block,
    merge_changes,
    stored_at,
    words,
    zigzag,
)

WORD = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
NAME = st.text(st.characters(codec="utf-8"), max_size=9)


@st.composite
def sections(draw, columns):
    counts = draw(st.lists(st.integers(0, 5), max_size=6))
    ages = draw(st.lists(WORD, min_size=len(counts), max_size=len(counts)))
    total = sum(counts)
    drawn = tuple(words(draw(st.lists(WORD, min_size=total, max_size=total))) for _ in range(columns))
    served = draw(st.lists(st.integers(0, 2), min_size=len(counts), max_size=len(counts)))
    return Section(words(counts), words(ages), drawn, words(served))


@st.composite
def blocks(draw):
    whole, changed = draw(sections(4)), draw(sections(3))
    count = len(whole.counts)
    pairs = draw(st.lists(st.tuples(st.none() | NAME, NAME), min_size=count, max_size=count))
    bases = draw(st.lists(st.integers(0, 2**20), min_size=len(changed.counts), max_size=len(changed.counts)))
    return Block(pairs, whole, words(bases), changed, words(draw(st.lists(st.integers(0, 99), max_size=5))))


def full(*pairs, at=1):
    """A full block of pairs with two queues each."""
    count = len(pairs)
    queues = tuple(words(range(at, at + 2 * count)) for _ in range(4))
    served = words(index % 3 for index in range(count))
    return Block(list(pairs), Section(words([2] * count), words([at] * count), queues, served), *nothing())


def nothing():
    return words(), empty_section(is_whole=False), words()


def changes(*, whole=None, **numbers):
    """Return changes of one queue each: the number is the difference of all columns; base0=5, base3=7."""
    bases = words(int(name.removeprefix("base")) for name in numbers)
    columns = tuple(words(numbers.values()) for _ in range(3))
    served = words(number % 3 for number in numbers.values())
    section = Section(words([1] * len(bases)), zigzag([age_code(100, 40)] * len(bases)), columns, served)
    return Block(*(whole or ([], empty_section(is_whole=True))), bases, section, words())


@given(blocks())
def test_a_block_round_trips(block):
    assert decode_block(encode_block(block)) == block


@given(blocks(), st.data())
def test_damage_is_reported(block, data):
    sound = encode_block(block)
    at = data.draw(st.integers(0, len(sound) - 1))
    broken = bytearray(sound)
    broken[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(broken), sound[:at], sound + b"\0"):
        try:
            assert decode_block(damaged) == block, "a bit that means nothing may be another one"
        except SampleBlockError:
            continue


def test_an_age_beyond_64_bits_in_an_old_version_is_damage():
    ages = array("Q", [2**64 - 2])
    one = array("Q", [0])
    empty = array("Q")
    changed = Section(counts=one, ages=ages, columns=(empty, empty, empty), served=one)
    sound = encode_block(Block([], Section(empty, empty, (empty,) * 4, empty), one, changed, empty))
    for version in range(1, sampleblock.VERSION):
        with pytest.raises(SampleBlockError):
            decode_block(bytes([version]) + sound[1:])


@given(st.binary(max_size=200))
def test_bytes_that_are_no_block_are_refused(data):
    for version in (b"", bytes([sampleblock.VERSION])):
        with pytest.raises(SampleBlockError):
            decode_block(version + data)


def body(content):
    return bytes([sampleblock.VERSION]) + sampleblock.zstandard.ZstdCompressor().compress(content)


def counted(*counts, rest=b""):
    return sampleblock._COUNTS.pack(*counts) + rest


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"\x04abc", "version 4 is above 3"),
        (b"\x00abc", "version 0 is above 3"),
        (b"\x01abc", "can't be decompressed"),
        (b"\x02abc", "can't be decompressed"),
        (body(b"short"), "it has 5 bytes and needs 24 or more"),
        (body(counted(2, 0, 0, 0, 0, 0, rest=b"{}" + bytes(13))), "no list of texts"),
        (body(counted(2, 0, 0, 0, 0, 0, rest=b"[" + bytes(14))), "can't be read"),
        (body(counted(2, 0, 0, 0, 0, 0, rest=b"[]" + bytes(17) + b"\x03\0")), "1 bytes too many"),
        (body(counted(2, 0, 0, 0, 0, 0, rest=b"[]" + bytes(17) + b"\x02")), "the version, differs from its last one"),
        (body(counted(2, 0, 0, 0, 0, 0, rest=b"[]" + b"\x09")), "a word of 9 bytes"),
        (body(counted(2, 0, 3, 0, 0, 0, rest=b"[]" + bytes(20))), "the pairs have 0 queues, but the block has 3"),
        (body(counted(2, 1, 0, 0, 0, 0, rest=b"[]" + bytes(17) + b"\x03")), "a name beyond the last of 0 names"),
        (body(counted(2, 1, 0, 0, 0, 0, rest=b"[]" + bytes(4) + b"\x01\x03")), "the value 3 of `served` is unknown"),
        (body(counted(2, 2**31, 0, 0, 0, 0)), "words are more than"),
    ],
)
def test_damage_has_a_reason(data, reason):
    with pytest.raises(SampleBlockError, match=reason):
        decode_block(data)


def test_blocks_above_the_size_limit_are_neither_encoded_nor_decoded(monkeypatch):
    block = full(("G", "T"))
    data = encode_block(block)
    monkeypatch.setattr(sampleblock, "WORDS_MAX", 12)
    with pytest.raises(SampleBlockError, match="13 words are more than 12"):
        encode_block(block)
    with pytest.raises(SampleBlockError, match="13 words are more than 12"):
        decode_block(data)
    monkeypatch.undo()
    monkeypatch.setattr(sampleblock, "BODY_BYTES_MAX", 20)
    with pytest.raises(SampleBlockError, match="bytes are more than 20"):
        encode_block(block)
    with pytest.raises(SampleBlockError, match="at most 20 are allowed"):
        decode_block(data)


def golden(version):
    return Path(__file__).with_name(f"sampleblock-{version}.hex").read_text().split()


def golden_blocks():
    block = full(("G", "T"), (None, "%RETRY%G"), at=250)
    return block, changes(base0=3, base7=70_000, whole=(block.pairs, block.whole))


@pytest.mark.parametrize("version", [1, 2])
def test_blocks_of_older_versions_are_read(version):
    def older(section):
        # The ages 249 / 2 - 1 ms and 60 ms were written as codes that are less by 1.
        ages = words({250: 252, 124: 124}[word] for word in section.ages)
        served = words([0] * len(section.counts)) if version == 1 else section.served
        return replace(section, ages=ages, served=served)

    for one, text in zip(golden_blocks(), golden(version), strict=True):
        data = bytes([version]) + sampleblock.zstandard.ZstdCompressor().compress(bytes.fromhex(text))
        assert decode_block(data) == replace(one, whole=older(one.whole), changed=older(one.changed))


def test_an_older_block_does_not_know_whether_there_was_no_message():
    section = Section(words([1] * 3), zigzag([0, 1, -5]), tuple(words([0] * 3) for _ in range(4)), words([0] * 3))
    data = encode_block(Block([("G", str(number)) for number in range(3)], section, *nothing()))
    content = sampleblock.zstandard.ZstdDecompressor().decompress(data[1:])
    older = b"\x02" + sampleblock.zstandard.ZstdCompressor().compress(content[:-1])  # There is no last byte.
    assert decode_block(older).whole.ages == zigzag([AGE_UNKNOWN, 2, -5])
    assert decode_block(data).whole.ages == zigzag([AGE_UNKNOWN, AGE_NONE, -5])


def test_the_encoding_does_not_change():
    for one, expected in zip(golden_blocks(), golden(3), strict=True):
        data = encode_block(one)
        # The compressed bytes may change with the library. The uncompressed bytes may not.
        assert sampleblock.zstandard.ZstdDecompressor().decompress(data[1:]).hex() == expected
        assert data[0] == sampleblock.VERSION


def test_small_words_take_few_bytes():
    def size(word):
        section = Section(words([1]), words([0]), (words([word]),) * 4, words([0]))
        return len(sampleblock._decompress(encode_block(Block([("G", "T")], section, *nothing())))[1])

    assert [size(word) - size(0) for word in (1, 255, 256, 2**63)] == [4, 4, 8, 32]


@pytest.mark.parametrize(
    ("signed", "word"), [(0, 0), (-1, 1), (1, 2), (-2, 3), (2**63 - 1, 2**64 - 2), (-(2**63), 2**64 - 1)]
)
def test_zigzag(signed, word):
    assert zigzag([signed]) == words([word])


def test_numbers_beyond_64_bits_are_refused():
    for number in (2**63, -(2**63) - 1):
        with pytest.raises(OverflowError):
            zigzag([number])


def test_codes():
    assert [behind_code(10, committed) for committed in (None, 10, 4, 12)] == [0, 1, 7, -2]
    assert [age_code(10, stored) for stored in (None, 10, 4, 12)] == [0, 2, 8, -2]
    assert [stored_at(age_code(10, stored), 10) for stored in (10, 4, 12)] == [10, 4, 12]


def test_a_merge_keeps_the_last_change_of_each_pair():
    new = full(("N", "T"))
    old = full(("N", "T"), ("M", "T"), at=9)
    merged = merge_changes(
        [
            (70, changes(base3=1, base0=2, whole=(old.pairs, old.whole))),
            (80, changes(base1=4)),
            (100, changes(base0=9, whole=(new.pairs, new.whole))),
        ]
    )
    assert list(merged.bases) == [0, 1, 3]
    assert [list(column) for column in merged.changed.columns] == [[9, 4, 1]] * 3
    assert list(merged.changed.counts) == [1, 1, 1]
    assert list(merged.changed.served) == [9 % 3, 4 % 3, 1 % 3]
    # The message is as old as at the merged block's time, 60 ms, plus the time since.
    assert merged.changed.ages == zigzag([62, 82, 92])
    assert merged.pairs == [("N", "T"), ("M", "T")]
    assert list(merged.whole.columns[0]) == [1, 2, 11, 12]
    assert not merged.gone
    assert merge_changes([(5, changes(base1=4))]) == changes(base1=4)


def test_a_merge_keeps_the_pairs_that_are_gone():
    def ended(*bases):
        return replace(changes(), gone=words(bases))

    # 3 is gone; 4 is gone and comes back; 5 changes after it came back, and is gone again.
    merged = merge_changes(
        [(1, changes(base3=1, base5=2)), (2, ended(3, 4, 5)), (3, changes(base4=7, base5=8)), (4, ended(5))]
    )
    assert (list(merged.bases), list(merged.gone)) == ([4], [3, 5])


def test_a_message_with_a_future_time_gets_a_past_one():
    def age(code, later_ms):
        section = Section(words([0]), zigzag([code]), (words(),) * 3, words([0]))
        first = Block([], empty_section(is_whole=True), words([1]), section, words())
        return merge_changes([(0, first), (later_ms, changes())]).changed.ages

    assert age(-5, 3) == zigzag([-2])
    assert age(-5, 5) == zigzag([2])
    assert age(-5, 8) == zigzag([5])
    assert age(AGE_UNKNOWN, 8) == zigzag([AGE_UNKNOWN])
    assert age(AGE_NONE, 8) == zigzag([AGE_NONE])
