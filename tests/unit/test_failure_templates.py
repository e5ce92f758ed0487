"""Templates for common failures: which one an error fits, and what cannot be one."""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.capture import ErrorCategory, FailureTemplate, RetryPolicy, list_templates
from redrive.capture.failure_templates import MAX_ADVICE_CHARS, TemplateIndex, check_template
from redrive.capture.retry_policies import item_retry
from redrive.errors import InvalidInput
from redrive.model.failure import Failure, failure_from_exception, failure_from_fields

MINE = FailureTemplate(
    name="mine", category=ErrorCategory.NETWORK, policy="linear", max_retries=1, advice="Call Ann.", types=("Odd",)
)


def error(type_name: str, text: str = "", bases: tuple[type, ...] = (Exception,), **attributes: Any) -> Exception:
    """An exception as a client library has it: of this module and class, with these attributes."""
    module, _, name = type_name.rpartition(".")
    kind = type(name, bases, {"__module__": module or "app", **attributes})
    made: Exception = kind(text)
    return made


def raised_from(outer: Exception, cause: Exception) -> Exception:
    outer.__cause__ = cause
    return outer


def template_of(given: Exception | Failure | str, templates: tuple[FailureTemplate, ...] = list_templates()) -> str:
    if isinstance(given, Exception):
        failure = failure_from_exception(given)
    else:
        failure = given if isinstance(given, Failure) else failure_from_fields("Error", given)
    found = TemplateIndex(templates).find(given, failure)
    return "" if found is None else found.name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (error("openai.RateLimitError", status_code=429, code="insufficient_quota"), "quota-exceeded"),
        (OSError(errno.EDQUOT, "full"), "quota-exceeded"),
        (error("openai.RateLimitError", status_code=429), "rate-limited"),
        (error("httpx.HTTPStatusError", response=error("R", status_code=429)), "rate-limited"),
        (error("botocore.exceptions.ClientError", response={"Error": {"Code": "SlowDown"}}), "rate-limited"),
        (error("anthropic.APIStatusError", status_code=529), "provider-overloaded"),
        (error("httpx.PoolTimeout", bases=(TimeoutError,)), "pool-exhausted"),
        (error("sqlalchemy.exc.TimeoutError", "QueuePool limit of size 5 overflow 10 reached"), "pool-exhausted"),
        (error("psycopg.OperationalError", sqlstate="53300"), "pool-exhausted"),
        (error("psycopg.errors.DeadlockDetected", sqlstate="40P01"), "deadlock"),
        (error("sqlalchemy.exc.OperationalError", orig=error("x.Y", pgcode="40001")), "deadlock"),
        (error("sqlite3.OperationalError", "busy", sqlite_errorname="SQLITE_BUSY"), "database-locked"),
        (error("asyncpg.exceptions.AdminShutdownError", sqlstate="57P01"), "database-failover"),
        (OSError(errno.ENOSPC, "full"), "disk-full"),
        (MemoryError(), "out-of-memory"),
        (OSError(errno.EMFILE, "many"), "too-many-open-files"),
        (socket.gaierror(-2, "unknown"), "dns"),
        (ssl.SSLCertVerificationError("expired"), "tls"),
        (ConnectionRefusedError("no"), "connection-refused"),
        (TimeoutError(), "timeout"),
        (error("requests.exceptions.ReadTimeout", bases=(error("requests.Timeout").__class__,)), "timeout"),
        (error("aiohttp.ClientResponseError", status=504), "timeout"),
        (ConnectionResetError("gone"), "connection-lost"),
        (error("requests.exceptions.HTTPError", response=error("R", status_code=502)), "server-error"),
        (PermissionError("no"), "access-denied"),
        (error("openai.AuthenticationError", status_code=401), "access-denied"),
        (error("httpx.HTTPStatusError", response=error("R", status_code=422)), "invalid-request"),
        (FileNotFoundError("gone"), "not-found"),
    ],
)
def test_type_codes_and_status_decide(given: Exception, name: str) -> None:
    assert template_of(given) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Monthly quota exceeded", "quota-exceeded"),
        ("HTTP 429: Too Many Requests", "rate-limited"),
        ("The engine is currently overloaded", "provider-overloaded"),
        ("FATAL: sorry, too many connections", "pool-exhausted"),
        ("Deadlock found when trying to get lock", "deadlock"),
        ("database is locked", "database-locked"),
        ("write: no space left on device", "disk-full"),
        ("Out of memory", "out-of-memory"),
        ("Too many open files", "too-many-open-files"),
        ("[Errno -2] Name or service not known", "dns"),
        ("certificate verify failed", "tls"),
        ("connect: connection refused", "connection-refused"),
        ("Connection timeout", "timeout"),
        ("Broken pipe", "connection-lost"),
        ("503 Service Unavailable", "server-error"),
        ("Access denied for user", "access-denied"),
        ("400 Bad Request", "invalid-request"),
        ("printer on fire", ""),
    ],
)
def test_words_of_a_text_decide(text: str, name: str) -> None:
    assert template_of(text) == name


def test_words_decide_only_within_the_category_of_the_type() -> None:
    assert template_of(error("requests.ConnectionError", "Max retries exceeded: Connection refused")) == (
        "connection-refused"
    )
    assert template_of(ValueError("connection refused is not a colour")) == ""


def test_attributes_decide_before_words() -> None:
    assert template_of(error("app.Failed", "timeout: too many requests", status_code=503)) == "server-error"
    assert template_of(error("psycopg.OperationalError", "connection timeout", sqlstate="53100")) == "disk-full"


def test_cause_decides_within_the_category_of_the_error() -> None:
    connect = error("httpx.ConnectError", "cannot connect")
    refused = error("httpcore.ConnectError")
    assert template_of(raised_from(connect, raised_from(refused, ConnectionRefusedError()))) == "connection-refused"
    assert template_of(raised_from(ValueError("bad host"), ConnectionRefusedError())) == ""


def test_circle_of_causes_ends() -> None:
    first, second = error("httpx.ConnectError"), error("httpx.ConnectError")
    assert template_of(raised_from(first, raised_from(second, first))) == ""


def test_failure_in_words_of_another_process_fits_by_its_type() -> None:
    assert template_of(failure_from_fields("java.net.UnknownHostException", "db")) == "dns"


def test_template_that_comes_first_is_taken() -> None:
    first = replace(MINE, types=("ConnectionRefusedError",))
    assert template_of(ConnectionRefusedError(), (first, *list_templates())) == "mine"


SIGNS = {"types": ("A", "B"), "status_codes": (400, 500), "codes": ("A", "E1"), "phrases": ("a b", "b c")}


@given(data=st.data())
def test_index_finds_what_a_comparison_with_each_template_finds(data: st.DataObject) -> None:
    """The first with any of the types, codes and status of the error; else, in its category, of its cause or words."""

    def draw_template(number: int) -> FailureTemplate:
        signs = {name: tuple(data.draw(st.lists(st.sampled_from(values)))) for name, values in SIGNS.items()}
        category = data.draw(st.sampled_from((ErrorCategory.NETWORK, ErrorCategory.PERMANENT)))
        return replace(MINE, name=f"t{number}", category=category, **{"types": (), **signs})

    def draw_error() -> Exception:
        attributes = {"status": data.draw(st.sampled_from((None, 400, 500))), "code": data.draw(st.sampled_from("AE"))}
        return error(
            data.draw(st.sampled_from(("A", "B", "Other"))),
            data.draw(st.sampled_from(("a b c", "b c", "x"))),
            **attributes,
        )

    def fits(given: Exception, template: FailureTemplate) -> bool:
        says: Any = given
        return (
            type(given).__name__ in template.types
            or says.status in template.status_codes
            or (says.status is None and says.code in template.codes)  # with a status, `code` may be the same again
        )

    templates = tuple(map(draw_template, range(data.draw(st.integers(0, 4)))))
    given = raised_from(draw_error(), draw_error())
    alike = [each for each in templates if each.category == failure_from_exception(given).error_class]
    found = [
        *(each for each in templates if fits(given, each)),
        *(each for each in alike if fits(given.__cause__, each)),  # type: ignore[arg-type]
        *(each for each in alike if any(f" {phrase} " in f" {given} " for phrase in each.phrases)),
    ]
    assert template_of(given, templates) == (found[0].name if found else "")


@pytest.mark.parametrize("template", list_templates(), ids=lambda template: template.name)
def test_built_in_template_is_a_good_one(template: FailureTemplate) -> None:
    assert check_template(template) == template
    assert template.advice.endswith(".")
    retry = item_retry(template.treatment, {}, jitter=False)
    assert (template.policy == RetryPolicy.NEVER) == (retry.attempts == 1)


def test_names_of_built_in_templates_are_different() -> None:
    names = [template.name for template in list_templates()]
    assert len(set(names)) == len(names)


def test_category_may_be_a_text() -> None:
    assert check_template(replace(MINE, category="network")).category is ErrorCategory.NETWORK  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"types": ()}, "no error fits template 'mine'; give it types, status_codes, codes or phrases"),
        ({"types": "Odd"}, "types of template 'mine' are a tuple"),
        ({"types": (OSError,)}, "types of template 'mine' are a tuple of texts"),
        ({"status_codes": ("429",)}, "status_codes of template 'mine' are a tuple of numbers"),
        ({"category": "odd"}, "category must be one of transient, network"),
        ({"advice": ""}, "advice is one line"),
        ({"advice": "x" * (MAX_ADVICE_CHARS + 1)}, "advice is one line"),
        ({"advice": "two\nlines"}, "advice is one line"),
        ({"name": ""}, "template"),
    ],
)
def test_template_that_cannot_be_used_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        check_template(replace(MINE, **changes))
    with pytest.raises(InvalidInput, match="a template is a FailureTemplate"):
        check_template("mine")  # type: ignore[arg-type]
