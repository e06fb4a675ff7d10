"""Feed invalid bytes to the wire code: it parses them or raises the documented errors, never anything else.

    python -m tests.fuzz.fuzz_remoting [--seconds 60] [--seed N] [--case N]

Frames that Apache RocketMQ sent are mutated, spliced and cut, or made up. Each input is read whole and one byte at a
time, and must give the same commands and the same verdict. Each command is written and read back. Each header and body
is given to every typed reader. A failure prints the seed and the case that repeat it.
"""

import argparse
import gzip
import json
import os
import random
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gantry.remoting import bodies, headers
from gantry.remoting.command import RemotingCommand, decode_frame, encode_frame
from gantry.remoting.connection import Connection
from gantry.remoting.errors import BodyError, HeaderError, RemoteProtocolError

CORPUS = Path(__file__).parent.parent / "conformance" / "golden" / "frames.jsonl.gz"
INPUT_BYTES_MAX = 2_000
FRAME_BYTES_MAX = 4_096

HEADER_KINDS: list[type[headers.Header]] = [
    kind for name in headers.__all__ if isinstance(kind := getattr(headers, name), type) and kind is not headers.Header
]
BODY_READERS: list[Callable[[bytes], Any]] = [
    *(kind.decode for name in bodies.__all__ if hasattr(kind := getattr(bodies, name), "decode")),
    *(getattr(bodies, name) for name in bodies.__all__ if name.startswith("decode_")),
    lambda data: bodies.RegisterBrokerBody.decode(data, compressed=True),
    lambda data: bodies.RegisterBrokerBody.decode(zlib.compress(data), compressed=True, version=409),
]
NASTY = (b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b"\\u",
         b"\\ud800", b"1e999", b"-", b"NaN", b"null", b"{0:", b"{{", b"\xed\xa0\x80", b"\x01", b"\x02", b'{"code":')  # fmt: skip


def load_corpus() -> list[bytes]:
    """Return one short frame of each captured kind."""
    kinds: dict[tuple[object, ...], bytes] = {}
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            frame = bytes.fromhex(row["frame_hex"])
            if len(frame) <= INPUT_BYTES_MAX and not row.get("truncated"):
                kinds.setdefault((row["code"], row["dir"], row["ser"], row.get("response_code")), frame)
    return list(kinds.values())


def make_input(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Make one input: a few frames, then some damage, or none."""
    parts = [make_frame(rng, corpus) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    data = bytearray(b"".join(parts))
    for _ in range(rng.choice((0, 0, 0, 0, 1, 2, 5))):
        damage(rng, data)
    return bytes(data[:INPUT_BYTES_MAX])


def make_frame(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Take a captured frame, damage its header or body and correct its lengths, or make up a frame."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(corpus)
    if kind == 1:
        return rng.randbytes(rng.randrange(60))
    frame = rng.choice(corpus)
    header_end = 8 + (int.from_bytes(frame[4:8], "big") & 0xFFFFFF)
    header, body = bytearray(frame[8:header_end]), bytearray(frame[header_end:])
    for _ in range(rng.randrange(1, 4)):
        damage(rng, header if kind == 2 or not body else body)
    word = (frame[4] << 24) | len(header)
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body


def damage(rng: random.Random, data: bytearray) -> None:
    """Change, remove, repeat or insert a few bytes."""
    at = rng.randrange(len(data) + 1)
    size = rng.choice((1, 1, 2, 4, 16))
    match rng.randrange(6):
        case 0 if data:
            at = min(at, len(data) - 1)
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at : at + size]
        case 2:
            data[at:at] = data[max(0, at - size) : at]
        case 3:
            data[at : at + size] = rng.randbytes(size)
        case 4:
            data[at:at] = rng.choice(NASTY)
        case _:
            data[at : at + size] = rng.choice(NASTY)


def read_all(chunks: Sequence[bytes]) -> tuple[list[RemotingCommand], str | None]:
    """Return the commands that a connection reads from the chunks, and its error for the rest."""
    connection = Connection(frame_bytes_max=FRAME_BYTES_MAX)
    commands: list[RemotingCommand] = []
    try:
        for chunk in chunks:
            commands += connection.receive_data(chunk)
        connection.receive_eof()
    except RemoteProtocolError as error:
        return commands, "ended" if "ended within a frame" in str(error) else "refused"
    return commands, None


def check(data: bytes) -> str:
    """Check the invariants for one input and return the outcome."""
    commands, verdict = read_all([data])
    bytewise = read_all([data[at : at + 1] for at in range(len(data))])
    assert bytewise == (commands, verdict), f"whole: {commands} {verdict}, by bytes: {bytewise}"
    for command in commands:
        again = decode_frame(encode_frame(command)[4:])
        assert again == command, f"{command} was written and read as {again}"
        for kind in HEADER_KINDS:
            try:
                header = kind.from_ext(command.ext_fields)
            except HeaderError:
                continue
            assert kind.from_ext(header.to_ext()) == header
        for read in BODY_READERS:
            try:
                read(command.body_bytes)
            except BodyError:
                continue
    return verdict or ("parsed" if commands else "nothing")


def fuzz(seed: int, *, cases: int | None = None, seconds: float | None = None, first: int = 0) -> Counter[str]:
    """Run cases and count their outcomes; raises an AssertionError that says how to repeat a failure."""
    corpus = load_corpus()
    outcomes: Counter[str] = Counter()
    deadline = None if seconds is None else time.monotonic() + seconds
    case = first
    while (cases is None or case < first + cases) and (deadline is None or time.monotonic() < deadline):
        data = make_input(random.Random(f"{seed}/{case}"), corpus)
        try:
            outcomes[check(data)] += 1
        except Exception as error:
            raise AssertionError(
                f"{type(error).__name__}: {error}\ninput: {data.hex()}\n"
                f"repeat with: python -m tests.fuzz.fuzz_remoting --seed {seed} --case {case}"
            ) from error
        case += 1
    return outcomes


def main(arguments: list[str]) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("GANTRY_TEST_SEED") or time.time_ns()))
    parser.add_argument("--case", type=int)
    options = parser.parse_args(arguments)
    print(f"fuzz remoting: seed {options.seed}", flush=True)
    try:
        if options.case is not None:
            outcomes = fuzz(options.seed, cases=1, first=options.case)
        else:
            outcomes = fuzz(options.seed, seconds=options.seconds)
    except AssertionError as failure:
        print(failure)
        return 1
    print(f"fuzz remoting: {sum(outcomes.values())} inputs: {dict(sorted(outcomes.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
