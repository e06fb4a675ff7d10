from gantry.model.message import CrcState
from gantry.model.record import encode_blank
from gantry.storeformat import resync
from gantry.storeformat.manifest import StoreManifest
from gantry.storeformat.resync import (
    NO_MANIFEST,
    ResumeKind,
    ResumePoint,
    examine,
    find_filler,
    find_next_record,
    find_used_end,
    is_filler,
    resume_after_damage,
)
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


def test_the_next_record_is_found_across_the_border_of_search_pieces() -> None:
    for shift in range(-8, 3):
        start = CHUNK + shift
        store = StoreBuilder(log_file_bytes=4 * CHUNK)
        store.log += bytes(start)
        data = store.add().data
        memory = bytearray(start) + data + bytes(100)
        assert find_next_record(memory, 0, end=len(memory), base=0) == start
        assert find_next_record(memory, start + 1, end=len(memory), base=0) is None
        assert find_next_record(memory, 0, end=start + len(data) - 1, base=0) is None


def test_a_magic_number_at_the_very_end_is_no_record() -> None:
    memory = bytearray(8) + b"\xda\xa3\x20"
    assert find_next_record(memory, 0, end=len(memory), base=0) is None
    memory += b"\xa8"
    assert find_next_record(memory, 0, end=len(memory), base=0) is None


def test_a_record_at_another_offset_is_not_valid() -> None:
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


class TestResumeAfterDamage:
    """The decisions that recovery and `gantry store verify` share."""

    def resumed(
        self,
        store: StoreBuilder,
        damaged: int,
        *,
        data_end: int | None = None,
        manifest: StoreManifest = NO_MANIFEST,
        free: int = 50,
    ) -> ResumePoint:
        """Damage a record's body, and resume after the damage in a file that ends with filler."""
        before = store.records[damaged]
        memory = bytearray(store.log + encode_blank(free).ljust(free, b"\0"))
        memory[before.offset + 90] ^= 1
        assert examine(memory, before.offset, end=len(memory), base=0, manifest=manifest).problem is not None
        return resume_after_damage(
            memory,
            before.offset,
            end=len(memory),
            data_end=len(memory) if data_end is None else data_end,
            base=0,
            manifest=manifest,
            stored_at_ms=store.stored_at_ms,
        )

    def built(self, *after_ms: int) -> StoreBuilder:
        store = StoreBuilder(log_file_bytes=1 << 20)
        for step_ms in after_ms:
            store.add(body=b"x" * 100, after_ms=step_ms)
        return store

    def test_it_goes_on_at_the_next_record(self) -> None:
        store = self.built(1, 1, 1)
        assert self.resumed(store, 0) == (ResumeKind.RECORD, store.records[1].offset, False)

    def test_without_a_record_it_goes_on_at_the_filler(self) -> None:
        store = self.built(1, 1)
        assert self.resumed(store, 1) == (ResumeKind.FILLER, len(store.log), False)

    def test_the_filler_may_be_unwritten_but_for_its_head(self) -> None:
        store = self.built(1, 1)
        end = len(store.log)
        assert self.resumed(store, 1, data_end=end + 8, free=4000) == (ResumeKind.FILLER, end, False)
        assert self.resumed(store, 1, data_end=end + 7, free=4000) == (ResumeKind.NONE, end + 4000, False)

    def test_a_limit_before_the_end_of_the_file_hides_the_filler(self) -> None:
        store = self.built(1, 1)
        memory = bytearray(store.log + encode_blank(50).ljust(50, b"\0"))
        start, end = store.records[1].offset, len(memory) - 1
        memory[start + 90] ^= 1
        found = resume_after_damage(memory, start, end=end, data_end=end, base=0, stored_at_ms=0)
        assert found == (ResumeKind.NONE, end, False)

    def test_records_older_than_the_last_one_are_stale_where_no_mark_covers_them(self) -> None:
        store = self.built(1, 1, 1, 1, 1)
        memory = bytearray(store.log)
        first = store.records[0]
        memory[first.offset : first.offset + 4] = bytes(
            4
        )  # Its size is gone, too: more than one record may be damaged.
        now_ms = store.records and store.stored_at_ms
        keywords = {"end": len(memory), "data_end": len(memory), "base": 0}
        found = resume_after_damage(memory, 0, **keywords, stored_at_ms=now_ms - 1)
        assert found == (ResumeKind.RECORD, store.records[3].offset, True)
        found = resume_after_damage(memory, 0, **keywords, stored_at_ms=now_ms + 1)
        assert found == (ResumeKind.NONE, len(memory), True)
        manifest = StoreManifest(record_checksum_from=0)
        found = resume_after_damage(memory, 0, **keywords, stored_at_ms=now_ms + 1, manifest=manifest)
        assert found == (ResumeKind.RECORD, store.records[1].offset, False)

    def test_the_record_after_exactly_one_damaged_record_is_never_stale(self) -> None:
        store = self.built(1, 1, -1000)
        store.stored_at_ms += 2000
        assert self.resumed(store, 1) == (ResumeKind.RECORD, store.records[2].offset, False)

    def test_too_few_bytes_for_a_size_are_nothing(self) -> None:
        memory = bytearray(20)
        found = resume_after_damage(memory, 15, end=20, data_end=20, base=0, stored_at_ms=0)
        assert found == (ResumeKind.NONE, 20, False)


def test_a_checksum_that_another_program_has_copied_counts_as_none() -> None:
    record = bytearray(StoreBuilder(log_file_bytes=4096).add().data)
    record[48] ^= 1  # In the born host.
    foreign, own = StoreManifest(record_checksum_from=4096), StoreManifest(record_checksum_from=0)
    examined = examine(record, 0, end=len(record), base=0, manifest=foreign)
    assert (examined.problem, examined.crc) == (None, CrcState.BODY_ONLY)
    for manifest in (own, NO_MANIFEST, StoreManifest(record_checksum_from=0, clean_stop_offset=4096)):
        assert examine(record, 0, end=len(record), base=0, manifest=manifest).problem is not None
    after_stop = StoreManifest(record_checksum_from=0, clean_stop_offset=0)
    assert examine(record, 0, end=len(record), base=0, manifest=after_stop).problem is None
    head = examine(record, 0, end=len(record), base=0, manifest=foreign).head
    assert head is not None
    record[head.body_start] ^= 1
    assert examine(record, 0, end=len(record), base=0, manifest=foreign).problem is not None
