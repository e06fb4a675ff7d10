"""The reader of WebSocket frames: it agrees with the library for any split of the bytes, and buffers little."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import SERVER, Protocol

from services.gateway.ws.framereader import SKIPPED_FRAMES_MAX, FrameError, FrameReader

MAX = 1_000
# The library also counts pings against the rest of the message size.
ALL = 1_000_000
DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


def wire(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def read_all(pieces: Sequence[bytes]) -> tuple[list[tuple[Opcode, bytes]], int | None]:
    """Return messages and control frames, and the code of an error."""
    reader, found = FrameReader(ALL), []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (frame := reader.next_frame()) is not None:
                if frame.opcode is not Opcode.CONT:
                    found.append((frame.opcode, frame.data))
                if frame.opcode is Opcode.CLOSE:
                    return found, None
    except FrameError as error:
        return found, error.code
    return found, None


def read_by_library(data: bytes) -> tuple[list[tuple[Opcode, bytes]], int | None]:
    library = Protocol(SERVER, max_size=ALL)
    library.receive_data(data)
    found: list[tuple[Opcode, bytes]] = []
    kind, message = Opcode.TEXT, b""
    for frame in library.events_received():
        assert isinstance(frame, Frame)
        if frame.opcode not in DATA:
            found.append((frame.opcode, bytes(frame.data)))
            continue
        if frame.opcode is not Opcode.CONT:
            kind, message = frame.opcode, b""
        message += bytes(frame.data)
        if frame.fin:
            found.append((kind, message))
    failed = library.parser_exc is not None and library.close_sent is not None
    return found, library.close_sent.code if failed and library.close_sent is not None else None


frames = st.one_of(
    st.builds(wire, st.sampled_from(DATA), st.binary(max_size=300), fin=st.booleans()),
    st.builds(wire, st.sampled_from((Opcode.PING, Opcode.PONG)), st.binary(max_size=125)),
    st.just(wire(Opcode.CLOSE, Close(1000, "bye").serialize())),
    # Invalid ones: reserved bits, an unknown opcode, no mask, a control frame that is a fragment or too long.
    st.sampled_from(
        [b"\xc1\x80mask", b"\x83\x80mask", b"\x81\x00", b"\x09\x80mask", b"\x89\xfe\x00\x7emask" + bytes(126)]
    ),
)


@given(st.lists(frames, max_size=12), st.integers(1, 64))
def test_it_agrees_with_the_library_whole_and_in_pieces(given_frames: list[bytes], size: int) -> None:
    data = b"".join(given_frames)
    expected = read_by_library(data)
    assert read_all([data]) == expected
    assert read_all([data[at : at + size] for at in range(0, len(data), size)]) == expected


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
def test_messages_of_any_length_are_read_whole(length: int) -> None:
    payload = bytes(number % 251 for number in range(length))
    data = wire(Opcode.BINARY, payload)
    reader = FrameReader(1 << 20)
    for at in range(0, len(data), 8_191):
        assert reader.next_frame() is None
        reader.feed(data[at : at + 8_191])
    frame = reader.next_frame()
    assert frame is not None
    assert (frame.opcode, frame.data, frame.size) == (Opcode.BINARY, payload, length)
    assert reader.held_bytes == 0


def test_a_length_above_the_limit_is_refused_before_its_bytes_arrive() -> None:
    reader = FrameReader(MAX)
    reader.feed(wire(Opcode.TEXT, b"x" * 600, fin=False) + wire(Opcode.CONT, b"x" * 401)[:8])
    assert reader.next_frame() is not None
    with pytest.raises(FrameError) as caught:
        reader.next_frame()
    assert caught.value.code == 1009


def test_a_message_in_fragments_of_a_byte_takes_only_its_own_size() -> None:
    reader = FrameReader(1 << 20)
    reader.feed(wire(Opcode.TEXT, b"", fin=False))
    reader.next_frame()
    reader.feed(wire(Opcode.CONT, b"x", fin=False) * 5_000)
    while reader.next_frame() is not None:
        pass
    assert reader.held_bytes == 5_000


@given(st.integers(0, 400), st.integers(1, 64))
def test_after_our_close_frame_only_the_close_frame_of_the_peer_is_found(cut: int, size: int) -> None:
    """Our close frame may be sent at any place in a frame, and the bytes may come in any pieces."""
    before = wire(Opcode.TEXT, b"x" * 200, fin=False) + wire(Opcode.PING, b"p" * 100) + wire(Opcode.CONT, b"\x88" * 300)
    data = before + wire(Opcode.CLOSE, Close(1000, "").serialize())
    cut = min(cut, len(before) - 1)
    reader = FrameReader(MAX)
    reader.feed(data[:cut])
    while reader.next_frame() is not None:
        pass
    assert not reader.skip(b"")
    found = [reader.skip(data[at : at + size]) for at in range(cut, len(data), size)]
    assert any(found)
    assert reader.held_bytes == 0


def test_after_our_close_frame_a_flood_is_dropped_unread() -> None:
    reader = FrameReader(MAX)
    reader.feed(wire(Opcode.TEXT, b"x" * 500, fin=False))
    assert reader.next_frame() is not None
    fragment = wire(Opcode.CONT, b"x" * 400, fin=False)
    assert not reader.skip(fragment[:200])
    assert reader.held_bytes == 0
    assert not reader.skip(fragment[200:])
    assert not reader.skip(wire(Opcode.PONG) * SKIPPED_FRAMES_MAX * 2)
    assert not reader.skip(wire(Opcode.CLOSE))
    assert reader.held_bytes == 0
