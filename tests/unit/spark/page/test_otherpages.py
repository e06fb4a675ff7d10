"""The pages of the backlog profile and of the throughput."""

from typing import Any

from spark.page.formatting import EMPTY_CELL
from tests.unit.spark.page.reportrows import page, read, text


def bucket(section: str, name: str, messages: int | None, *, lower: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        "group": "billing", "topic": "ORDERS", "section": section, "bucket": name, "lower_bound": lower,
        "upper_bound": None, "messages": messages, "bytes": None if messages is None else messages * 1_024, **more,
    }  # fmt: skip


def backlog(rows: list[dict[str, Any]]) -> str:
    return page(rows, job="backlog_profile")


def flow(hour: int, topic: str, messages: int | None, group: str | None = None, unit: str = "hour") -> dict[str, Any]:
    return {
        "unit": unit, "bucket_at": f"2026-11-22T{hour:02}:00:00.000Z", "topic": topic, "group_name": group,
        "messages": messages,
    }  # fmt: skip


def cells(html: str) -> list[list[str]]:
    tables = [table for table in read(html).iter("table") if (table.get("class") or "").startswith("overview ")]
    return [["".join(cell.itertext()) for cell in row] for table in tables for row in table.findall("tbody/tr")]


def test_a_backlog_by_age_tag_key_size_and_queue() -> None:
    rows = [
        bucket("age", "1 h to 6 h", 100, lower=3_600.0), bucket("age", "under 1 min", 900, lower=0.0),
        bucket("age", "over 7 d", 0, lower=604_800.0), bucket("tag", "UA", 700), bucket("tag", "AA", 300),
        *[bucket("key", f"N{number:02}", number) for number in range(1, 26)], bucket("size", "under 1 KiB", 1_000, lower=0.0),
        bucket("queue", "broker-a/0", 250), bucket("queue", "broker-a/1", 750),
    ]  # fmt: skip
    html = backlog(rows)
    said = text(html)
    assert "1,000 messages wait for 1 group." in said
    assert "Its oldest messages are 1 h to 6 h old." in said
    assert cells(html) == [["billing ORDERS", "1,000", "1000 KiB", "1 h to 6 h", "75%"]]
    figures = {figure.findtext("figcaption/b"): figure for figure in read(html).findall(".//figure")}
    assert list(figures) == ["How old", "Tags", "Keys", "Body sizes", "Queues"]
    assert "".join(figures["How old"].itertext()).index("under 1 min") < "".join(figures["How old"].itertext()).index(
        "1 h to"
    )
    assert "The 10 largest of 25." in said
    assert len(figures["Keys"].findall(".//tbody/tr")) == 10
    assert "The fullest has 1.5 times the mean." in said


def test_messages_that_the_filter_was_not_applied_to_are_named_and_counted_apart() -> None:
    said = text(backlog([bucket("queue", "broker-a/0", 5), bucket("filter", "they can't be read: a > 5", 2)]))
    assert "5 messages wait for 1 group." in said
    assert "The filter is not applied to 2 messages: they can't be read: a > 5." in said


def test_a_long_key_takes_little_room_and_time() -> None:
    # A key may have 32,000 characters. The library measures each character of a label, again and again.
    rows = [bucket("key", f"{number}-{'k' * 1_000}", 5) for number in range(10)]
    html = backlog([*rows, bucket("queue", "broker-a/0", 50)])
    assert "0-" + "k" * 198 + "…" in text(html)
    assert "k" * 200 not in html


def test_a_backlog_whose_messages_can_not_be_read_is_unknown() -> None:
    html = backlog([bucket("filter", "they can't be read: a > 5", 2)])
    assert cells(html)[0][1:3] == ["unknown", "unknown"]


def test_an_unknown_backlog_is_no_number() -> None:
    html = backlog([bucket("queue", "broker-a/0", 5), bucket("queue", "broker-b/0", None)])
    assert cells(html)[0][1:3] == ["unknown", "unknown"]
    assert "not every queue could be read" in text(html)
    assert "unknown number of messages" in text(html)


def test_an_empty_backlog_is_reported() -> None:
    assert "Nothing is waiting." in text(backlog([]))
    assert "Nothing is waiting." in text(backlog([bucket("queue", "broker-a/0", 0)]))


def test_many_backlogs_are_all_in_the_table() -> None:
    rows = [bucket("queue", "broker-a/0", 1_000 - index, group=f"g{index}") for index in range(300)]
    html = backlog(rows)
    assert len(cells(html)) == 300
    assert "The 288 smaller ones are in the table only." in text(html)
    assert len(html.encode()) < 2_000_000


def throughput(rows: list[dict[str, Any]]) -> str:
    return page(rows, job="throughput_rollup")


def test_in_and_out_by_topic_and_group() -> None:
    html = throughput([
        flow(7, "A", 100), flow(8, "A", 50), flow(7, "A", 90, "g"), flow(8, "A", 60, "g"), flow(8, "A", 7, "h"),
        flow(8, "B", 1_000),
    ])  # fmt: skip
    said = text(html)
    assert "1,150 messages came in to 2 topics." in said
    assert "157 went out to 2 groups" in said
    assert [[row[0], row[1], row[4]] for row in cells(html)] == [
        ["B", "1,000", EMPTY_CELL], ["A", "150", "157"], ["↳ g", "", "150"], ["↳ h", "", "7"],
    ]  # fmt: skip


def test_a_count_with_missing_samples_is_a_lower_bound() -> None:
    html = throughput([flow(7, "A", 100), flow(8, "A", None), flow(7, "A", None, "g")])
    assert "At least 100 messages came in to 1 topic." in text(html)
    assert [[row[0], row[1], row[4]] for row in cells(html)] == [
        ["A", "≥ 100", "unknown: no samples"], ["↳ g", "", "unknown: no samples"],
    ]  # fmt: skip
    assert cells(html)[1][5:] == ["unknown: no samples", EMPTY_CELL]


def test_the_finest_visible_unit_is_shown() -> None:
    hours = [flow(hour, "A", 1) for hour in range(24)]
    minutes = [{**flow(hour, "A", 1, unit="minute"), "bucket_at": f"2026-11-22T{hour:02}:{minute:02}:00Z"}
               for hour in range(24) for minute in range(60)]  # fmt: skip
    assert "By the hour" in text(throughput([*hours, *minutes]))
    assert "By the minute" in text(throughput([*hours, *minutes[:60]]))
    assert "There is nothing to show." in text(throughput([]))


def test_a_bucket_without_samples_is_a_gap_and_a_partial_one_a_lower_bound() -> None:
    html = throughput([flow(5, "A", 10), flow(8, "A", 20)])
    assert "At least 30 messages came in" in text(html)
    html = throughput([{**flow(7, "A", 10), "covered_s": 3_600.0}, {**flow(8, "A", 20), "covered_s": 1_200.0}])
    assert cells(html)[0][1] == "≥ 30"
    assert "≥ 20" in text(html)
    assert cells(throughput([{**flow(7, "A", 10), "covered_s": 3_595.0}]))[0][1] == "10"


def test_unreadable_messages_are_counted_separately_and_last() -> None:
    rows = [
        bucket("size", "(unknown)", 5, bytes=None), bucket("size", "1024-2047", 3, lower=1_024.0, upper_bound=2_048.0),
        bucket("size", "0", 1, lower=0.0, upper_bound=1.0), bucket("tag", "(unknown)", 9), bucket("tag", "UA", 2),
    ]  # fmt: skip
    figures = {figure.findtext("figcaption/b"): figure for figure in read(backlog(rows)).findall(".//figure")}
    named = {title: [row.findtext("th") for row in figure.findall(".//tbody/tr")] for title, figure in figures.items()}
    assert named == {"Tags": ["UA", "? unknown"], "Body sizes": ["empty", "1 KiB to 2 KiB", "? unknown"]}


def test_rates_are_means_of_known_values_and_peaks_have_their_time() -> None:
    html = throughput([
        {**flow(7, "A", 3_600), "covered_s": 3_600.0, "rate_max": 5.0},
        {**flow(8, "A", 3_600), "covered_s": 1_800.0, "rate_max": 8.0},
        {**flow(7, "A", 7_200, "g"), "covered_s": 3_600.0, "rate_max": 40.0},
    ])  # fmt: skip
    assert cells(html) == [
        ["A", "≥ 7,200", "1.3/s", "≥ 8.0/s Nov 22 08:00", "7,200", "2.0/s", "40.0/s Nov 22 07:00"],
        ["↳ g", "", "", "", "7,200", "2.0/s", "40.0/s Nov 22 07:00"],
    ]
    assert "Highest peak out 40.0/s g on A, Nov 22 07:00" in text(html)
    assert "peak in ≥ 8.0/s (Nov 22 08:00)" in text(html)


def test_a_mean_is_not_above_its_peak_if_one_queue_was_known_for_a_short_time_only() -> None:
    html = throughput([
        # Sixty messages a second, on two brokers. One of them was looked at for five seconds only.
        {**flow(7, "A", 1_800 + 150, unit="minute"), "covered_s": 5.0, "rate_max": 60.0},
        {**flow(8, "A", 3_600, unit="minute"), "covered_s": 60.0, "rate_max": 61.0},
    ])  # fmt: skip
    assert cells(html)[0][2] == "60.0/s"
    (figure,) = read(html).findall(".//figure")
    assert [[cell.text for cell in row.findall("td")][1] for row in figure.findall(".//tbody/tr")] == ["60.0/s"] * 2


def test_peaks_of_several_groups_are_not_summed_and_unknown_ones_are_no_number() -> None:
    several = [{**flow(7, "A", 10, group), "rate_max": peak} for group, peak in (("g", 3.0), ("h", 4.0), ("i", None))]
    several.append({**flow(8, "A", 10, "h"), "rate_max": 9.0})
    html = throughput([flow(7, "A", 30), *several])
    assert {row[0]: row[6] for row in cells(html)} == {
        "A": EMPTY_CELL, "↳ h": "9.0/s Nov 22 08:00", "↳ g": "3.0/s Nov 22 07:00", "↳ i": EMPTY_CELL,
    }  # fmt: skip
    assert cells(html)[0][3] == EMPTY_CELL
