"""The summary at the top of the lag report, in words: the number of groups behind, the worst of them, the next step."""

from collections.abc import Sequence
from dataclasses import dataclass

from spark.page.formatting import count, duration, plural
from spark.page.lagrows import LagGroup, LagRow, worst_first
from spark.page.palette import verdict_style


@dataclass(frozen=True, slots=True)
class Summary:
    """The headline, the text after it, and the next step (empty if there is none)."""

    headline: str
    lead: str
    next_step: str


def summarise(groups: Sequence[LagGroup]) -> Summary:
    """Return the number of groups behind, the worst of them, and what to do about it."""
    rows = [topic.row for group in groups for topic in group.topics]
    behind = [row for row in rows if row.is_behind]
    unknown = [row for row in rows if row.verdict == "UNKNOWN"]
    ignored = [row for row in rows if row.is_ignored]
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
        headline = f"{many:,} of {of_all} {_are(many)} behind."
        if len(groups) == 1:
            headline = "The only group is behind."
        lead = f"{'It' if many == 1 else 'The worst'} is {_worst(worst)} {sentence(worst.cause)}{_more(behind, unknown, ignored)}"
        return Summary(headline, lead.strip(), sentence(worst.next_step))
    if unknown:
        first = min(unknown, key=worst_first)
        many = len({row.group for row in unknown})
        headline = f"Nothing is known to be behind, but {many:,} of {of_all} cannot be judged."
        lead = f"{_place(first)}: {sentence(first.cause) or 'no reason was given.'}{_more((), unknown, ignored)}"
        return Summary(headline, lead, sentence(first.next_step))
    if ignored:
        return _only_ignored(groups, ignored)
    whole = "The one group" if len(groups) == 1 else f"All {of_all}"
    return Summary("Nothing is behind.", f"{_calm(whole, groups)} There is nothing to do.", "")


def _only_ignored(groups: Sequence[LagGroup], ignored: Sequence[LagRow]) -> Summary:
    names = {row.group for row in ignored}
    others = [group for group in groups if group.name not in names]
    first = min(ignored, key=worst_first)
    headline = f"Nothing is behind, but {len(names):,} of {plural(len(groups), 'group')} {_are(len(names))} ignored."
    if len(groups) == 1:
        headline = "The only group is ignored."
    lead = [f"{_place(first)}: {sentence(first.cause)}"]
    if others:
        lead.append(_calm("The other group" if len(others) == 1 else f"The other {len(others):,} groups", others))
    return Summary(headline, " ".join([*lead, "There is nothing to do."]), "")


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
    """Return the worst row in words, with the numbers that its cause does not contain."""
    messages = (
        "an unknown number of messages" if row.lag_messages is None else plural(round(row.lag_messages), "message")
    )
    words = [f"{_place(row)}: {verdict_style(row.verdict)[2]}"]
    if row.lag_messages is None or count(row.lag_messages) not in row.cause:
        words.append(messages)
    if row.lag_seconds and duration(row.lag_seconds) not in row.cause:
        words.append(f"{duration(row.lag_seconds)} behind")
    return f"{', '.join(words)}."


def _more(behind: Sequence[LagRow], unknown: Sequence[LagRow], ignored: Sequence[LagRow]) -> str:
    """Return how many more groups can't be judged or are ignored, each counted once, as the end of a lead."""
    named = {row.group for row in behind}
    unjudged = {row.group for row in unknown} - named
    left = {row.group for row in ignored} - named - {row.group for row in unknown}
    lead = f" {plural(len(unjudged), 'more group')} cannot be judged." if behind and unjudged else ""
    return f"{lead} {plural(len(left), 'more group')} {_are(len(left))} ignored." if left else lead


def _place(row: LagRow) -> str:
    return f"{row.group} on {row.topic}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _calm(whole: str, groups: Sequence[LagGroup]) -> str:
    waiting = sum(topic.row.lag_messages or 0 for group in groups for topic in group.topics if topic.row.waits)
    is_one = len(groups) == 1
    if waiting:
        return f"{whole} {'keeps' if is_one else 'keep'} up: {count(waiting)} messages are on their way."
    return f"{whole} {'has' if is_one else 'have'} consumed everything."
