"""What the lag report says first, in words: how many groups are behind, which is the worst, what to do."""

from collections.abc import Sequence
from dataclasses import dataclass

from spark.page.lagrows import LagGroup, LagRow, worst_first
from spark.page.palette import verdict_look
from spark.page.shown import count, duration, plural


@dataclass(frozen=True, slots=True)
class Summary:
    """The headline, what follows it, and what to do (empty where there is nothing to do)."""

    headline: str
    lead: str
    next_step: str


def summarise(groups: Sequence[LagGroup]) -> Summary:
    """Say how many groups are behind, which is the worst, and what to do about it."""
    rows = [topic.row for group in groups for topic in group.topics]
    behind = [row for row in rows if row.is_behind]
    unknown = [row for row in rows if row.verdict == "UNKNOWN"]
    of_all = plural(len(groups), "group")
    if not groups:
        return Summary(
            "There are no consumer groups yet.",
            "Nothing has been consumed here, so nothing can be behind. A group appears with its first commit.",
            "",
        )
    if behind:
        worst = min(behind, key=worst_first)
        many = len({row.group for row in behind})
        headline = f"{many:,} of {of_all} {'is' if many == 1 else 'are'} behind."
        if len(groups) == 1:
            headline = "The only group is behind."
        said = (
            f"{'It' if many == 1 else 'The worst'} is {_worst(worst)} {sentence(worst.cause)}{_more(unknown, behind)}"
        )
        return Summary(headline, said.strip(), sentence(worst.next_step))
    if unknown:
        first = min(unknown, key=worst_first)
        many = len({row.group for row in unknown})
        headline = f"Nothing is known to be behind, but {many:,} of {of_all} cannot be judged."
        lead = f"{first.group} on {first.topic}: {sentence(first.cause) or 'no reason was given.'}"
        return Summary(headline, lead, sentence(first.next_step))
    return Summary("Nothing is behind.", f"{_calm(groups, rows)} There is nothing to do.", "")


def sentence(text: str) -> str:
    """Return a text with a capital at its start and a full stop at its end."""
    text = text.strip()
    if not text:
        return ""
    # A name at the start (`billing-v2 …`) keeps its letters.
    first = text.split(maxsplit=1)[0]
    if first.isalpha() and first.islower():
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _worst(row: LagRow) -> str:
    """Return which one it is, with the numbers that its cause does not say."""
    messages = (
        "an unknown number of messages" if row.lag_messages is None else plural(round(row.lag_messages), "message")
    )
    words = [f"{row.group} on {row.topic}: {verdict_look(row.verdict)[2]}"]
    if row.lag_messages is None or count(row.lag_messages) not in row.cause:
        words.append(messages)
    if row.lag_seconds and duration(row.lag_seconds) not in row.cause:
        words.append(f"{duration(row.lag_seconds)} behind")
    return f"{', '.join(words)}."


def _more(unknown: Sequence[LagRow], behind: Sequence[LagRow]) -> str:
    more = {row.group for row in unknown} - {row.group for row in behind}
    return f" {plural(len(more), 'more group')} cannot be judged." if more else ""


def _calm(groups: Sequence[LagGroup], rows: Sequence[LagRow]) -> str:
    waiting = sum(row.lag_messages or 0 for row in rows)
    whole = "The one group has" if len(groups) == 1 else f"All {len(groups):,} groups have"
    if waiting:
        return (
            f"{whole.replace('have', 'keep').replace('has', 'keeps')} up: {count(waiting)} messages are on their way."
        )
    return f"{whole} consumed everything."
