"""The note of a failed flush: a broken one gives no wrong offset, and does not fail the start."""

import pytest

from gantry.storeformat.flushnote import FailedFlush, decode_flush_note, encode_flush_note


def test_a_note_round_trips():
    failed = FailedFlush("the disk is gone", 4096, 8192)
    assert decode_flush_note(encode_flush_note(failed)) == failed
    assert decode_flush_note(encode_flush_note(None)) is None


@pytest.mark.parametrize("number", [b"Infinity", b"-Infinity", b"NaN", b"1e999", b"null", b"[]", b"9" * 5000])
def test_a_note_without_a_valid_offset_is_ignored(number):
    content = b'{"flush_failed": "x", "flushed_offset": %s, "acknowledged_offset": 1}' % number
    assert decode_flush_note(content) is None


def test_a_flipped_bit_gives_no_other_offset():
    failed = FailedFlush("the disk is gone", 4096, 8192)
    note = encode_flush_note(failed)
    without_offsets = 0
    for bit in range(len(note.rstrip()) * 8):
        flipped = bytearray(note)
        flipped[bit // 8] ^= 1 << bit % 8
        read = decode_flush_note(bytes(flipped))
        if read is None:
            continue  # The flipped text is no note.
        assert read[1:] in {(4096, 8192), (None, None)}, bytes(flipped).rstrip()
        without_offsets += read[1:] == (None, None)
    assert without_offsets > 100


def test_a_note_of_an_earlier_release_has_no_checksum():
    content = b'{"flush_failed": "x", "flushed_offset": 1, "acknowledged_offset": 2}'
    assert decode_flush_note(content) == FailedFlush("x", 1, 2)
