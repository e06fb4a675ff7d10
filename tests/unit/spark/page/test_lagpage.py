"""The lag report's page: its sentences, its order, and unknown values, which are never shown as numbers."""

import re
from decimal import Decimal
from typing import Any

import pytest

from spark.page.formatting import EMPTY_CELL
from tests.unit.spark.page.reportrows import NOW, ignored, lag, page, queue, read, samples, stopped, text, unknown

GREW = samples("billing", [100 + 10 * index for index in range(41)])


def headline(html: str) -> str:
    return read(html).findtext(".//p[@class='headline']") or ""


def lead(html: str) -> str:
    return read(html).findtext(".//p[@class='lead']") or ""


def test_a_report_without_a_lag() -> None:
    html = page([lag("a"), lag("b", lag_messages=3, lag_seconds=0.4)], history=samples("a", [0] * 50))
    assert headline(html) == "Nothing is behind."
    assert lead(html) == "All 2 groups keep up: 3 messages are on their way. There is nothing to do."
    said = text(html)
    assert "What to do" not in said
    assert "The worst groups" not in said
    assert "Lag over time" not in said  # The chart shows a line at zero.
    assert lead(page([lag("a")])) == "The one group has consumed everything. There is nothing to do."


def test_no_group_at_all() -> None:
    html = page([])
    assert headline(html) == "There are no consumer groups yet."
    assert "unknown" not in text(html).lower().replace("unknown means", "")


def test_the_worst_group_comes_first_with_advice() -> None:
    html = page(
        [lag("fine"), stopped(), lag("slow", verdict="LAGGING", lag_messages=9_999, lag_seconds=9.0), unknown()]
    )
    assert headline(html) == "2 of 4 groups are behind."
    assert lead(html) == (
        "The worst is billing on ORDERS: stopped, 2 h 5 min behind."
        " No consumer is connected, though there was one; 1,204 messages wait, the oldest for 2 h."
        " 1 more group cannot be judged."
    )
    assert "What to do: Start the group's consumers again." in text(html)
    order = [row.findtext(".//bdi") for row in read(html).findall(".//table[@class='overview lag']/tbody/tr")]
    assert order == ["billing", "slow", "lost", "fine"]


def test_one_group_behind_is_described_in_the_singular() -> None:
    html = page([stopped()])
    assert headline(html) == "The only group is behind."
    assert lead(html).startswith("It is billing on ORDERS")


def test_a_retry_loop_is_behind_even_if_no_message_waits() -> None:
    assert headline(page([lag(verdict="RETRY_LOOP", cause="3 messages came back")])) == "The only group is behind."


def test_groups_without_a_verdict_are_named_in_the_headline() -> None:
    html = page([lag("fine"), unknown()])
    assert headline(html) == "Nothing is known to be behind, but 1 of 2 groups cannot be judged."
    assert lead(html) == "lost on ORDERS: broker-b can't be reached."


def test_ignored_groups_are_named_in_the_headline() -> None:
    html = page([lag("fine", lag_messages=3, lag_seconds=0.4), ignored(), ignored("exports", topic="OTHER")])
    assert headline(html) == "Nothing is behind, but 2 of 3 groups are ignored."
    assert lead(html) == (
        "batch on ORDERS: Ignored until 2026-12-01 08:00 UTC, else STOPPED. No consumer is connected."
        " The other group keeps up: 3 messages are on their way. There is nothing to do."
    )
    assert "Ignored 2 not counted as behind" in text(html)
    assert headline(page([ignored()])) == "The only group is ignored."
    assert lead(page([ignored()])).endswith("No consumer is connected. There is nothing to do.")
    assert "Ignored" not in text(page([lag()]))


def test_ignored_groups_are_counted_beside_late_and_unknown_ones() -> None:
    behind = page([stopped(), unknown(), ignored(), ignored(topic="OTHER")])
    assert lead(behind).endswith("1 more group cannot be judged. 1 more group is ignored.")
    assert lead(page([unknown(), ignored(), ignored("other")])).endswith("2 more groups are ignored.")
    # A group that is behind on another topic counts as behind.
    assert "ignored" not in lead(page([stopped(), ignored("billing", topic="OTHER")]))


def test_unknown_is_a_word_with_its_reason() -> None:
    html = page([unknown(), queue(unknown(), "broker-b", 0)])
    said = text(html)
    assert "Unknown : messages behind, time behind, waiting since, comes in, goes out, gone in" in said
    assert "broker-b can't be reached" in said
    assert "no broker said who is connected" in said
    (row,) = read(html).findall(".//table[@class='overview lag']/tbody/tr")
    assert ["".join(cell.itertext()) for cell in row.findall("td")] == ["unknown"] * 6
    (row,) = read(html).findall(".//details/div/table/tbody/tr[th='broker-b/0']")
    assert ["".join(cell.itertext()) for cell in row.findall("td")][1:3] == ["unknown", "unknown"]


@pytest.mark.parametrize("mark", [-1, None, float("nan"), float("inf"), "", "-1", True])
def test_marks_for_unknown_never_show_as_numbers(mark: Any) -> None:
    columns = ("lag_messages", "lag_seconds", "in_rate", "out_rate", "clients", "drain_eta_s", "skew")
    bad = {**lag(verdict="LAGGING", cause="why"), **dict.fromkeys(columns, mark), "retention_left_s": None}
    html = page([bad, queue(bad, "broker-a", 0)], history=samples("billing", [5, None, 7, 8]))
    words = text(html).replace(str(NOW.date()), "").replace("0199aa10-7c1e-7f55-9a55-0c5a1d2e3f40", "")
    assert not re.search(r"-1\b|nan|inf\b", words, re.IGNORECASE)
    (row,) = read(html).findall(".//table[@class='overview lag']/tbody/tr")
    assert ["".join(cell.itertext()) for cell in row.findall("td")] == ["unknown"] * 6


def test_part_of_a_topic_is_a_lower_bound() -> None:
    html = page([unknown(evidence={"unknown": "no answer", "known_lag_messages": 1_500})])
    assert "no answer; at least 1,500 in the other queues" in text(html)


def test_rows_are_read_from_spark_postgres_and_rest_alike() -> None:
    rest = stopped(oldest_unconsumed_at="2026-11-22T07:25:00.123Z", top_tags=[{"tag": "UA", "messages": 3}])
    spark = {
        **rest, "as_of": NOW, "oldest_unconsumed_at": NOW.replace(hour=7, minute=25, tzinfo=None), "evidence": "{}",
        "lag_seconds": Decimal("7500.0"), "top_tags": '[["UA", 3]]', "group_name": rest["group"],
    }  # fmt: skip
    assert page([rest]) == page([spark])
    assert "UA \N{MULTIPLICATION SIGN} 3" in text(page([rest]))


def test_a_message_that_the_filter_excludes_does_not_wait() -> None:
    why = "The group's filter accepts none of the 12 messages behind the commit."
    html = page([lag(lag_messages=12, lag_seconds=0.0, cause=why)])
    (row,) = read(html).findall(".//table[@class='overview lag']/tbody/tr")
    assert ["".join(cell.itertext()) for cell in row.findall("td")][:2] == ["12", EMPTY_CELL]
    assert why in text(html)
    assert "Messages waiting 0 " in text(html)
    assert lead(html) == "The one group has consumed everything. There is nothing to do."
    assert "Messages waiting 1,204 " in text(page([stopped(), lag("batch", lag_messages=12, lag_seconds=0.0)]))


def test_the_expected_end_of_a_lag() -> None:
    draining = {"drain_eta_s": 600.0, "drain_eta_low_s": 480.0, "drain_eta_high_s": 900.0}
    assert "10 min (8 min to 15 min)" in text(page([stopped(**draining)]))
    assert "never, at these rates" in text(page([stopped()]))
    assert "Gone in about 10 min (8 min to 15 min)." in text(page([stopped(**draining)], history=GREW))
    overdue = page([stopped(retention_left_s=-5.0)])
    assert "now: at any moment" in text(overdue)
    assert "0 s" not in text(overdue), "the table says the same as the details"
    assert "too few samples yet" in text(page([stopped(in_rate=None, out_rate=None)]))
    # A forecast uses only the time after the last reset of offsets.
    just_moved = stopped(in_rate=1.0, out_rate=5.0, evidence={"moved_s": 9.0})
    assert "never, at these rates" not in text(page([just_moved]))


def test_a_forecast_without_an_upper_end_never_shows_its_mean() -> None:
    endless = {"drain_eta_s": 100_800.0, "drain_eta_low_s": 30_000.0, "in_rate": 20.0, "out_rate": 20.1}
    html = page([stopped(**endless)], history=GREW)
    (row,) = read(html).findall(".//table[@class='overview lag']/tbody/tr")
    assert ["".join(cell.itertext()) for cell in row.findall("td")][4] == "no end in sight"
    assert "No end is in sight: it takes at least 8 h 20 min." in text(html)
    assert "1 d 4 h" not in html
    # Without an interval, the mean says nothing about the end.
    html = page([stopped(**{**endless, "drain_eta_low_s": None})], history=GREW)
    assert "1 d 4 h" not in html
    slow = stopped(lag_messages=10**9, in_rate=1.0, out_rate=2.0, evidence={"drain_unknown": "more than 30 days"})
    assert "more than 30 days" in text(page([slow]))


def test_the_forecast_is_compared_with_the_actual_lag() -> None:
    grew = [100 + 10 * index for index in range(41)]
    said = text(page([stopped(lag_messages=500)], history=samples("billing", grew)))
    assert "Forecast of 09:25 for 09:30 UTC: 500. Actual: 500, as forecast." in said
    stood = [*[100 + 10 * index for index in range(21)], *[300] * 20]
    said = text(page([stopped(lag_messages=300)], history=samples("billing", stood)))
    assert "Forecast of 09:25 for 09:30 UTC: 500. Actual: 300, 200 fewer." in said
    assert "No forecast: too few samples." in text(page([stopped()], history=samples("billing", [1, 2, 3])))
    assert "the lag is unknown at the end" in text(page([unknown("billing")], history=samples("billing", grew)))
    assert "There are no samples of these groups yet" in text(page([stopped()]))


def test_the_report_itself_is_the_last_sample() -> None:
    early = [{**sample, "sampled_at": "2026-11-22T09:27:00Z"} for sample in samples("billing", [7])]
    (figure,) = [
        found
        for found in read(page([stopped()], history=early)).findall(".//figure")
        if found.findtext("figcaption/b") == "billing · ORDERS"
    ]
    assert [row.findtext("td") for row in figure.findall(".//tbody/tr")] == ["7", "1,204"]


def test_no_line_leads_to_the_report_over_a_reset_that_no_sample_shows() -> None:
    early = [{**sample, "sampled_at": "2026-11-22T09:27:00Z"} for sample in samples("billing", [7])]

    def lags(**evidence: Any) -> list[str | None]:
        html = page([stopped(evidence=evidence)], history=early)
        figure = next(
            one for one in read(html).findall(".//figure") if one.findtext("figcaption/b") == "billing · ORDERS"
        )
        return ["".join(row.find("td").itertext()) for row in figure.findall(".//tbody/tr")]  # type: ignore[union-attr]

    assert lags(moved_s=0.0) == ["7", "unknown: no sample", "1,204"]
    assert lags(moved_s=180.123) == ["7", "1,204"]


def test_ages_are_counted_by_queue_if_they_are_known() -> None:
    row = stopped()
    ages = (30.0, 59.0, 7_500.0, None)
    queues = [queue(row, "broker-a", number, lag_seconds=age) for number, age in enumerate(ages)]
    html = page([row, *queues, queue(row, "broker-a", 9, lag_messages=0, lag_seconds=0.0)])
    (figure,) = [
        found
        for found in read(html).findall(".//figure")
        if found.findtext("figcaption/b") == "Age of the oldest message"
    ]
    counted = {row.findtext("th"): row.findtext("td") for row in figure.findall(".//tbody/tr")}
    assert {name: number for name, number in counted.items() if number != "0 queues"} == {
        "under a minute": "2 queues", "1 to 6 hours": "1 queue", "? age unknown": "1 queue",
    }  # fmt: skip


def test_a_group_of_several_topics_is_one_section_and_a_link_opens_it() -> None:
    html = page([stopped(topic="A"), lag(topic="B"), stopped("other", topic="A")])
    root = read(html)
    sections = root.findall(".//details[@class='group']")
    assert [section.findtext("summary/h3/bdi") for section in sections] == ["billing", "other"]
    assert "2 topics" in "".join(sections[0].itertext())
    assert len(sections[0].findall(".//h4")) == 2
    targets = {element.get("id") for section in sections for element in section.iter()}
    assert {(link.get("href") or "")[1:] for link in root.findall(".//a")} <= targets
