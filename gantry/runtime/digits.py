"""Numbers written as decimal digits."""


def parse_digits(text: str, maximum: int) -> int | None:
    """Return the number that a text of ASCII digits writes, or None if it is no such text or above `maximum`.

    `str.isdigit` accepts digits of other scripts, and `int` raises ValueError for more than 4,300 digits, which a peer
    or a file may send.
    """
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(maximum)):
        return None
    number = int(digits)
    return number if number <= maximum else None
