import pytest

from services.gateway.usecases.configs.namesrvtopics import missing_entries

OURS, THEIRS = "broker-a:4;broker-b:4", "broker-b:4;broker-a:4"


@pytest.mark.parametrize(
    ("first", "second", "repaired"),
    [
        (None, None, [("1", OURS), ("2", OURS)]),
        (OURS, None, [("2", OURS)]),
        (OURS, "broker-a:4", [("2", OURS)]),
        (OURS, OURS, []),
        # A tool wrote this value; another order of brokers would move ordering keys to other queues.
        (THEIRS, THEIRS, []),
        (THEIRS, None, [("2", THEIRS)]),
    ],
)
def test_a_name_server_that_missed_a_change_gets_it(
    first: str | None, second: str | None, repaired: list[tuple[str, str]]
) -> None:
    tables = {"1": {"U": "x:1"}, "2": {"U": "x:1"}}
    for address, value in (("1", first), ("2", second)):
        if value is not None:
            tables[address]["T"] = value
    assert list(missing_entries({"T": OURS}, tables)) == [(address, "T", value) for address, value in repaired]
