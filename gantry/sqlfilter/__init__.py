"""SQL92 filters: RocketMQ's selector language over the properties of a message (docs/filters.md).

    text ──parser──▶ expressions ──compiled──▶ SqlFilter.matches(encoded properties) ──▶ bool

Brokers, gateways and Spark jobs use it. It needs lark, which only they install (ADR-0033); no other part of the library
imports this package.
"""

from gantry.sqlfilter.cache import FilterCache
from gantry.sqlfilter.compiled import SqlFilter
from gantry.sqlfilter.errors import SqlError
from gantry.sqlfilter.limits import SQL_LENGTH_MAX

__all__ = ["SQL_LENGTH_MAX", "FilterCache", "SqlError", "SqlFilter"]
