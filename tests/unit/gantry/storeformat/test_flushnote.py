"""The note of a failed flush: a broken one says nothing, and ends no start."""

import pytest

from gantry.storeformat.flushnote import FailedFlush, decode_flush_note, encode_flush_note


def test_a_note_is_read_as_it_was_written():
    failed = FailedFlush("the disk is gone", 4096, 8192)
    assert decode_flush_note(encode_flush_note(failed)) == failed
    assert decode_flush_note(encode_flush_note(None)) is None


@pytest.mark.parametrize("number", [b"Infinity", b"-Infinity", b"NaN", b"1e999", b"null", b"[]", b"9" * 5000])
def test_a_note_whose_number_is_no_offset_says_nothing(number):
    content = b'{"flush_failed": "x", "flushed_offset": %s, "acknowledged_offset": 1}' % number
    assert decode_flush_note(content) is None
