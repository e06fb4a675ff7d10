"""Recall handles: round trip, and texts that are no handle."""

from base64 import urlsafe_b64encode

import pytest

from gantry.model.errors import InvalidIdError
from gantry.model.recallhandle import (
    HANDLE_LENGTH_MAX,
    RecallHandle,
    decode_recall_handle,
    encode_recall_handle,
)


def text(content: str) -> str:
    return urlsafe_b64encode(content.encode()).decode()


def test_a_handle_is_read_as_it_was_written_with_and_without_padding() -> None:
    handle = RecallHandle("T", "broker-a", 1_700_000_001_001, "KEY>>>???")
    encoded = encode_recall_handle(handle)
    assert decode_recall_handle(encoded) == handle
    assert decode_recall_handle(encoded.rstrip("=")) == handle


@pytest.mark.parametrize(
    "given",
    [
        "",
        "ä",
        "%%%%",
        "A" * (HANDLE_LENGTH_MAX + 1),
        text("v2 T b 1 K"),
        text("v1 T b 1"),
        text("v1 T b x K"),
        text("v1 T b 1 "),
        text("v1 T b -1 K"),
        text(f"v1 T b {2**63} K"),
        urlsafe_b64encode(b"v1 T b 1 \xff\xff").decode(),
    ],
)
def test_another_text_is_refused_by_name(given: str) -> None:
    with pytest.raises(InvalidIdError, match="recallHandle"):
        decode_recall_handle(given)
