"""The records of trace data, against those that Apache's Java client wrote."""

import tarfile
from pathlib import Path

import pytest

from gantry.model.record import decode_record
from gantry.model.tracedata import EndTransaction, Pub, Recall, SubAfter, SubBefore, decode_traces, encode_trace

GOLDEN = Path(__file__).parents[3] / "conformance" / "golden"
FILE = "store/commitlog/00000000000000524288"
# The trace messages of the golden store, by their offset in its CommitLog (expected.json).
OFFSETS = (571_472, 573_871)


def golden_bodies() -> list[bytes]:
    with tarfile.open(GOLDEN / "store-clean.tar.gz") as archive:
        content = archive.extractfile(FILE)
        assert content is not None
        data = content.read()
    return [decode_record(data, offset - 524_288).body for offset in OFFSETS]


def test_the_records_of_a_java_client_are_read_and_written_byte_by_byte():
    first, second = golden_bodies()
    traces, unreadable = decode_traces(first)
    assert (len(traces), unreadable) == (10, 0)
    assert traces[0] == Pub(
        at_ms=1_795_255_528_940,
        region="DefaultRegion",
        group="PIDR_Golden",
        topic="GoldenTrace",
        message_id="C000020238B75FFD2B27692985EB0459",
        tag="TagTr",
        keys="trace0",
        store_host="127.0.0.1:20911",
        body_bytes=40,
        cost_ms=6,
        message_kind=0,
        stored_id="7F000001000051AF000000000008AB46",
        is_success=True,
    )
    for body in (first, second):
        assert "".join(encode_trace(trace) for trace in decode_traces(body)[0]).encode() == body


# The golden store has no other kinds. These lines follow the reference of RocketMQ 5.3's encoder.
BEFORE = "SubBefore\x0117\x01DefaultRegion\x01CG\x01R1\x01M1\x012\x01null\x02"
AFTER = "SubAfter\x01R1\x01M1\x015\x01false\x01null\x014\x0122\x01CG\x02"


def test_the_records_of_consumers_are_read_and_written():
    traces, unreadable = decode_traces((BEFORE + AFTER).encode())
    assert unreadable == 0
    assert traces == [
        SubBefore(
            at_ms=17, region="DefaultRegion", group="CG", request_id="R1", message_id="M1", retry_times=2, keys=None
        ),
        SubAfter(
            request_id="R1", message_id="M1", cost_ms=5, is_success=False, keys=None, code=4, at_ms=22, group="CG"
        ),
    ]
    assert "".join(map(encode_trace, traces)) == BEFORE + AFTER


def test_the_other_kinds_are_read():
    end = "EndTransaction\x019\x01R\x01PG\x01T\x01M1\x01\x01null\x01h:1\x012\x01tx\x01COMMIT_MESSAGE\x01true\x02"
    recall = "Recall\x0110\x01R\x01PG\x01T\x01M1\x01true\x02"
    assert decode_traces((end + recall).encode()) == (
        [
            EndTransaction(
                at_ms=9,
                group="PG",
                topic="T",
                message_id="M1",
                store_host="h:1",
                state="COMMIT_MESSAGE",
                is_from_check=True,
            ),
            Recall(at_ms=10, group="PG", topic="T", message_id="M1", is_success=True),
        ],
        0,
    )


@pytest.mark.parametrize(
    ("line", "stored_id", "host"),
    [
        ("Pub\x011\x01R\x01G\x01T\x01M\x01null\x01\x01h:1\x014\x012\x010\x01true", None, None),
        ("Pub\x011\x01R\x01G\x01T\x01M\x01null\x01\x01h:1\x014\x012\x010\x01AB\x01true", "AB", None),
        ("Pub\x011\x01R\x01G\x01T\x01M\x01null\x01\x01h:1\x014\x012\x010\x01AB\x01true\x0110.0.0.1", "AB", "10.0.0.1"),
    ],
)
def test_a_send_is_read_with_13_to_15_fields(line, stored_id, host):
    (trace,), _ = decode_traces(line.encode() + b"\x02")
    assert isinstance(trace, Pub)
    assert (trace.stored_id, trace.client_host, trace.is_success, trace.tag, trace.keys) == (
        stored_id, host, True, None, None,
    )  # fmt: skip


def test_the_end_of_a_consumption_is_read_without_the_newer_fields():
    (trace,), _ = decode_traces(b"SubAfter\x01R1\x01M1\x015\x01true\x01K\x02")
    assert trace == SubAfter(request_id="R1", message_id="M1", cost_ms=5, is_success=True, keys="K")
    # A client of the cloud ends the record behind the code.
    (trace,), _ = decode_traces(b"SubAfter\x01R1\x01M1\x015\x01true\x01K\x010\x01\x02")
    assert trace == SubAfter(request_id="R1", message_id="M1", cost_ms=5, is_success=True, keys="K", code=0)


def test_records_that_can_not_be_read_are_counted():
    body = b"What\x011\x02Pub\x011\x02SubBefore\x01x\x01R\x01G\x01Q\x01M\x010\x01\x02\xff\xfe\x02" + BEFORE.encode()
    traces, unreadable = decode_traces(body)
    assert (len(traces), unreadable) == (1, 4)
