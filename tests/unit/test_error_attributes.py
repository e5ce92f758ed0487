"""What errors of client libraries say in attributes. The classes here keep them as the libraries do."""

from __future__ import annotations

import email.message
import errno
import socket
import sqlite3
import ssl
import urllib.error
from http import HTTPStatus
from typing import Any

import pytest

from redrive.clock import Instant
from redrive.model.duration import HOUR, MINUTE, SECOND
from redrive.model.error_attributes import codes_of, retry_after_of, status_code_of

NOW = Instant(1_700_000_000 * SECOND)
LATER = "Tue, 14 Nov 2023 22:15:20 GMT"
"""Two minutes after NOW."""


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
    return urllib.error.HTTPError("http://localhost", status, "no", headers, None)


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
        (Carrier(code="x" * 101, sqlstate=b"40P01"), set()),
    ],
)
def test_codes(error: BaseException, codes: set[str]) -> None:
    assert codes_of(error) == codes


def test_code_of_sqlite() -> None:
    assert codes_of(sqlite_error()) == {"SQLITE_CANTOPEN"}


@pytest.mark.parametrize(
    ("error", "delay"),
    [
        (http_error(429, "120"), 2 * MINUTE),
        (http_error(503, LATER), 2 * MINUTE),
        (http_error(503, "Tue, 14 Nov 2023 22:15:20 -0000"), 2 * MINUTE),
        (Carrier(response=Carrier(headers={"retry-after": "1.5"})), 1_500_000),
        (Carrier(response=Carrier(headers={"Retry-After": "3"})), 3 * SECOND),
        (Carrier(response=Carrier(headers={"retry-after-ms": "250", "retry-after": "1"})), 250_000),
        (Carrier(headers={"Retry-After": "7"}), 7 * SECOND),
        (aws("SlowDown", 503, **{"retry-after": "9"}), 9 * SECOND),
        (http_error(429, "31536000"), HOUR),
        (http_error(429, "inf"), HOUR),
        (http_error(429, "Fri, 31 Dec 9999 23:59:59 GMT"), HOUR),
        (http_error(429, "-5"), 0),
        (http_error(503, "Tue, 14 Nov 2000 22:15:20 GMT"), 0),
        (http_error(429, "nan"), None),
        (http_error(429, "soon"), None),
        (http_error(429, "1" * 101), None),
        (Carrier(headers={"Retry-After": 5}), None),
        (Carrier(), None),
    ],
)
def test_retry_after(error: BaseException, delay: int | None) -> None:
    assert retry_after_of(error, NOW) == delay


def test_attributes_that_raise_say_nothing() -> None:
    hostile = Hostile()
    assert (status_code_of(hostile), codes_of(hostile), retry_after_of(hostile, NOW)) == (None, frozenset(), None)
    assert retry_after_of(Carrier(headers=hostile), NOW) is None
