"""Templates for common failures: the conditions on an error, its category and retry policy, and advice for an operator.

The first template that matches applies. The type, codes and status of an error are compared before the phrases in its
text. The causes of the error (`__cause__`), and its text, only select templates of the category of the error itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import msgspec

from redrive.broker.flows.inspection import parse_choice
from redrive.capture.captured_task import ErrorCategory, category_of
from redrive.capture.retry_policies import CapturePolicy, Treatment
from redrive.errors import InvalidInput
from redrive.model.classify import names_of, spaced_words
from redrive.model.error_attributes import codes_of, status_code_of
from redrive.model.exception import names_of_error
from redrive.model.failure import Failure
from redrive.model.limits import check_name

MAX_ADVICE_CHARS = 200
_MAX_CAUSES = 7
"""The highest number of causes of an error that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTemplate:
    """One common failure. It matches errors with one of the types, status codes, error codes or phrases."""

    name: str
    category: ErrorCategory
    policy: str
    max_retries: int
    advice: str
    """The advice for an operator, in one line."""
    types: tuple[str, ...] = ()
    """Names of exception types: `Timeout`, `requests.Timeout`, or the full name. Subclasses match too."""
    status_codes: tuple[int, ...] = ()
    """HTTP status codes."""
    codes: tuple[str, ...] = ()
    """Names of errno, SQLSTATEs, and codes of client libraries: `ENOSPC`, `40P01`, `insufficient_quota`."""
    phrases: tuple[str, ...] = ()
    """Sequences of words in the text of the error."""

    @property
    def treatment(self) -> Treatment:
        """The retry policy and highest number of retries of such a failure."""
        return Treatment(self.policy, self.max_retries)

    @property
    def has_condition(self) -> bool:
        """True if the template has a condition that an error can meet."""
        return bool(self.types or self.status_codes or self.codes or self.phrases)


class Diagnosis(msgspec.Struct, frozen=True, gc=False):
    """The category and treatment of an error, and the template that it matches."""

    failure: Failure
    category: ErrorCategory
    treatment: Treatment
    template: FailureTemplate | None = None


class TemplateIndex:
    """An index of templates by types, status codes, error codes and phrases; the first in their order applies."""

    def __init__(self, templates: Iterable[FailureTemplate]) -> None:
        self.templates = tuple(templates)
        self._none = len(self.templates)
        """The position that stands for no match."""
        self._of_type: dict[str, int] = {}
        """The position of the first template by type name. Below, by status code and by error code."""
        self._of_status_code: dict[int, int] = {}
        self._of_code: dict[str, int] = {}
        for position, template in enumerate(self.templates):
            for name in template.types:
                self._of_type.setdefault(name, position)
            for status_code in template.status_codes:
                self._of_status_code.setdefault(status_code, position)
            for code in template.codes:
                self._of_code.setdefault(code, position)
        self._phrases = [(spaced_words(text), template) for template in self.templates for text in template.phrases]
        self._first_of_names = lru_cache(maxsize=1024)(self._search_names)

    @cached_property
    def by_category(self) -> dict[ErrorCategory, TemplateIndex]:
        """The templates of each category."""
        return {
            category: TemplateIndex(template for template in self.templates if template.category is category)
            for category in ErrorCategory
        }

    def find(self, error: BaseException | Failure | str, failure: Failure) -> FailureTemplate | None:
        """Return the first template that matches an error, or None. `failure` is the record of the error."""
        if not isinstance(error, BaseException):
            found = self._first(failure.type, failure.bases)
            return found or self.by_category[category_of(failure.error_class)]._first_of_text(failure.text)
        if (found := self._first_of_exception(error)) is not None:
            return found
        alike, link = self.by_category[category_of(failure.error_class)], error.__cause__
        for _ in range(_MAX_CAUSES):
            if link is None:
                break
            if (found := alike._first_of_exception(link)) is not None:
                return found
            link = link.__cause__
        return alike._first_of_text(failure.text)

    def _first_of_exception(self, error: BaseException) -> FailureTemplate | None:
        return self._first(*names_of_error(error), status_code_of(error), codes_of(error))

    def _first(
        self, error_type: str, bases: tuple[str, ...], status_code: int | None = None, codes: Iterable[str] = ()
    ) -> FailureTemplate | None:
        position = self._first_of_names(error_type, bases)
        if status_code is not None:
            position = min(position, self._of_status_code.get(status_code, self._none))
        for code in codes:
            position = min(position, self._of_code.get(code, self._none))
        return self.templates[position] if position < self._none else None

    def _search_names(self, error_type: str, bases: tuple[str, ...]) -> int:
        """Return the position of the first match with any name of a type, or of the types that it derives from."""
        names = (name for each in (error_type, *bases) for name in names_of(each))
        return min((self._of_type[name] for name in names if name in self._of_type), default=self._none)

    def _first_of_text(self, text: str) -> FailureTemplate | None:
        words = spaced_words(text)
        return next((template for phrase, template in self._phrases if phrase in words), None)


def check_template(template: FailureTemplate) -> FailureTemplate:
    """Return a template with its category as `ErrorCategory`. Raises InvalidInput if the template cannot be used."""
    if not isinstance(template, FailureTemplate):
        raise InvalidInput(f"a template is a FailureTemplate, not {template!r:.60}")
    name = check_name("template", template.name)
    for what in ("types", "status_codes", "codes", "phrases"):
        signs, kind = getattr(template, what), int if what == "status_codes" else str
        if not isinstance(signs, tuple) or not all(isinstance(sign, kind) for sign in signs):
            words = "numbers" if kind is int else "texts"
            raise InvalidInput(f"{what} of template '{name}' are a tuple of {words}, not {signs!r:.40}")
    if not template.has_condition:
        raise InvalidInput(f"no error fits template '{name}'; give it types, status_codes, codes or phrases")
    category = parse_choice("category", ErrorCategory, template.category)
    if not 0 < len(template.advice) <= MAX_ADVICE_CHARS or "\n" in template.advice:
        raise InvalidInput(f"advice is one line of up to {MAX_ADVICE_CHARS} characters, not {template.advice!r:.40}")
    return replace(template, category=category)


def list_templates() -> tuple[FailureTemplate, ...]:
    """Return the built-in templates, in the order of comparison."""
    return _BUILT_IN


def _template(
    name: str,
    category: ErrorCategory,
    policy: CapturePolicy,
    max_retries: int,
    advice: str,
    *,
    types: str = "",
    status: tuple[int, ...] = (),
    codes: str = "",
    phrases: str = "",
) -> FailureTemplate:
    return FailureTemplate(
        name=name,
        category=category,
        policy=policy,
        max_retries=max_retries,
        advice=advice,
        types=tuple(types.split()),
        status_codes=status,
        codes=tuple(codes.split()),
        phrases=tuple(phrase.strip() for phrase in phrases.split(",") if phrase),
    )


_T, _N, _R = ErrorCategory.TRANSIENT, ErrorCategory.NETWORK, ErrorCategory.RESOURCE
_EXPONENTIAL, _LINEAR, _NEVER = CapturePolicy.EXPONENTIAL, CapturePolicy.LINEAR, CapturePolicy.NEVER

_BUILT_IN = (
    _template("quota-exceeded", _R, _LINEAR, 2,
        "Raise the quota, or wait for its next period; then retry slowly.",
        types="QuotaExceeded QuotaExceededError",
        codes="insufficient_quota ServiceQuotaExceededException LimitExceededException EDQUOT",
        phrases="quota"),
    _template("rate-limited", _T, _EXPONENTIAL, 5,
        "Send fewer calls at a time. Each retry waits as long as Retry-After asks, up to an hour.",
        types="RateLimitError RateLimitExceeded RateLimited TooManyRequests TooManyRequestsError ThrottlingException",
        status=(429,),
        codes="Throttling ThrottlingException TooManyRequestsException RequestLimitExceeded SlowDown",
        phrases="rate limit, rate limited, too many requests, throttled, throttling, slow down"),
    _template("provider-overloaded", _T, _EXPONENTIAL, 5,
        "The provider of the model has no capacity: retry later, or call another model or provider.",
        types="OverloadedError", status=(529,), codes="overloaded_error", phrases="overloaded"),
    _template("pool-exhausted", _R, _EXPONENTIAL, 3,
        "All connections are in use: make the pool larger, or hold connections for a shorter time.",
        types="PoolTimeout sqlalchemy.TimeoutError EmptyPoolError MaxConnectionsError TooManyConnections "
        "TooManyConnectionsError",
        codes="53300", phrases="too many connections, pool exhausted, pool is exhausted, queuepool limit"),
    _template("deadlock", _T, CapturePolicy.IMMEDIATE, 5,
        "Another transaction was in the way: lock rows in one order, and keep transactions short.",
        types="DeadlockDetected DeadlockDetectedError SerializationFailure SerializationError",
        codes="40P01 40001", phrases="deadlock, could not serialize"),
    _template("database-locked", _T, _EXPONENTIAL, 5,
        "Find the transaction that holds the lock, and end it or make it shorter.",
        types="LockNotAvailable LockNotAvailableError",
        codes="55P03 SQLITE_BUSY SQLITE_BUSY_SNAPSHOT SQLITE_LOCKED",
        phrases="database is locked, lock timeout, lock wait timeout"),
    _template("database-failover", _T, _EXPONENTIAL, 5,
        "The database restarts, or another server takes over: check that clients find the new one.",
        types="ReadOnlySqlTransaction ReadOnlyError BusyLoadingError CannotConnectNow",
        codes="25006 57P01 57P02 57P03"),
    _template("disk-full", _R, _LINEAR, 2,
        "Free space on the disk, or add some; then retry.",
        types="DiskFull DiskFullError", status=(507,), codes="ENOSPC 53100 SQLITE_FULL",
        phrases="no space left, disk full, disk is full, insufficient storage"),
    _template("out-of-memory", _R, _LINEAR, 2,
        "Run fewer tasks at a time, or smaller ones, or give the process more memory.",
        types="MemoryError OutOfMemory OutOfMemoryError", codes="ENOMEM 53200 SQLITE_NOMEM",
        phrases="out of memory, cannot allocate memory, oom"),
    _template("too-many-open-files", _R, _LINEAR, 2,
        "Close files and connections after use, or raise the limit (ulimit -n).",
        codes="EMFILE ENFILE", phrases="too many open files"),
    _template("dns", _N, _EXPONENTIAL, 3,
        "Check the host name, and that this machine can resolve it.",
        types="socket.gaierror NameResolutionError UnknownHostException ClientConnectorDNSError",
        phrases="name or service not known, name resolution, getaddrinfo, failed to resolve"),
    _template("tls", _N, _LINEAR, 3,
        "Check the certificate (dates, host name, issuer) and the clocks of both sides.",
        types="SSLError", status=(525, 526), phrases="certificate, ssl, tls, handshake"),
    _template("connection-refused", _N, _EXPONENTIAL, 3,
        "Check that the service runs, and that it listens on this host and port.",
        types="ConnectionRefusedError", codes="ECONNREFUSED", phrases="connection refused, econnrefused"),
    _template("timeout", _N, _EXPONENTIAL, 3,
        "Check how busy the other side is; if such calls take long, raise the timeout.",
        types="TimeoutError Timeout TimeoutException ReadTimeoutError ConnectTimeoutError DeadlineExceeded",
        status=(408, 504, 522, 524), codes="ETIMEDOUT", phrases="timeout, timed out, time out"),
    _template("connection-lost", _N, _EXPONENTIAL, 3,
        "Check the network between both sides, and whether the other side restarts.",
        types="ConnectionResetError BrokenPipeError ConnectionAbortedError RemoteDisconnected "
        "ServerDisconnectedError",
        codes="ECONNRESET EPIPE ECONNABORTED EHOSTUNREACH ENETUNREACH 08006",
        phrases="connection reset, connection aborted, connection closed, connection lost, broken pipe, unreachable"),
    _template("server-error", _T, _EXPONENTIAL, 5,
        "The other side fails: check its status page or its log, and retry once it works.",
        types="InternalServerError ServiceUnavailable ServiceUnavailableError",
        status=(500, 502, 503, 520, 521, 523), phrases="service unavailable, bad gateway"),
    _template("access-denied", ErrorCategory.PERMISSION, _NEVER, 0,
        "Renew the credentials, or grant the right; then retry the task.",
        types="PermissionError", status=(401, 403, 407),
        codes="EACCES EPERM 42501 28P01 AccessDenied AccessDeniedException invalid_api_key",
        phrases="permission denied, access denied, unauthorized, forbidden, authentication failed"),
    _template("invalid-request", ErrorCategory.VALIDATION, _NEVER, 0,
        "The other side refuses the input: correct it where it is made, and archive the task.",
        status=(400, 413, 422), codes="context_length_exceeded ValidationException",
        phrases="bad request, unprocessable"),
    _template("not-found", ErrorCategory.PERMANENT, _NEVER, 0,
        "What the call names does not exist: check the address or the id.",
        types="FileNotFoundError", status=(404, 410), codes="ENOENT NoSuchKey ResourceNotFoundException"),
)  # fmt: skip
