"""Error classes: by rule, by type, by code, by status code, by words, in this order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.model.classify import ErrorClass, ErrorRule, classify, type_matches


@pytest.mark.parametrize(
    ("error_type", "bases", "expected"),
    [
        ("TimeoutError", ("OSError", "Exception"), "network"),
        ("ConnectionRefusedError", ("ConnectionError", "OSError"), "network"),
        ("MemoryError", (), "resource"),
        ("PermissionError", ("OSError",), "permission"),
        ("ValueError", (), "validation"),
        ("KeyError", ("LookupError",), "permanent"),
        ("asyncio.exceptions.CancelledError", (), "transient"),
        ("json.decoder.JSONDecodeError", ("ValueError",), "validation"),
        ("ssl.SSLCertVerificationError", ("ssl.SSLError", "OSError", "ValueError"), "network"),
        ("socket.gaierror", ("OSError",), "network"),
        ("requests.exceptions.ConnectTimeout", ("requests.exceptions.ConnectionError", "OSError"), "network"),
        ("requests.exceptions.JSONDecodeError", ("requests.exceptions.RequestException", "OSError"), "validation"),
        ("httpx.ReadTimeout", ("httpx.TimeoutException", "httpx.TransportError"), "network"),
        ("urllib3.exceptions.MaxRetryError", ("urllib3.exceptions.HTTPError",), "network"),
        (
            "aiohttp.client_exceptions.ClientConnectorError",
            ("aiohttp.client_exceptions.ClientConnectionError",),
            "network",
        ),
        ("psycopg.errors.DeadlockDetected", ("psycopg.OperationalError",), "transient"),
        ("psycopg.errors.DiskFull", ("psycopg.OperationalError",), "resource"),
        ("psycopg.errors.InsufficientPrivilege", ("psycopg.ProgrammingError",), "permission"),
        ("redis.exceptions.ConnectionError", ("redis.exceptions.RedisError",), "network"),
        ("redis.exceptions.AuthenticationError", ("redis.exceptions.ConnectionError",), "permission"),
        ("pydantic_core._pydantic_core.ValidationError", ("ValueError",), "validation"),
        ("msgspec.ValidationError", ("msgspec.DecodeError",), "validation"),
        ("openai.RateLimitError", ("openai.APIStatusError",), "transient"),
        ("myapp.errors.GatewayDown", ("myapp.errors.Base", "ConnectionError"), "network"),
    ],
)
def test_a_type_or_the_nearest_of_its_bases_decides(error_type: str, bases: tuple[str, ...], expected: str) -> None:
    assert classify(error_type, bases) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(408, "network"), (425, "transient"), (429, "transient"), (500, "transient"), (503, "transient"), (504, "network"),
     (507, "resource"), (599, "transient"), (501, "permanent"), (401, "permission"), (403, "permission"),
     (400, "validation"), (422, "validation"), (404, "permanent"), (409, "permanent")],
)  # fmt: skip
def test_then_a_status_code_decides(status: int, expected: str) -> None:
    assert classify("app.HTTPError", (), status, "rate limit, timeout, invalid") == expected


def test_a_status_that_is_no_error_decides_nothing() -> None:
    assert classify("E", (), 200, "connection refused") is ErrorClass.NETWORK


def test_an_http_answer_is_not_a_network_error() -> None:
    assert classify("urllib.error.HTTPError", ("urllib.error.URLError", "OSError"), 404) is ErrorClass.PERMANENT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Rate-Limit exceeded", "transient"),
        ("sqlite3: database is locked", "transient"),
        ("An error occurred (ThrottlingException) when calling", "transient"),
        ("connection timed out", "network"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED]", "network"),
        ("No space left on device", "resource"),
        ("Access Denied", "permission"),
        ("malformed header", "validation"),
        ("the invalidation was refused", "permanent"),
        ("businesslike", "permanent"),
        ("", "permanent"),
        ("timeout while reading an invalid file", "network"),
        ("x " * 4096 + "timeout", "permanent"),
    ],
)
def test_then_whole_words_decide(text: str, expected: str) -> None:
    assert classify("app.Error", ("Exception",), None, text) == expected


@pytest.mark.parametrize(
    ("codes", "expected"),
    [("ENOSPC", "resource"), ("ECONNRESET", "network"), ("ENOENT", "permanent"), ("EDEADLOCK", "transient"),
     ("40001", "transient"), ("40P01", "transient"), ("55P03", "transient"), ("57014", "transient"),
     ("57P01", "transient"), ("53300", "resource"), ("53100", "resource"), ("08006", "network"),
     ("28P01", "permission"),
     ("42501", "permission"), ("22001", "validation"), ("23505", "validation"), ("42P01", "permanent"),
     ("SQLITE_BUSY", "transient"), ("SQLITE_BUSY_SNAPSHOT", "transient"), ("SQLITE_IOERR_WRITE", "resource"),
     ("SQLITE_CONSTRAINT_UNIQUE", "validation"), ("SQLITE_ERROR", "permanent"), ("SMTP_421", "transient"),
     ("SMTP_452", "resource"), ("SMTP_550", "permanent"), ("SMTP_535", "permission"),
     ("SMTP_450 SMTP_550", "transient"),
     ("UNAVAILABLE", "transient"), ("DEADLINE_EXCEEDED", "network"), ("UNAUTHENTICATED", "permission"),
     ("RESOURCE_EXHAUSTED", "resource"), ("INVALID_ARGUMENT", "validation"), ("UNIMPLEMENTED", "permanent"),
     ("ThrottlingException", "transient"), ("AccessDenied", "permission"), ("insufficient_quota", "resource"),
     ("overloaded_error", "transient"), ("EPERM EAGAIN", "transient"), ("nonsense", "permanent")],
)  # fmt: skip
def test_then_a_code_decides_before_status_and_words(codes: str, expected: str) -> None:
    status = 400 if expected != "permanent" else None
    assert classify("app.Error", ("Exception",), status, "", (), frozenset(codes.split())) == expected


@pytest.mark.parametrize(
    ("error_type", "bases", "status", "code", "expected"),
    [
        ("psycopg.OperationalError", (), None, None, "network"),
        ("psycopg.errors.ConfigurationLimitExceeded", ("psycopg.OperationalError",), None, "53400", "resource"),
        ("sqlalchemy.exc.OperationalError", (), None, None, "transient"),
        ("sqlalchemy.exc.OperationalError", (), None, "SQLITE_FULL", "resource"),
        ("urllib3.exceptions.MaxRetryError", ("urllib3.exceptions.HTTPError",), 403, None, "permission"),
        ("openai.RateLimitError", ("openai.APIStatusError",), 429, "insufficient_quota", "resource"),
        ("app.RateLimitError", ("ValueError",), None, None, "transient"),
        ("anthropic.HTTPNotImplementedError", ("anthropic.InternalServerError",), 501, None, "permanent"),
    ],
)
def test_type_that_stands_for_several_kinds_of_trouble_decides_after_code_and_status(
    error_type: str, bases: tuple[str, ...], status: int | None, code: str | None, expected: str
) -> None:
    assert classify(error_type, bases, status, "invalid", (), () if code is None else {code}) == expected


def test_type_decides_before_a_code() -> None:
    assert classify("ssl.SSLError", ("OSError",), codes={"EPERM"}) is ErrorClass.NETWORK


def test_rules_come_first_and_all_their_conditions_must_hold() -> None:
    rules = [
        ErrorRule(ErrorClass.POISON, type="ValueError", contains=("very  BAD",)),
        ErrorRule(ErrorClass.TRANSIENT, status_codes=(404, 410)),
        ErrorRule(ErrorClass.RESOURCE),
    ]
    assert classify("json.JSONDecodeError", ("ValueError",), None, "a very-bad one", rules) is ErrorClass.POISON
    assert classify("ValueError", (), None, "very good, not bad", rules) is ErrorClass.VALIDATION
    assert classify("X", (), 404, "", rules) is ErrorClass.TRANSIENT


def test_a_type_goes_by_three_names() -> None:
    bases = ("requests.exceptions.RequestException", "OSError")
    for pattern in (
        "requests.exceptions.Timeout",
        "requests.Timeout",
        "Timeout",
        "requests.RequestException",
        "OSError",
    ):
        assert type_matches(pattern, "requests.exceptions.Timeout", bases)
    for pattern in ("exceptions.Timeout", "requests", "timeout", "urllib3.Timeout"):
        assert not type_matches(pattern, "requests.exceptions.Timeout", bases)


@given(st.text(), st.lists(st.text()), st.none() | st.integers(), st.text(), st.sets(st.text()))
def test_anything_has_a_class(
    error_type: str, bases: list[str], status: int | None, text: str, codes: set[str]
) -> None:
    assert classify(error_type, tuple(bases), status, text, codes=codes) in ErrorClass
