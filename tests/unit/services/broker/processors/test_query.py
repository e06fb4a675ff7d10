from services.broker.processors.query import REPLY_BODY_BYTES_MAX, _newest_that_fit


def test_what_does_not_fit_a_frame_is_cut_at_the_old_end() -> None:
    small = [b"1", b"22", b"333"]
    assert _newest_that_fit(small) == small
    assert _newest_that_fit([]) == []
    large = bytes(REPLY_BODY_BYTES_MAX - 2)
    assert _newest_that_fit([b"old", large, b"nw"]) == [large, b"nw"]
    assert _newest_that_fit([b"old", bytes(REPLY_BODY_BYTES_MAX + 1)]) == [bytes(REPLY_BODY_BYTES_MAX + 1)]
