from gantry.model.record import encode_blank
from gantry.storeformat import resync
from gantry.storeformat.resync import examine, find_filler, find_next_record, find_used_end, is_filler
from tests.support.storebuilder import StoreBuilder

CHUNK = resync._CHUNK_BYTES


def test_filler_has_the_size_of_the_rest() -> None:
    memory = bytearray(encode_blank(100).ljust(100, b"\0"))
    assert is_filler(memory, 0, end=100)
    assert not is_filler(memory, 0, end=99)
    assert not is_filler(memory, 93, end=100)


def test_filler_is_found_after_bytes_that_resemble_it() -> None:
    memory = bytearray(b"xxx" + encode_blank(5) + b"yyy" + encode_blank(40).ljust(40, b"\0"))
    assert find_filler(memory, 0, end=len(memory)) == len(memory) - 40
    assert find_filler(memory, len(memory) - 39, end=len(memory)) is None


def test_next_record_is_found_across_the_border_of_search_pieces() -> None:
    for shift in range(-8, 3):
        start = CHUNK + shift
        store = StoreBuilder(log_file_bytes=4 * CHUNK)
        store.log += bytes(start)
        data = store.add().data
        memory = bytearray(start) + data + bytes(100)
        assert find_next_record(memory, 0, end=len(memory), base=0) == start
        assert find_next_record(memory, start + 1, end=len(memory), base=0) is None
        assert find_next_record(memory, 0, end=start + len(data) - 1, base=0) is None


def test_magic_at_the_very_end_is_no_record() -> None:
    memory = bytearray(8) + b"\xda\xa3\x20"
    assert find_next_record(memory, 0, end=len(memory), base=0) is None
    memory += b"\xa8"
    assert find_next_record(memory, 0, end=len(memory), base=0) is None


def test_record_elsewhere_does_not_prove_itself() -> None:
    data = bytearray(StoreBuilder().add().data)
    assert examine(data, 0, end=len(data), base=0).problem is None
    assert examine(data, 0, end=len(data), base=4096).problem == "the record says that it lies at 0"


def test_used_end() -> None:
    memory = bytearray(3 * CHUNK)
    assert find_used_end(memory, 0, end=len(memory)) == 0
    memory[CHUNK + 5] = 1
    assert find_used_end(memory, 0, end=len(memory)) == CHUNK + 6
    assert find_used_end(memory, CHUNK + 6, end=len(memory)) == CHUNK + 6
    assert find_used_end(memory, 7, end=7) == 7
