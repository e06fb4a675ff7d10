import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.remoting.command import RemotingCommand, encode_frame
from gantry.remoting.connection import Connection
from gantry.remoting.errors import FrameTooLargeError, LocalProtocolError, RemoteProtocolError


def commands(count: int) -> list[RemotingCommand]:
    return [RemotingCommand(code=10 + i, opaque=i, body=bytes([i]) * (i * 37) or None) for i in range(count)]


def stream_of(wanted: list[RemotingCommand]) -> bytes:
    return b"".join(map(encode_frame, wanted))


@given(st.lists(st.integers(1, 200), max_size=60))
def test_any_cut_gives_the_same_commands(cuts: list[int]):
    wanted = commands(12)
    stream = stream_of(wanted)
    connection = Connection()
    got: list[RemotingCommand] = []

    for size in [*cuts, len(stream)]:
        got += connection.receive_data(stream[:size])
        stream = stream[size:]
    connection.receive_eof()

    assert got == wanted


@given(
    st.lists(st.sampled_from([0, 1, 1_000, 65_000, 66_000, 200_000]), min_size=1, max_size=6),
    st.lists(st.integers(1, 150_000), max_size=12),
)
def test_large_frames_among_small_ones_are_decoded_for_any_cut(sizes: list[int], cuts: list[int]):
    wanted = [RemotingCommand(code=10, opaque=number, body=b"x" * size or None) for number, size in enumerate(sizes)]
    stream = stream_of(wanted)
    connection = Connection()
    got: list[RemotingCommand] = []

    for size in [*cuts, len(stream)]:
        got += connection.receive_data(stream[:size])
        stream = stream[size:]
    connection.receive_eof()

    assert got == wanted
    assert {type(command.body) for command in got} <= {bytes, type(None)}


def test_a_large_frame_before_a_bad_one_is_returned_first():
    large = RemotingCommand(code=10, body=bytes(100_000))
    stream = stream_of([large]) + b"\0\0\0\x04\0\0\0\x01"
    connection = Connection()

    assert connection.receive_data(stream[:1_000]) == []
    assert connection.receive_data(stream[1_000:]) == [large]
    with pytest.raises(RemoteProtocolError, match="header of 1 bytes in a frame of 4"):
        connection.receive_data(b"")


def test_byte_by_byte_is_the_same_as_whole():
    wanted = commands(6)
    connection = Connection()

    got = [command for byte in stream_of(wanted) for command in connection.receive_data(bytes([byte]))]

    assert got == wanted


def test_good_frames_before_a_bad_one_are_returned_first():
    wanted = commands(3)
    connection = Connection()

    assert connection.receive_data(stream_of(wanted) + b"\0\0\0\x04\0\0\0\x01") == wanted
    assert isinstance(connection.error, RemoteProtocolError)
    for data in (b"", stream_of(wanted)):
        with pytest.raises(RemoteProtocolError, match="header of 1 bytes in a frame of 4"):
            connection.receive_data(data)
    with pytest.raises(RemoteProtocolError, match="header of 1 bytes"):
        connection.receive_eof()


@pytest.mark.parametrize("come", [4, 8, 100])
def test_a_frame_above_the_limit_is_refused_once_its_length_is_known(come: int):
    connection = Connection(frame_bytes_max=1000)
    data = (struct.pack(">II", 997, 900) + bytes(1000))[:come]

    with pytest.raises(FrameTooLargeError, match="frame of 1001 bytes, at most 1000") as caught:
        connection.receive_data(data)

    assert (caught.value.size_bytes, caught.value.max_bytes) == (1001, 1000)


def test_a_frame_of_exactly_the_limit_is_accepted():
    connection = Connection(frame_bytes_max=1000)
    empty = len(encode_frame(RemotingCommand(code=10)))
    command = RemotingCommand(code=10, body=bytes(1000 - empty))

    assert connection.receive_data(connection.send(command)) == [command]
    command.body = bytes(1001 - empty)
    with pytest.raises(LocalProtocolError, match="frame of 1001 bytes, at most 1000"):
        connection.send(command)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_length_without_room_for_the_header_word_is_refused(length: int):
    for data in (struct.pack(">I", length), struct.pack(">II", length, 0)):
        with pytest.raises(RemoteProtocolError, match="bytes"):
            Connection().receive_data(data)


def test_a_header_longer_than_its_frame_is_refused_before_the_body_comes():
    with pytest.raises(RemoteProtocolError, match="header of 16777215 bytes in a frame of 1000"):
        Connection().receive_data(struct.pack(">II", 1000, 0xFFFFFF))


def test_the_end_within_a_frame_is_an_error():
    connection = Connection()
    connection.receive_data(stream_of(commands(1))[:-1])

    with pytest.raises(RemoteProtocolError, match="ended within a frame"):
        connection.receive_eof()


def test_the_end_between_frames_is_no_error():
    connection = Connection()
    connection.receive_eof()
    connection.receive_data(stream_of(commands(2)))
    connection.receive_eof()


def test_opaques_count_up_and_restart():
    connection = Connection()
    assert [connection.next_opaque() for _ in range(3)] == [0, 1, 2]

    connection._next_opaque = 2**31 - 1
    assert [connection.next_opaque() for _ in range(2)] == [2**31 - 1, 0]


def test_a_large_body_in_small_chunks_is_not_copied_for_each_chunk():
    body = bytes(4_000_000)
    command = RemotingCommand(code=10, body=body)
    frame = encode_frame(command)
    connection = Connection()
    got: list[RemotingCommand] = []

    for at in range(0, len(frame), 1000):  # 4,000 copies of 2 MB on average would take seconds.
        got += connection.receive_data(frame[at : at + 1000])

    assert got == [command]
