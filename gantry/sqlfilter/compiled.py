"""A compiled expression."""

from typing import Final

from gantry.model.message import decode_properties, find_value
from gantry.sqlfilter.javavalues import EvaluationError
from gantry.sqlfilter.parser import parse


class SqlFilter:
    """An SQL92 expression that was parsed once and decides about many messages.

    Only the properties that the expression names are decoded.

    Attributes:
        text: The expression.
        names: Names of the properties whose values it takes.
        cost: Number of its words, literals and operators, to which the time of a decision is proportional.
    """

    __slots__ = ("_evaluate", "_properties", "cost", "names", "text")

    def __init__(self, text: str) -> None:
        """Parse an expression. Raises SqlError."""
        self.text: Final = text
        self._evaluate, self.names, self.cost = parse(text)
        self._properties = tuple((name, name.encode()) for name in self.names)

    def matches(self, properties: bytes) -> bool:
        """Return whether the expression is true for a message.

        It is not true if the result is unknown, or if a value can't be converted as the expression demands.

        Args:
            properties: The encoded properties of the message.
        """
        values = {name: find_value(properties, encoded) for name, encoded in self._properties}
        if "" in values.values():
            # An empty value is ignored, but the property may occur earlier with another value. This is rare and slow,
            # so it is done once for all properties.
            found = decode_properties(properties)
            values = {name: found.get(name) for name in self.names}
        try:
            return self._evaluate(values) is True
        except EvaluationError:
            return False
