"""What an error says about its cause in attributes: a status code, error codes, and how long to wait.

Client libraries keep these under a few names, which are read without importing any of them. An attribute that raises
when it is read says nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http import HTTPStatus

from redrive.clock import Instant
from redrive.model.duration import HOUR, MILLISECOND, SECOND, Duration
from redrive.model.exception import names_of_error, own_attributes, safe_getattr

MAX_RETRY_AFTER = HOUR
"""A server that asks for more time than this is asked again earlier."""
_MAX_CODE_CHARS = 100
_MAX_HEADER_CHARS = 100
_OTHER_NUMBERS = frozenset({"ssl.SSLError", "socket.gaierror", "socket.herror"})
"""Types whose `errno` is a number of another table."""
_READ = frozenset(
    ["response", "status_code", "status", "code", "sqlstate", "pgcode", "sqlite_errorname", "orig", "headers"]
)
"""All attributes that are read here, except `errno`."""
_SlotWrapper = type(object.__getattribute__)


def status_code_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error has, in requests, httpx, aiohttp, urllib, openai and botocore."""
    if _is_silent(error) or isinstance(error, SystemExit):
        return None
    response = safe_getattr(error, "response")
    metadata = _member(response, "ResponseMetadata")
    owners = (error,) if response is None else (error, response)
    candidates = [safe_getattr(owner, name) for owner in owners for name in ("status_code", "status", "code")]
    for status in (*candidates, _member(metadata, "HTTPStatusCode")):
        if type(status) in (int, HTTPStatus) and 100 <= status <= 599:  # type: ignore[operator]
            return int(status)  # type: ignore[call-overload, no-any-return]
    return None


def codes_of(error: BaseException) -> frozenset[str]:
    """Return the codes that an error has: `ENOSPC`, an SQLSTATE, `SQLITE_BUSY`, `insufficient_quota`."""
    if _is_silent(error):
        name = _errno_name(error)
        return frozenset() if name is None else frozenset({name})
    cause = safe_getattr(error, "orig")  # SQLAlchemy keeps the error of the driver there
    owners = (error,) if cause is None else (error, cause)
    names = ("sqlstate", "pgcode", "sqlite_errorname", "code")
    found = [safe_getattr(owner, name) for owner in owners for name in names]
    found += [_member(_member(safe_getattr(error, "response"), "Error"), "Code"), _errno_name(error)]
    return frozenset(code for code in found if type(code) is str and 0 < len(code) <= _MAX_CODE_CHARS)


def retry_after_of(error: BaseException, now: Instant) -> Duration | None:
    """Return how long the answer to a call asks to wait, up to an hour; None if it does not say."""
    if _is_silent(error):
        return None
    for headers in _headers(error):
        if (milliseconds := _number(_header(headers, "retry-after-ms"))) is not None:
            return _bounded(milliseconds * MILLISECOND)
        text = _header(headers, "retry-after")
        if text is None:
            continue
        if (seconds := _number(text)) is not None:
            return _bounded(seconds * SECOND)
        try:
            at = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            continue
        return _bounded(at.replace(tzinfo=at.tzinfo or UTC).timestamp() * SECOND - now)
    return None


def _is_silent(error: BaseException) -> bool:
    """Whether an error has none of these attributes, as most have not: that is cheaper to see than to read each."""
    try:
        # mypy does not see that a class is hashable
        return _has_plain_attributes(type(error)) and _READ.isdisjoint(own_attributes(error))  # type: ignore[arg-type]
    except BaseException:  # of its metaclass
        return False


@lru_cache(maxsize=1024)
def _has_plain_attributes(kind: type[BaseException]) -> bool:
    """Whether errors of this type can have these attributes in their `__dict__` only."""
    return all(
        _READ.isdisjoint(base.__dict__)
        and "__getattr__" not in base.__dict__
        and isinstance(base.__dict__.get("__getattribute__", object.__getattribute__), _SlotWrapper)
        for base in kind.__mro__
    )


def _headers(error: BaseException) -> Iterator[object]:
    response = safe_getattr(error, "response")
    if response is not None:
        yield safe_getattr(response, "headers")
    if (own := safe_getattr(error, "headers")) is not None:
        yield own
    if response is not None:
        yield _member(_member(response, "ResponseMetadata"), "HTTPHeaders")


def _header(headers: object, name: str) -> str | None:
    """Return a header of a mapping, whichever way the mapping writes its name."""
    get = safe_getattr(headers, "get")
    for written in (name, name.title()):
        try:
            value = get(written)  # type: ignore[operator]
        except BaseException:
            return None
        if type(value) is str and len(value) <= _MAX_HEADER_CHARS:
            return value
    return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if number == number else None


def _bounded(duration: float) -> Duration:
    return int(min(max(duration, 0), MAX_RETRY_AFTER))


def _member(table: object, key: str) -> object:
    return table.get(key) if type(table) is dict else None


def _errno_name(error: BaseException) -> str | None:
    number = safe_getattr(error, "errno") if isinstance(error, OSError) else None
    if type(number) is not int:
        return None
    name, bases = names_of_error(error)
    if not _OTHER_NUMBERS.isdisjoint((name, *bases)):
        return None
    return errno.errorcode.get(number)
