"""Checks of arguments that several flows take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from redrive.clock import Instant
from redrive.errors import InvalidDuration, InvalidInput, short_repr
from redrive.model.caller_input import checking_input, exact_str, listed
from redrive.model.duration import DurationInput, parse_duration
from redrive.model.limits import MAX_BATCH, check_instant
from redrive.model.text import MAX_TEXT_BYTES, clean_text


def check_integer(what: str, value: object, smallest: int, largest: int) -> None:
    """Raise unless it is a whole number within these bounds."""
    if type(value) is not int:
        raise InvalidInput(f"{what} must be a whole number, {smallest:,} to {largest:,}, not {short_repr(value, 40)}")
    if not smallest <= value <= largest:
        raise InvalidInput(f"{what} must be {smallest:,} to {largest:,}, not {short_repr(value, 40)}")


def check_positive(what: str, value: DurationInput) -> int:
    """Return the microseconds of a duration, or raise unless it is longer than 0."""
    duration = parse_duration(value, what)
    if duration == 0:
        raise InvalidDuration(what, value, "must be longer than 0")
    return duration


def to_instant(what: str, value: datetime) -> Instant:
    """Return the instant of a datetime, or raise unless it has a time zone."""
    with checking_input(what):
        if isinstance(value, datetime) and value.utcoffset() is not None:
            since = value - datetime(1970, 1, 1, tzinfo=UTC)
            instant = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
            return Instant(check_instant(what, instant, shown=str(value)))
    raise InvalidDuration(what, value, "is not a datetime with a time zone; use datetime.now(UTC) + …")


def check_texts(what: str, texts: object, kind: str, check: Callable[[object], str]) -> tuple[str, ...]:
    """Return one text or several, up to MAX_BATCH, as a tuple, each checked; `kind` names them in the error."""
    with checking_input(what):
        if isinstance(texts, Iterable) and not isinstance(texts, bytes | bytearray | Mapping):
            given = (texts,) if isinstance(texts, str) else listed(what, texts, MAX_BATCH)
            if len(given) > MAX_BATCH:
                raise InvalidInput(
                    f"more than {MAX_BATCH:,} {what} in one call, and that is the limit; make several calls"
                )
            return tuple(map(check, given))
    raise InvalidInput(f"{what} are a list of {kind}, not {short_repr(texts, 60)}")


def check_progress(progress: object) -> None:
    """Raise unless it is a function, or None."""
    if progress is not None and not callable(progress):
        raise InvalidInput(f"progress is a function that is called with how far it is, not {short_repr(progress, 60)}")


def check_note(what: str, text: str | None) -> str | None:
    """Return the note of a caller, cleaned and cut so that every store can keep it."""
    if text is None:
        return None
    with checking_input(what):
        if isinstance(text, str):
            return clean_text(exact_str(text), MAX_TEXT_BYTES)
    raise InvalidInput(f"{what} is a text here, not {short_repr(text, 60)}")
