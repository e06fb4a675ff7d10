from hypothesis import given
from hypothesis import strategies as st

from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand, SerializeType, decode_frame, encode_frame
from gantry.remoting.replies import SendReplies, success_frame

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(
    texts, st.booleans(), st.integers(0, 2**31 - 1), st.sampled_from(SerializeType), st.integers(0, 1000),
    st.integers(0, 2**62), st.none() | texts, st.sampled_from([0, 10, 11, 12]),
)  # fmt: skip
def test_the_typed_decoder_agrees_with_the_generic_one(
    region: str, trace_on: bool, opaque: int, coding: SerializeType, queue: int, offset: int, unique: str | None, code: int,
):  # fmt: skip
    replies = SendReplies(region_id=region, trace_on=trace_on)
    request = RemotingCommand(code=310, opaque=opaque, serialize_type=coding)
    what = ("7F00000100002A9F0000000000000000", queue, offset, unique)

    frame = replies.frame(request, *what, code=code)

    assert decode_frame(frame[4:]) == decode_frame(encode_frame(replies.command(request, *what, code=code))[4:])
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


@given(st.integers(0, 2**31 - 1), st.sampled_from(SerializeType))
def test_a_plain_success_has_the_bytes_of_the_general_path(opaque: int, coding: SerializeType) -> None:
    request = RemotingCommand(code=36, opaque=opaque, serialize_type=coding)
    assert success_frame(request) == encode_frame(RemotingCommand.response_to(request, ResponseCode.SUCCESS))
