"""Start of a lag and owners of queues on pages; rows of older versions contain neither."""

from spark.page.formatting import EMPTY_CELL
from tests.unit.spark.page.reportrows import lag, page, queue, read, stopped, text

OWNERS = [{"client_id": "c1", "host": "10.0.0.1", "queues": 1}, {"client_id": "c2", "host": "10.0.0.2", "queues": None}]


def owner_cells(html: str) -> list[str]:
    tables = read(html).findall(".//div[@class='scroll']/table")
    (table,) = [one for one in tables if one.findtext("thead/tr/th") == "Queue"]
    return ["".join(row[-2].itertext()) for row in table.findall("tbody/tr")]


def test_a_late_group_has_its_start_and_its_clients() -> None:
    row = stopped(verdict="STALLED", behind_since="2026-11-22T07:25:00.000Z", owners=OWNERS)
    queues = [
        queue(row, "broker-a", 0, owners=OWNERS[:1]), queue(row, "broker-a", 1, owners=None),
        queue(row, "broker-a", 2, owners=[]), queue(row, "broker-a", 3, verdict="OK", owners=None),
    ]  # fmt: skip
    html = page([row, *queues])
    said = text(html)
    assert "Behind since 2026-11-22 07:25:00 UTC" in said
    assert "c1 at 10.0.0.1 : 1 queue" in said
    assert "c2 at 10.0.0.2 : queues unknown" in said
    assert owner_cells(html) == ["c1 at 10.0.0.1", "unknown", "nobody", EMPTY_CELL]


def test_an_unobserved_start_is_not_shown_as_a_time() -> None:
    row = stopped(behind_since=None, evidence={"behind_at_latest": "2026-11-21T09:30:00+00:00"})
    assert "Behind since before 2026-11-21 09:30:00 UTC" in text(page([row]))
    assert "Behind since unknown : there are no samples of the time in which it fell behind" in text(page([stopped()]))
    assert "Behind since" not in text(page([lag()]))


def test_rows_of_older_versions_are_shown() -> None:
    row = stopped(clients=2)
    html = page([row, queue(row, "broker-a", 0)])
    assert owner_cells(html) == ["unknown"]
    assert "Clients" not in text(html)


def test_many_clients_are_counted() -> None:
    owners = [{"client_id": f"c{index}", "host": "h", "queues": 0} for index in range(40)]
    assert "24 more" in text(page([stopped(owners=owners)]))
