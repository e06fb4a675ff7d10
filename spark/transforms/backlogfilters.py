"""Plans how a backlog profile applies SQL92 filters: which ones, under which numbers, and why not the others.

The data source evaluates the expressions of each topic (option `sqlFilters`). Each row of a message has the numbers of
the expressions that accept it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class SqlFilters:
    """The SQL92 filters of a backlog.

    Attributes:
        applied: For each topic, the expressions to evaluate; the place of an expression is its number.
        refused: For each topic and expression that is not evaluated, the reason.
    """

    applied: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, dict[str, str]] = field(default_factory=dict)

    def option(self, topics: Iterable[str]) -> str:
        """Return the data source's option `sqlFilters` for messages of topics."""
        return json.dumps({topic: self.applied[topic] for topic in topics if topic in self.applied}, ensure_ascii=False)

    def numbers(self) -> str:
        """Return JSON: the number of each applied expression by topic and expression."""
        return json.dumps(
            {topic: {sql: number for number, sql in enumerate(listed)} for topic, listed in self.applied.items()}
        )

    def reasons(self) -> str:
        """Return JSON: why an expression is not applied, by topic and expression."""
        return json.dumps(self.refused)


def plan_filters(
    backlogs: Mapping[tuple[str, str], int],
    *,
    filters_max: int,
    characters_max: int,
    error_of: Callable[[str], str | None],
) -> SqlFilters:
    """Decide which filters are applied. If they are too many, those with the largest backlogs are.

    Args:
        backlogs: For each topic and SQL92 expression, the number of unconsumed messages of the groups that use it.
        filters_max: The limit for the applied expressions of a topic.
        characters_max: The limit for the characters of all applied expressions.
        error_of: Returns why an expression is invalid, or None.
    """
    plan = SqlFilters()
    characters = 0
    for (topic, sql), _ in sorted(backlogs.items(), key=lambda item: (-item[1], item[0])):
        if len(plan.applied.get(topic, ())) >= filters_max:
            reason = f"a report applies at most {filters_max} different SQL92 filters of a topic"
        elif characters + len(sql) > characters_max:
            reason = f"a report applies SQL92 filters of at most {characters_max:,} characters"
        elif (error := error_of(sql)) is not None:
            reason = f"the SQL92 filter is invalid: {error}"
        else:
            characters += len(sql)
            plan.applied.setdefault(topic, []).append(sql)
            continue
        plan.refused.setdefault(topic, {})[sql] = f"{reason}: {sql}"
    return plan
