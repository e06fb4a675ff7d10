"""The gateway builds on private classes of uvicorn: these tests fail as soon as one of them changes.

docs/adr/0026-uvicorn.md says which names the gateway uses, and what to do when this module fails.
"""

import hashlib
import inspect
import tomllib
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols import utils
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.protocols.websockets import websockets_sansio_impl

from services.gateway.httpconnection import GuardedProtocol
from services.gateway.server import GatewayServer
from services.gateway.streamprotocol import StreamProtocol
from services.gateway.timedflow import TimedFlow

ROOT = Path(__file__).resolve().parents[4]
RANGE = "uvicorn~=0.54.0"
"""The requirement in pyproject.toml: any 0.54."""

DIGESTS = {
    uvicorn.server: "c1be9d133467a42ab88d7168e408ef5a90257661a901899426214a3d1fc2d026",
    utils: "d6129d0c29a8fc6b46acad7365f6bbd232fb1ebde60c4f119cbebd3b8ac74118",
    flow_control: "d39d16560df512f3ce907c329c2a0c3f5cd7165fef3b753876eae5739bf2a785",
    httptools_impl: "1d4e1c579df4168433a61a01f10c628b31c1790e72dd9769d2b8633b22214033",
    websockets_sansio_impl: "8b32a97a1608788bba525c8b1e0d3eb0a93cd09d0f4f41b9b83cebd527336c49",
}
"""SHA-256 of the modules whose private parts the gateway uses, as they were read for RANGE."""

INHERITED = {
    GuardedProtocol: "eof_received on_url pause_writing resume_writing",
    StreamProtocol: "handle_connect handle_parser_exception handle_pong pause_writing shutdown",
    TimedFlow: "drain pause_writing resume_writing",
    GatewayServer: "serve",
}
"""Methods of uvicorn that do their work unchanged, beside those that the gateway's classes extend."""

EXTENDED = {
    GuardedProtocol: "connection_made shutdown",
    StreamProtocol: "connection_made connection_lost data_received keepalive_timeout receive resume_writing send",
    TimedFlow: "pause_reading resume_reading",
    GatewayServer: "capture_signals startup",
}
"""Methods that uvicorn calls, or that call uvicorn's, under names that uvicorn gave them."""


@pytest.mark.parametrize("module", DIGESTS, ids=lambda module: module.__name__)
def test_the_private_parts_of_uvicorn_are_those_that_were_read(module):
    found = hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
    assert found == DIGESTS[module], (
        f"{module.__name__} of uvicorn {uvicorn.__version__} differs from the one that the gateway was built on."
        " docs/adr/0026-uvicorn.md says what to compare and which tests to run before the digest is changed here."
    )


def test_only_versions_whose_private_parts_were_read_are_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert RANGE in project["optional-dependencies"]["server"]
    assert f"uvicorn=={uvicorn.__version__}\n" in (ROOT / "constraints.txt").read_text()
    assert uvicorn.__version__.rpartition(".")[0] == RANGE.partition("~=")[2].rpartition(".")[0]


@pytest.mark.parametrize("ours", INHERITED, ids=lambda ours: ours.__name__)
def test_uvicorn_has_the_methods_that_the_gateway_inherits_and_extends(ours):
    base = ours.__mro__[1]
    assert base.__module__.startswith("uvicorn.")
    for name in INHERITED[ours].split():
        assert name in vars(base), f"uvicorn has no {base.__name__}.{name} any more"
        assert name not in vars(ours), f"{ours.__name__}.{name} is extended now: move it to EXTENDED"
    for name in EXTENDED[ours].split():
        assert name in vars(base), f"uvicorn has no {base.__name__}.{name} any more"
        theirs, own = (list(inspect.signature(vars(each)[name]).parameters) for each in (base, ours))
        assert own[: len(theirs)] == theirs, f"{base.__name__}.{name} has other parameters"


def test_the_status_lines_are_bytes():
    assert httptools_impl.STATUS_LINE[201] == b"HTTP/1.1 201 Created\r\n"
