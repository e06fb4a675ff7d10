"""Equal groups shown as one row, and the groups that get a line in a chart."""

from typing import Any

from spark.page import charted_pairs
from tests.unit.spark.page.reportrows import SVG, lag, many, page, queue, read, samples, stopped, text, unknown

DRAINING = {"drain_eta_s": 60.0, "drain_eta_low_s": 60.0, "drain_eta_high_s": 70.0}


def table(html: str) -> list[list[str]]:
    """Return the rows of the table of all groups, without those that unfold."""
    rows = read(html).find(".//table[@class='overview lag']/tbody") or []
    return [[" ".join("".join(cell.itertext()).split()) for cell in row] for row in rows if len(row) > 1]


def figures(html: str) -> dict[str, list[tuple[str, str]]]:
    """Return each chart's numbers: the first and the last column."""
    return {
        found.findtext("figcaption/b") or "": [
            ("".join(row[0].itertext()), "".join(row[-1].itertext())) for row in found.findall(".//tbody/tr")
        ]
        for found in read(html).iter("figure")
    }


def test_groups_of_one_topic_and_verdict_are_one_row_and_one_section() -> None:
    html = page(many(60))
    rows = table(html)
    assert rows[0][0].startswith("▲stopped20 groups orders.createdThe worst, warehouse-eu-0057: No consumer")
    assert rows[0][1:] == ["1,000 to 1,057", "2 h 5 min", "1.0/s", "1.0/s", "never", "1 d 2 h"]
    root = read(html)
    inner = root.findall(".//td[@class='folded']//tbody/tr")
    assert len(inner) == 20
    (section,) = root.findall(".//details[@class='group many']")
    assert len(section.findall("details[@class='group']")) == 20
    targets = {element.get("id") for element in root.iter()}
    links = [(link.get("href") or "")[1:] for link in root.iter("a")]
    assert len(links) == 23
    assert set(links) <= targets


def test_few_groups_are_not_combined() -> None:
    assert len(table(page(many(20)))) == 20


def test_retry_topics_of_groups_are_one_row_although_each_group_has_its_own() -> None:
    retried = [stopped(f"g{index:03}", topic=f"%RETRY%g{index:03}") for index in range(300)]
    html = page([*retried, stopped("other", topic="T")])
    rows = table(html)
    assert len(rows) == 2
    assert rows[0][0].startswith("▲stopped300 groups retry topicsThe worst, g000: ")
    said = text(html)
    assert "300 groups retry topics" in said
    assert "--topic %RETRY%" not in said
    assert "--topic retry topics" not in said
    # The retry topic of another group is a topic as any other.
    shared = [stopped(f"g{index:03}", topic="%RETRY%g000") for index in range(1, 30)]
    assert table(page(shared))[0][0].startswith("▲stopped29 groups %RETRY%g000")


def test_a_combined_row_states_the_number_of_unknown_groups_and_of_those_without_an_end() -> None:
    rows = [stopped(f"g{index:02}", lag_messages=None if index == 3 else 5, in_rate=None) for index in range(20)]
    rows += [stopped(f"h{index}", lag_messages=5, **DRAINING) for index in range(2)]
    (row,) = table(page([*rows, lag("other", topic="T"), stopped("last", topic="U", lag_messages=1)]))[:1]
    assert row[1] == "5, 1 unknown"
    assert row[3] == "1.0/s, 20 unknown"
    assert row[5] == "1 min to 1 min 10 s, 20 unknown"
    never = [stopped(f"g{index:02}", **(DRAINING if index < 5 else {})) for index in range(30)]
    assert table(page(never))[0][5] == "never: 25 of 30"


def test_a_combined_row_shows_the_whole_interval_or_how_many_rows_have_no_end_in_sight() -> None:
    rows = [stopped(f"g{index:02}", **{**DRAINING, "drain_eta_low_s": 40.0 - index}) for index in range(30)]
    assert table(page(rows))[0][5] == "11 s to 1 min 10 s"
    rows[7] |= {"drain_eta_high_s": None}
    assert table(page(rows))[0][5] == "no end in sight: 1 of 30"


def test_a_group_of_several_topics_keeps_its_section_if_others_are_combined() -> None:
    rows = [*many(60), stopped("warehouse-eu-0000", topic="B")]
    sections = [
        found.findtext("summary/h3/bdi") for found in read(page(rows)).iter("details") if found.get("class") == "group"
    ]
    assert sections.count("warehouse-eu-0000") == 1
    assert "20 groups orders.created" in table(page(rows))[0][0]


def test_a_very_large_combined_row_counts_the_omitted_groups() -> None:
    html = page(many(900))
    said = text(html)
    assert "The 300 groups" in said
    assert "250 more like these, none of them worse, are left out." in said
    assert "280 more groups, none of them worse: gantry report show lag_report --topic orders.created" in said
    assert len(html.encode()) < 1_000_000


def test_histories_are_read_for_the_first_rows_of_the_table() -> None:
    rows = [
        lag("late", lag_messages=9, lag_seconds=9_000.0), stopped("short", topic="T", lag_seconds=5.0),
        lag("slow", verdict="LAGGING", lag_messages=7, lag_seconds=7_000.0), unknown("lost"),
        stopped("empty", topic="U", lag_messages=0, lag_seconds=0.0),
    ]  # fmt: skip
    assert charted_pairs(rows, 9) == [("short", "T"), ("slow", "ORDERS"), ("lost", "ORDERS")]
    assert charted_pairs(rows, 1) == [("short", "T")]
    assert charted_pairs([queue(rows[0], "a", 0), rows[0]], 9) == [("late", "ORDERS")]


def test_charts_have_the_order_of_the_table_and_equal_groups_share_one() -> None:
    rows = [*many(60), stopped("alone", topic="T", lag_seconds=9_999.0)]
    past = [sample for group, topic in charted_pairs(rows, 20) for sample in samples(group, [1, 2, 3], topic=topic)]
    titles = [title for title in figures(page(rows, history=past)) if " · " in title]
    assert titles[:4] == [
        "alone · T", "alone · T, time behind", "warehouse-eu-0057 · orders.created",
        "warehouse-eu-0057 · orders.created, time behind",
    ]  # fmt: skip
    assert "The worst of 20 groups of this topic." in text(page(rows, history=past))


def last_points(row: dict[str, Any], history: list[dict[str, Any]]) -> list[str]:
    drawn = figures(page([row], history=history))
    return [drawn[title][-1][1] for title in ("billing · ORDERS", "billing · ORDERS, time behind")]


def test_the_last_point_of_a_line_is_the_number_of_the_table() -> None:
    row = stopped(lag_messages=777, lag_seconds=90.0)
    past = samples("billing", [*range(100, 400)])
    assert table(page([row]))[0][1:3] == ["777", "1 min 30 s"]
    assert last_points(row, past) == ["777", "1 min 30 s"]
    # These samples are newer than this row: its broker was read before others.
    early = {**row, "as_of": "2026-11-22T09:29:00.000Z"}
    assert last_points(early, past) == ["777", "1 min 30 s"]
    said = [found.findtext(f"{SVG}desc") or "" for found in read(page([early], history=past)).iter(f"{SVG}svg")]
    assert sum("at the end 777 messages" in one for one in said) == 2


def test_a_line_with_an_unknown_end_ends_unknown() -> None:
    assert last_points(unknown("billing"), samples("billing", [5, 6, 7])) == ["unknown: no sample"] * 2


def test_without_known_times_there_is_no_chart_of_time_behind() -> None:
    past = [{**sample, "behind_s": None} for sample in samples("billing", [5, 6, 7])]
    drawn = figures(page([stopped()], history=past))
    assert "billing · ORDERS" in drawn
    assert "billing · ORDERS, time behind" not in drawn
    del past[0]["behind_s"]
    assert "billing · ORDERS, time behind" not in figures(page([stopped()], history=past))
