"""A process divides its descriptors among their users."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.runtime.descriptors import CONNECTIONS_MIN, FILES_MAX, FILES_MIN, share_descriptors
from gantry.runtime.errors import StartupError


@pytest.mark.parametrize(
    ("limit", "wanted", "files", "connections"),
    [
        (1 << 20, 10_000, FILES_MAX, 10_000),
        (20_100, 10_000, 10_000, 10_000),
        (10_100, 10_000, 2_500, 7_500),
        (1_124, 10_000, 256, 768),
        (300, 20, 180, 20),
        (132, 10_000, FILES_MIN, CONNECTIONS_MIN),
        (121, 5, FILES_MIN, 5),
        (116, 0, FILES_MIN, 0),
    ],
)
def test_connections_come_before_files_but_leave_them_a_quarter(limit, wanted, files, connections):
    shares = share_descriptors(limit, process=100, connections_max=wanted, has_files=True)
    assert shares == (limit, 100, files, connections)


@pytest.mark.parametrize(("limit", "connections"), [(1 << 20, 10_000), (1_000, 900), (116, 16)])
def test_without_files_connections_get_the_rest(limit, connections):
    assert share_descriptors(limit, process=100, connections_max=10_000) == (limit, 100, 0, connections)


def test_too_few_are_refused_with_all_numbers():
    with pytest.raises(StartupError) as refused:
        share_descriptors(131, process=100, connections_max=10_000, has_files=True)
    assert str(refused.value) == (
        "this process may open 131 descriptors and needs at least 132 (100 for itself, 16 for its files, 16 for "
        "connections); raise the limit of open files (ulimit -n)"
    )


@given(st.integers(132, 1 << 21), st.integers(0, 20_000), st.booleans())
def test_no_share_reduces_another_one(limit: int, wanted: int, has_files: bool) -> None:
    shares = share_descriptors(limit, process=100, connections_max=wanted, has_files=has_files)
    assert shares.process + shares.files + shares.connections <= limit
    assert min(wanted, CONNECTIONS_MIN) <= shares.connections <= wanted
    assert (FILES_MIN if has_files else 0) <= shares.files <= (FILES_MAX if has_files else 0)
