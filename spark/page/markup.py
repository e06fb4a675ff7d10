"""HTML that is escaped by construction: everything that is not `Html` becomes text.

The output is also well-formed XML, so a test can read it with a strict parser.
"""

import unicodedata
from collections.abc import Iterable
from html import escape
from typing import TypeAlias

VOID = frozenset({"meta", "br", "hr", "col"})


class Html(str):
    """Text that already is markup."""

    __slots__ = ()


Content: TypeAlias = "Html | str | Iterable[Content] | None"

EMPTY = Html("")


def visible(text: str) -> str:
    r"""Return a text with invisible and forbidden characters as escapes, such as `\u{202e}`.

    HTML does not allow control characters and halves of surrogate pairs. With marks that change the direction of
    writing, a tag or a key could change how the words around it read.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_hidden(letter) if _is_hidden(letter) else letter for letter in text)


_HIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
_DIRECTION_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_NO_CHARACTERS = frozenset("\ufffe\uffff")  # XML can't represent them.


def _is_hidden(letter: str) -> bool:
    return unicodedata.category(letter) in _HIDDEN or letter in _DIRECTION_MARKS or letter in _NO_CHARACTERS


def _escape_hidden(letter: str) -> str:
    return " " if letter in "\t\n\r" else f"\\u{{{ord(letter):x}}}"


def el(name: str, /, *content: Content, **attributes: str | int | bool | None) -> Html:
    """Return an element.

    In names of attributes, `class_` becomes `class`, and other underscores become hyphens. An attribute with the value
    None or False is left out.
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{"" if value is True else escape(visible(str(value)))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Html(f"<{name}{attribute_text}/>")
    return Html(f"<{name}{attribute_text}>{join(content)}</{name}>")


def within(parts: Iterable[Html], octets: int) -> list[Html]:
    """Return as many of the first parts as together have at most `octets` bytes."""
    kept: list[Html] = []
    for part in parts:
        octets -= len(part.encode())
        if octets < 0:
            break
        kept.append(part)
    return kept


def join(content: Content) -> Html:
    """Return the content in one piece: markup unchanged, text escaped, None as nothing."""
    if content is None:
        return EMPTY
    if isinstance(content, Html):
        return content
    if isinstance(content, str):
        return Html(escape(visible(content)))
    return Html("".join(map(join, content)))
