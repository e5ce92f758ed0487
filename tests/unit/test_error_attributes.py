"""What errors of client libraries say in attributes. The classes here keep them as the libraries do."""

from __future__ import annotations

import email.message
import errno
import smtplib
import socket
import sqlite3
import ssl
import urllib.error
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

from redrive.model.error_attributes import MAX_ERRORS, codes_of, has_attributes, related_errors, status_code_of


class Carrier(Exception):
    """Anything with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Hostile(Exception):
    """An error whose attributes raise."""

    def __getattr__(self, name: str) -> Any:
        raise KeyboardInterrupt


def aws(code: str, status: int, **headers: str) -> Carrier:
    return Carrier(
        response={"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}
    )


def http_error(status: int, retry_after: str) -> urllib.error.HTTPError:
    headers = email.message.Message()
    headers["Retry-After"] = retry_after
    with urllib.error.HTTPError("http://localhost", status, "no", headers, None) as error:
        return error


def sqlite_error() -> sqlite3.OperationalError:
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect("/nowhere/at/all.db")
    return caught.value


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Carrier(status_code=429), 429),
        (Carrier(response=Carrier(status_code=503)), 503),
        (Carrier(status=502), 502),
        (Carrier(code=HTTPStatus.TOO_MANY_REQUESTS), 429),
        (http_error(404, ""), 404),
        (aws("SlowDown", 503), 503),
        (Carrier(code="429"), None),
        (Carrier(code=7), None),
        (Carrier(status=True), None),
        (SystemExit(429), None),
    ],
)
def test_status_code(error: BaseException, status: int | None) -> None:
    assert status_code_of(error) == status


@pytest.mark.parametrize(
    ("error", "codes"),
    [
        (OSError(errno.ENOSPC, "full"), {"ENOSPC"}),
        (ConnectionRefusedError(errno.ECONNREFUSED, "no"), {"ECONNREFUSED"}),
        (ssl.SSLError(1, "a number of OpenSSL"), set()),
        (socket.gaierror(8, "a number of the resolver"), set()),
        (Carrier(sqlstate="40P01"), {"40P01"}),
        (Carrier(pgcode="53300"), {"53300"}),
        (Carrier(orig=Carrier(sqlstate="53100")), {"53100"}),
        (Carrier(code="insufficient_quota", status_code=429), {"insufficient_quota"}),
        (aws("ThrottlingException", 400), {"ThrottlingException"}),
        (smtplib.SMTPSenderRefused(552, b"full", "a@b"), {"SMTP_552"}),
        (Carrier(status_code="OOM"), {"OOM"}),
        (Carrier(type="overloaded_error", error_code="busy_now"), {"overloaded_error", "busy_now"}),
        (Carrier(code="40001"), set()),
        (Carrier(code="x" * 101, sqlstate=b"40P01"), set()),
    ],
)
def test_codes(error: BaseException, codes: set[str]) -> None:
    assert codes_of(error) == codes


def test_code_of_sqlite() -> None:
    assert codes_of(sqlite_error()) == {"SQLITE_CANTOPEN"}


class RpcError(Exception):
    """What errors of gRPC derive from."""


RpcError.__module__ = "grpc"


class Call(RpcError):
    """An error of gRPC: what it says is behind methods."""

    def __init__(self, code: Any) -> None:
        self._code = code

    def code(self) -> Any:
        if isinstance(self._code, BaseException):
            raise self._code
        return self._code


def test_code_of_grpc() -> None:
    assert codes_of(Call(SimpleNamespace(name="UNAVAILABLE"))) == {"UNAVAILABLE"}
    assert codes_of(Call(KeyboardInterrupt())) == codes_of(Call(None)) == frozenset()


def test_method_code_of_other_errors_is_not_called() -> None:
    class Other(Exception):
        def code(self) -> Any:
            raise AssertionError

    assert codes_of(Other()) == frozenset()


def test_deprecated_code_of_an_error_with_a_status_is_not_read() -> None:
    class Deprecated(Exception):
        status = 503

        @property
        def code(self) -> int:
            raise AssertionError

    assert (status_code_of(Deprecated()), codes_of(Deprecated())) == (503, frozenset())


@pytest.mark.parametrize(
    ("error", "status", "codes"),
    [
        (Carrier(orig=Carrier(sqlstate="40001")), None, {"40001"}),
        (Carrier(reason=ConnectionRefusedError(errno.ECONNREFUSED, "no")), None, {"ECONNREFUSED"}),
        (RuntimeError(Carrier(reason=Carrier(status_code=429))), 429, set()),
        (Carrier(reason="no error", args=(1,)), None, set()),
    ],
)
def test_what_an_error_holds_speaks_for_it(error: BaseException, status: int | None, codes: set[str]) -> None:
    assert (status_code_of(error), codes_of(error)) == (status, codes)


def test_error_that_holds_itself_is_read_once() -> None:
    error = Carrier(status_code=429)
    error.orig, error.reason, error.args, error.__cause__ = error, error, (error,), error
    assert related_errors(error) == [error]
    assert status_code_of(error) == 429


def test_only_the_nearest_of_many_causes_are_read() -> None:
    error: BaseException = Carrier(status_code=429)
    for _ in range(1000):
        error = RuntimeError(error)
    assert len(related_errors(error)) == MAX_ERRORS
    assert status_code_of(error) is None


def test_refused_recipients_of_smtp_have_an_answer_each() -> None:
    refused = smtplib.SMTPRecipientsRefused({"a@b": (450, b"later"), "c@d": (550, b"never")})
    assert codes_of(refused) == {"SMTP_450", "SMTP_550"}
    assert status_code_of(refused) is None


def test_attributes_that_raise_say_nothing() -> None:
    hostile = Hostile()
    assert (status_code_of(hostile), codes_of(hostile)) == (None, frozenset())


class Slotted(Exception):
    __slots__ = ("status_code",)


class Dynamic(Exception):
    def __getattr__(self, name: str) -> Any:
        return {"status_code": 503, "sqlstate": "40001"}.get(name)


class Inherited(Carrier):
    code = "EXCEEDED"


def test_attributes_are_found_in_slots_in_bases_and_where_they_are_computed() -> None:
    slotted = Slotted()
    slotted.status_code = 503
    assert status_code_of(slotted) == status_code_of(Dynamic()) == status_code_of(Inherited(status=503)) == 503
    assert codes_of(Dynamic()) == {"40001"}
    assert codes_of(Inherited()) == {"EXCEEDED"}
    assert not has_attributes(ValueError())
