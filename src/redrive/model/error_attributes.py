"""The status code and the error codes in the attributes of an error.

Client libraries keep these under a few names, which are read without importing any library. An attribute that raises
when it is read is ignored. The attributes of a nested error (that of the driver in one of SQLAlchemy) are read too.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from functools import lru_cache
from http import HTTPStatus

from redrive.model.exception import names_of_error, own_attributes, safe_getattr

MAX_ERRORS = 8
"""The maximum number of errors that are read: the error, its nested errors and its causes."""
_MAX_CODE_CHARS = 100
_MAX_RECIPIENTS = 100
_HOLDERS = ("orig", "reason")
"""The attributes for a nested error in SQLAlchemy (`orig`), and in urllib and urllib3 (`reason`)."""
_STATUS_NAMES = ("status_code", "status", "http_status", "code")
_DATABASE_CODES = ("sqlstate", "pgcode", "sqlite_errorname")
_NAMES = frozenset({*_HOLDERS, *_STATUS_NAMES, *_DATABASE_CODES, "type", "error_code", "smtp_code", "recipients"})
_NAMES |= {"response", "headers", "retry_after"}
"""All attributes that are read, here and in `retry_after`."""
_OTHER_NUMBERS = frozenset({"ssl.SSLError", "socket.gaierror", "socket.herror"})
"""Types whose `errno` is not a number of the errno table."""
_SQLSTATE = re.compile(r"\d[0-9A-Z]{4}")
_URLLIB3_STATUS = re.compile(r"too many (\d{3}) error responses")


def held_errors(error: BaseException) -> list[BaseException]:
    """Return the error itself, then the errors in its attributes or its first argument, nearest first."""
    return _related(error, with_causes=False)


def related_errors(error: BaseException) -> list[BaseException]:
    """Return the error itself, its nested errors, and those that it was raised from (`raise … from`), nearest first."""
    return _related(error, with_causes=True)


def _related(error: BaseException, with_causes: bool) -> list[BaseException]:
    found = [error]
    for link in found:  # which grows
        inner = [safe_getattr(link, name) for name in _HOLDERS] if has_attributes(link) else []
        inner.append(_first_argument(link))
        if with_causes:
            inner.append(safe_getattr(link, "__cause__"))
        for each in inner:
            if _is_error(each) and len(found) < MAX_ERRORS and all(each is not known for known in found):
                found.append(each)  # type: ignore[arg-type]
    return found


def has_attributes(error: BaseException) -> bool:
    """Return whether an error has any of the attributes that are read; a fast check, since most errors have none."""
    # A class that overrides none of them reads the attributes of its instances in the default way.
    return _class_has_attributes(type(error)) or not _NAMES.isdisjoint(own_attributes(error))  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _class_has_attributes(kind: type[BaseException]) -> bool:
    read = _NAMES | {"__getattr__", "__getattribute__", "__dict__"}
    return any(not read.isdisjoint(base.__dict__) for base in kind.__mro__ if base.__module__ != "builtins")


def _is_error(value: object) -> bool:
    """Return whether a value is an exception, by its type and not by its `__class__`."""
    return issubclass(type(value), BaseException)


def _first_argument(error: BaseException) -> object:
    arguments = safe_getattr(error, "args")
    return arguments[0] if type(arguments) is tuple and arguments else None


def status_code_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error has, in requests, httpx, urllib3, aiohttp, urllib, openai and botocore."""
    return next((status for each in held_errors(error) if (status := _status(each)) is not None), None)


def _status(error: BaseException) -> int | None:
    if not has_attributes(error):
        return _status_in_text(error)
    if isinstance(error, SystemExit):
        return None
    response = safe_getattr(error, "response")
    # Read one by one: the `code` of aiohttp's errors warns that it is deprecated.
    for owner in (error,) if response is None else (error, response):
        for name in _STATUS_NAMES:
            if (status := _as_status(safe_getattr(owner, name))) is not None:
                return status
    return _as_status(_member(_member(response, "ResponseMetadata"), "HTTPStatusCode"))


def _as_status(value: object) -> int | None:
    if type(value) in (int, HTTPStatus) and 100 <= value <= 599:  # type: ignore[operator]
        return int(value)  # type: ignore[call-overload, no-any-return]
    return None


def _status_in_text(error: BaseException) -> int | None:
    """Return the status for which urllib3 gave up, which is in the text only."""
    if names_of_error(error)[0] != "urllib3.exceptions.ResponseError":
        return None
    text = _first_argument(error)
    match = _URLLIB3_STATUS.fullmatch(text) if type(text) is str else None
    return None if match is None else int(match[1])


def codes_of(error: BaseException) -> frozenset[str]:
    """Return the codes that an error has: `ENOSPC`, an SQLSTATE, `SQLITE_BUSY`, `UNAVAILABLE` of gRPC, `SMTP_421`,
    `ThrottlingException` of botocore, `insufficient_quota` of openai."""
    found = (code for each in held_errors(error) for code in _codes(each))
    return frozenset(code for code in found if type(code) is str and 0 < len(code) <= _MAX_CODE_CHARS)


def _codes(error: BaseException) -> Iterator[object]:
    yield _errno_name(error)
    if not has_attributes(error):
        return
    for name in _DATABASE_CODES:
        yield safe_getattr(error, name)
    yield safe_getattr(error, "status_code")  # redis keeps the first word of the server's answer there
    names = ("type", "error_code") if type(safe_getattr(error, "status")) is int else ("type", "error_code", "code")
    for name in names:  # without the `code` of aiohttp's errors, which warns
        if not _is_sqlstate(code := safe_getattr(error, name)):  # not of a database: five digits have another meaning
            yield code
    yield _member(_member(safe_getattr(error, "response"), "Error"), "Code")
    yield _grpc_code(error)
    yield from _smtp_codes(error)


def _is_sqlstate(code: object) -> bool:
    return type(code) is str and _SQLSTATE.fullmatch(code) is not None


def is_grpc_error(error: BaseException) -> bool:
    """Return whether a gRPC call raised an error. Its data is behind methods, such as `code()`."""
    return "grpc.RpcError" in names_of_error(error)[1]


def _grpc_code(error: BaseException) -> object:
    return safe_getattr(safe_call(error, "code"), "name") if is_grpc_error(error) else None


def safe_call(owner: object, method: str, *arguments: object) -> object:
    """Return the result of a method; None if it raises."""
    try:
        return getattr(owner, method)(*arguments)
    except BaseException:
        return None


def _smtp_codes(error: BaseException) -> Iterator[str]:
    answers = [safe_getattr(error, "smtp_code")]
    recipients = safe_getattr(error, "recipients")
    if type(recipients) is dict:  # SMTPRecipientsRefused: an answer for each
        answers += [answer[0] for answer in list(recipients.values())[:_MAX_RECIPIENTS] if type(answer) is tuple]
    for code in answers:
        if type(code) is int and 400 <= code <= 599:
            yield f"SMTP_{code}"


def _member(table: object, key: str) -> object:
    return table.get(key) if type(table) is dict else None


def _errno_name(error: BaseException) -> str | None:
    if not isinstance(error, OSError):
        return None
    number = safe_getattr(error, "errno")
    name, bases = names_of_error(error)
    if type(number) is not int or not _OTHER_NUMBERS.isdisjoint((name, *bases)):
        return None
    return errno.errorcode.get(number)
