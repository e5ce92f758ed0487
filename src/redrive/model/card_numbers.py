"""Numbers of payment cards: by length, first digits and check digit (Luhn)."""

from __future__ import annotations

import re

from redrive.model.secret_forms import REDACTED

_FOURS = r"(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6011|6[45]\d\d|62\d\d|35\d\d)(?P<a>[ .-]?)\d{4}(?P=a)\d{4}(?P=a)\d{4}"
_FIFTEEN = r"3[47]\d\d(?P<b>[ .-]?)\d{6}(?P=b)\d{5}"
_FOURTEEN = r"3(?:0[0-5]|[68]\d)\d(?P<c>[ .-]?)\d{6}(?P=c)\d{4}"
_CARD = re.compile(rf"(?<![\w.])(?:{_FOURS}|{_FIFTEEN}|{_FOURTEEN})(?![\w]|[.-]\d)", re.ASCII)
_REST = r"\d{3}[ .-]?(?:\d{4}[ .-]?\d{4}[ .-]?\d{4}|\d{6}[ .-]?\d{4,5})(?!\d)".replace(r"\d", "[0-9]")
CARD_MARKS = tuple((first, rf"(?<![A-Za-z0-9_.]{first}){_REST}") for first in "23456")
"""A text that has none of these digits, with what is near each, has no number of a card."""
_LEAST, _MOST = 10**13, 10**16


def without_cards(text: str) -> str:
    """The text without numbers of cards."""
    return _CARD.sub(lambda found: REDACTED if _checks(found[0]) else found[0], text)


def is_card(number: int) -> bool:
    """Whether a number is one of a card."""
    return _LEAST <= number < _MOST and (found := _CARD.fullmatch(str(number))) is not None and _checks(found[0])


def _checks(written: str) -> bool:
    digits = [int(char) for char in reversed(written) if char.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return len(set(digits)) > 1 and (sum(digits[::2]) + sum(doubled)) % 10 == 0
