"""Expressions as text of Spark SQL.

An expression that is put together in Python costs a handful of calls into the JVM for each of its parts, seconds for a
report's. As text it is one call, and Spark parses it. So what has hundreds of parts is written like this.
"""


class Sql(str):
    """An expression of Spark SQL; a plain text beside it is a literal."""

    __slots__ = ()


def quoted(text: str) -> Sql:
    """Return a literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return Sql(f"'{escaped}'")


def text(*parts: str) -> Sql:
    """Join literals and expressions; a null among them makes all null, so what may be null is decided before."""
    return Sql(f"concat({', '.join(part if isinstance(part, Sql) else quoted(part) for part in parts)})")


def choose(*cases: tuple[str, str], otherwise: str = Sql("NULL")) -> Sql:
    """Return the first expression whose condition (SQL) holds."""
    whens = " ".join(f"WHEN {condition} THEN {_as_sql(value)}" for condition, value in cases)
    return Sql(f"CASE {whens} ELSE {_as_sql(otherwise)} END")


def _as_sql(value: str) -> Sql:
    return value if isinstance(value, Sql) else quoted(value)
