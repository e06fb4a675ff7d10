"""A cache of compiled expressions, because consumers send the expression with each pull."""

from collections import OrderedDict
from typing import Final

from gantry.sqlfilter.compiled import SqlFilter
from gantry.sqlfilter.errors import SqlError

CACHED_CHARACTERS_MAX: Final = 4 << 20
"""Largest number of characters of all cached expressions. A compiled one takes about 50 bytes a character."""
# So an empty expression has a cost, too.
_ENTRY_CHARACTERS: Final = 64


class FilterCache:
    """The expressions that were used last, valid or not.

    Concurrency: one thread.
    """

    def __init__(self, characters_max: int = CACHED_CHARACTERS_MAX) -> None:
        self._characters_max = characters_max
        self._entries: OrderedDict[str, SqlFilter | SqlError] = OrderedDict()
        self._characters = 0

    def __contains__(self, text: str) -> bool:
        return text in self._entries

    def get(self, text: str) -> SqlFilter:
        """Return the compiled expression. Raises SqlError."""
        found = self._entries.get(text)
        if found is None:
            try:
                found = SqlFilter(text)
            except SqlError as error:
                # A client with a wrong expression tries again and again.
                found = error.with_traceback(None)
            self._add(text, found)
        else:
            self._entries.move_to_end(text)
        if isinstance(found, SqlError):
            raise SqlError(found.position, found.fault, found.expected)
        return found

    def _add(self, text: str, entry: SqlFilter | SqlError) -> None:
        self._entries[text] = entry
        self._characters += len(text) + _ENTRY_CHARACTERS
        while self._characters > self._characters_max and len(self._entries) > 1:
            dropped, _ = self._entries.popitem(last=False)
            self._characters -= len(dropped) + _ENTRY_CHARACTERS
