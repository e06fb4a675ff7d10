"""The error of an expression that is not valid.

InvalidExpressionError
└── SqlError    names the position, and what was expected there
"""

from gantry.model.errors import NO_VALUE, InvalidExpressionError


class SqlError(InvalidExpressionError):
    """An SQL92 expression is not valid; the text says where and why, for its author.

    Attributes:
        fault: The reason, without position and expected texts.
        position: Position of the first character that is wrong, counted from 1.
        expected: Texts of what may stand there; empty if the expression is well formed but means nothing.
    """

    def __init__(self, position: int, reason: str, expected: tuple[str, ...] = ()) -> None:
        wanted = f"; expected {' or '.join(filter(None, (', '.join(expected[:-1]), expected[-1])))}" if expected else ""
        super().__init__("sql", NO_VALUE, f"at character {position}: {reason}{wanted}")
        self.position = position
        self.fault = reason
        self.expected = expected
