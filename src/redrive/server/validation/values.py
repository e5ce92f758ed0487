"""Checks of the values in calls. Decoding has already checked their types."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from redrive.broker.validation import check_integer
from redrive.errors import InvalidDuration, InvalidInput, PayloadTooLarge
from redrive.model.duration import MAX_DURATION
from redrive.model.failure import Failure, normalize_failure
from redrive.model.holder import check_holder_names
from redrive.model.ids import MAX_NUMBER, ItemId, Token, parse_id, parse_token
from redrive.model.item import Result
from redrive.model.judge import RetryVerdict, Verdict, check_custom_verdict
from redrive.model.limits import MAX_BATCH, MAX_STORABLE_BYTES, check_label, check_name

_replace = msgspec.structs.replace


@lru_cache(maxsize=4096)
def queue(name: str) -> str:
    """Return a checked queue name; names in use are cached."""
    return check_name("queue", name)


def queue_if_named(name: str | None) -> None:
    """Raise unless it is None or can be the name of a queue."""
    if name is not None:
        queue(name)


@lru_cache(maxsize=1024)
def content_type(text: str) -> str:
    """Return a checked content type; those in use are cached."""
    return check_label("content_type", text)


def label(what: str, text: str | None) -> str | None:
    """Return a checked label, or None."""
    return None if text is None else check_label(what, text)


def span(what: str, duration: int | None, smallest: int = 0) -> None:
    """Raise unless a duration in microseconds is None or can be added to every instant."""
    if duration is not None and not smallest <= duration <= MAX_DURATION:
        raise InvalidDuration(what, duration, f"is not a time from {smallest} microseconds to 100 years")


def version(number: int) -> None:
    """Raise unless it can be a version."""
    check_integer("version", number, 0, MAX_NUMBER)


def limit(number: int, largest: int = MAX_BATCH) -> None:
    """Raise unless a limit is between 1 and `largest`."""
    check_integer("limit", number, 1, largest)


def id(text: str) -> None:
    """Raise unless it has the format of an id. Stores know that ids with numbers beyond their range do not exist."""
    parse_id(text)


def ids(listed: Iterable[ItemId], largest: int = MAX_BATCH) -> None:
    """Raise unless these are ids, at most `largest` of them."""
    listed = tuple(listed)
    many("ids", len(listed), largest)
    for each in listed:
        id(each)


def token(text: Token) -> None:
    """Raise unless it can be a lease token. The digits after the number are arbitrary: they depend on the store."""
    if parse_token(text)[0] > MAX_NUMBER:
        raise InvalidInput("no token has such numbers in it; pass it on as you received it")


def many(what: str, count: int, largest: int = MAX_BATCH) -> None:
    """Raise if one call has more than `largest` elements."""
    if count > largest:
        raise InvalidInput(f"{count:,} {what} in one call and the limit is {largest:,}; make several calls")


def verdict(brought: Verdict) -> Verdict:
    """Return a checked verdict that every store can execute."""
    held_by = brought.held_by if isinstance(brought, RetryVerdict) else ()
    if not held_by:
        return check_custom_verdict(brought)
    check_holder_names(held_by)  # brokers name breakers, which programs do not
    return _replace(check_custom_verdict(_replace(brought, held_by=())), held_by=held_by)


def failure(brought: Failure | None) -> Failure | None:
    """Return a failure normalized to the limits of every store; None for None."""
    return None if brought is None else normalize_failure(brought)


def result(brought: Result | None) -> None:
    """Raise unless every store can hold the result. The store checks the limit of the queue."""
    if brought is not None:
        payload(brought.payload)
        content_type(brought.content_type)


def payload(data: bytes) -> None:
    """Raise unless every store can hold the bytes. Their content is not inspected."""
    if len(data) > MAX_STORABLE_BYTES:
        raise PayloadTooLarge("payload", len(data), MAX_STORABLE_BYTES, None)
