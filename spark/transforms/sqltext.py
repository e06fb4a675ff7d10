"""Expressions as text of Spark SQL.

An expression that is built in Python needs several calls into the JVM for each of its parts, which takes seconds for a
report. As text it needs one call, and Spark parses it. So expressions with hundreds of parts are written as text.
"""


class Sql(str):
    """An expression of Spark SQL. In the functions of this module, a plain str is a literal."""

    __slots__ = ()


def quoted(text: str) -> Sql:
    """Return the SQL literal of a text."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return Sql(f"'{escaped}'")


def text(*parts: str) -> Sql:
    """Join literals and expressions. One null makes the result null, so callers must replace nulls first."""
    return Sql(f"concat({', '.join(part if isinstance(part, Sql) else quoted(part) for part in parts)})")


def choose(*cases: tuple[str, str], otherwise: str = Sql("NULL")) -> Sql:
    """Return the first expression whose condition (SQL) holds."""
    whens = " ".join(f"WHEN {condition} THEN {_as_sql(value)}" for condition, value in cases)
    return Sql(f"CASE {whens} ELSE {_as_sql(otherwise)} END")


def _as_sql(value: str) -> Sql:
    return value if isinstance(value, Sql) else quoted(value)
