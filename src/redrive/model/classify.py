"""Error classes: the kind of a failure, by its type, its codes, its status code or its words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache

import msgspec

from redrive.model.caller_input import set_member
from redrive.model.search_terms import tokenize

MAX_CLASSIFIED_CHARS = 4_096


class ErrorClass(StrEnum):
    """The kinds of failures. They decide about retries only in queues whose settings refer to them."""

    TRANSIENT = "transient"  # rate limits, busy, temporary: the same call succeeds later
    NETWORK = "network"  # connections, time-outs, TLS
    RESOURCE = "resource"  # memory, disk, quota: succeeds once there is room again
    PERMISSION = "permission"  # access denied, unauthorized
    VALIDATION = "validation"  # invalid input, malformed data
    PERMANENT = "permanent"  # everything else
    POISON = "poison"  # killed its worker, or could not be decoded; never derived from an exception


class ErrorRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One rule of a queue or process: the class of failures that meet every condition given.

    `type` is a name as in `type_matches`, `status_codes` any of these codes, `contains` phrases that must all be there.
    """

    error_class: ErrorClass
    type: str | None = None
    status_codes: tuple[int, ...] = ()
    contains: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        set_member(self, "error_class", ErrorClass, "error_rules.error_class")

    @property
    def has_condition(self) -> bool:
        """True if the rule has a condition; a rule without one never applies."""
        return self.type is not None or bool(self.status_codes or self.contains)


def classify(
    error_type: str,
    bases: tuple[str, ...] = (),
    status_code: int | None = None,
    text: str = "",
    rules: Sequence[ErrorRule] = (),
    codes: Collection[str] = (),
) -> ErrorClass:
    """Return the class of an error as `find_class` does, or permanent if it finds none."""
    return find_class(error_type, bases, status_code, text, rules, codes) or ErrorClass.PERMANENT


def find_class(
    error_type: str,
    bases: tuple[str, ...],
    status_code: int | None,
    text: str,
    rules: Sequence[ErrorRule],
    codes: Collection[str],
) -> ErrorClass | None:
    """Return the class of an error: by the rules given, then its type, then its codes, its status code, and its words.

    `bases` are the names of the classes it derives from, nearest first; `codes` as in `codes_of`. A type for
    several kinds of errors decides only if codes and status do not.
    """
    for rule in rules:
        if _rule_matches(rule, error_type, bases, status_code, text):
            return rule.error_class
    names = (error_type, *bases)
    return (
        class_of_type(names)
        or _class_of_codes(codes)
        or _class_of_status(status_code)
        or _class_of_broad_type(names)
        or _class_of_text(text)
    )


def type_matches(pattern: str, error_type: str, bases: Iterable[str] = ()) -> bool:
    """Return whether a type, or one it derives from, has the name `pattern`.

    A name is the full one (`requests.exceptions.Timeout`), the package and the class (`requests.Timeout`), or the
    class alone (`Timeout`).
    """
    return any(pattern in names_of(name) for name in (error_type, *bases))


@lru_cache(maxsize=4096)
def names_of(name: str) -> tuple[str, str, str]:
    """Return the three names of a type: the full one, package and class, the class alone."""
    package, _, _ = name.partition(".")
    _, _, last = name.rpartition(".")
    return (name, f"{package}.{last}", last)


def _rule_matches(rule: ErrorRule, error_type: str, bases: tuple[str, ...], status_code: int | None, text: str) -> bool:
    if not rule.has_condition:
        return False
    if rule.type is not None and not type_matches(rule.type, error_type, bases):
        return False
    if rule.status_codes and status_code not in rule.status_codes:
        return False
    words = spaced_words(text) if rule.contains else ""
    return all(spaced_words(phrase) in words for phrase in rule.contains)


def spaced_words(text: str) -> str:
    """Return the words of a text, or of a phrase to find in it, with a space around each."""
    return _spaced(tokenize(text[:MAX_CLASSIFIED_CHARS]))


def _spaced(words: list[str]) -> str:
    return f" {' '.join(words)} "


@lru_cache(maxsize=1024)
def class_of_type(names: tuple[str, ...]) -> ErrorClass | None:
    """Return the class by the names of a type, its own before those of its bases; None if they do not decide."""
    for name in names:
        full, short, last = names_of(name)
        if short in _ANSWERS or short in _BY_BROAD_TYPE or last in _BY_BROAD_TYPE:
            return None
        found = _BY_TYPE.get(full) or _BY_TYPE.get(short) or _BY_CLASS_NAME.get(last)
        if found:
            return found
    return None


def _class_of_broad_type(names: tuple[str, ...]) -> ErrorClass | None:
    for _, short, last in map(names_of, names):
        if found := _BY_BROAD_TYPE.get(short) or _BY_BROAD_TYPE.get(last):
            return found
    return None


def _class_of_codes(codes: Collection[str]) -> ErrorClass | None:
    found = {error_class for code in codes if (error_class := _class_of_code(code))}
    return next((error_class for error_class in (*_TEXT_ORDER, _P) if error_class in found), None)


def _class_of_code(code: str) -> ErrorClass | None:
    if code in _BY_CODE:
        return _BY_CODE[code]
    if code.startswith("SQLITE_"):  # SQLITE_BUSY_SNAPSHOT is an extended code of SQLITE_BUSY
        return _BY_CODE.get("_".join(code.split("_", 2)[:2]))
    if code.startswith("SMTP_"):
        return _T if code.startswith("SMTP_4") else _P
    return _BY_SQLSTATE_CLASS.get(code[:2]) if _SQLSTATE.fullmatch(code) else None


def _class_of_status(status_code: int | None) -> ErrorClass | None:
    if status_code is None or not 400 <= status_code <= 599:
        return None
    return _BY_STATUS.get(status_code) or (ErrorClass.TRANSIENT if status_code >= 500 else ErrorClass.PERMANENT)


def _class_of_text(text: str) -> ErrorClass | None:
    words = tokenize(text[:MAX_CLASSIFIED_CHARS])
    # Most texts have none of the first words of the phrases, and return here.
    openers = _PHRASES.keys() & set(words)
    if not openers:
        return None
    spaced = _spaced(words)
    found = [rank for opener in openers for phrase, rank in _PHRASES[opener] if phrase in spaced]
    return _TEXT_ORDER[min(found)] if found else None


def _table(*rows: tuple[ErrorClass, str]) -> dict[str, ErrorClass]:
    return {name: error_class for error_class, names in rows for name in names.split()}


_T, _N, _R = ErrorClass.TRANSIENT, ErrorClass.NETWORK, ErrorClass.RESOURCE
_A, _V, _P = ErrorClass.PERMISSION, ErrorClass.VALIDATION, ErrorClass.PERMANENT

# Names that have this class only in one package (`package.Class`), and Python's own, which have no package.
_BY_TYPE = _table(
    (_T, "BlockingIOError InterruptedError KeyboardInterrupt asyncio.CancelledError subprocess.TimeoutExpired"),
    (_T, "queue.Full asyncio.QueueFull aiohttp.ServerDisconnectedError psycopg.QueryCanceled redis.BusyLoadingError"),
    (_T, "redis.TryAgainError redis.LockError redis.ReadOnlyError redis.ClusterDownError redis.WatchError"),
    (_N, "socket.timeout socket.gaierror socket.herror ssl.SSLError asyncio.TimeoutError"),
    (
        _N,
        "asyncio.IncompleteReadError http.RemoteDisconnected http.IncompleteRead urllib.URLError",
    ),
    (_N, "smtplib.SMTPServerDisconnected requests.ChunkedEncodingError httpx.TransportError httpx2.TransportError"),
    (_N, "aiohttp.ClientConnectionError aiohttp.ClientPayloadError"),
    (_N, "asyncpg.InterfaceError sqlalchemy.InterfaceError sqlalchemy.DisconnectionError botocore.HTTPClientError"),
    (_N, "grpc.FutureTimeoutError websockets.ConnectionClosed paramiko.SSHException kombu.OperationalError"),
    (_R, "MemoryError redis.OutOfMemoryError redis.MaxConnectionsError asyncpg.InsufficientResourcesError"),
    (_A, "PermissionError botocore.NoCredentialsError botocore.PartialCredentialsError jwt.InvalidTokenError"),
    (_A, "redis.NoPermissionError"),
    (_V, "ValueError json.JSONDecodeError msgspec.DecodeError pydantic.PydanticUserError binascii.Error struct.error"),
    (_V, "csv.Error zlib.error xml.ParseError yaml.YAMLError decimal.InvalidOperation botocore.ParamValidationError"),
    (_V, "requests.InvalidURL requests.MissingSchema requests.InvalidSchema requests.InvalidHeader httpx.InvalidURL"),
    (_V, "httpx.UnsupportedProtocol httpx2.UnsupportedProtocol httpx2.InvalidURL aiohttp.InvalidURL"),
    (_V, "urllib3.LocationValueError"),
)

# Errors with a response, although their base class is a connection error.
_ANSWERS = frozenset({"urllib.HTTPError"})

# Types for several kinds of errors, by package and class, or by class: codes and status take precedence.
_BY_BROAD_TYPE = _table(
    (_T, "sqlalchemy.OperationalError django.OperationalError InternalServerError RateLimitError"),
    (_N, "psycopg.OperationalError psycopg2.OperationalError urllib3.HTTPError"),
)

# Class names that have the same meaning in every package, other languages included.
_BY_CLASS_NAME = _table(
    (_T, "RateLimitExceeded RateLimited TooManyRequests TooManyRequestsError ThrottlingException"),
    (_T, "ServiceUnavailable ServiceUnavailableError ServerBusy OverloadedError"),
    (_T, "DeadlockDetected DeadlockDetectedError SerializationFailure SerializationError LockNotAvailable"),
    (_T, "TransientError TemporaryError"),
    (_N, "ConnectionError TimeoutError ConnectionTimeout"),
    (_N, "ConnectTimeout ReadTimeout WriteTimeout PoolTimeout Timeout TimeoutException ConnectError"),
    (_N, "ReadError WriteError NetworkError ProxyError SSLError APIConnectionError APITimeoutError DeadlineExceeded"),
    (_N, "ConnectionDoesNotExistError EndpointConnectionError ReadTimeoutError ConnectTimeoutError"),
    (_N, "SocketTimeoutException ConnectException UnknownHostException SocketException HttpTimeoutException"),
    (_R, "DiskFull DiskFullError OutOfMemory OutOfMemoryError TooManyConnections TooManyConnectionsError"),
    (_R, "QuotaExceeded QuotaExceededError ResourceExhausted InsufficientStorage"),
    (
        _A,
        "AuthenticationError AuthorizationError AuthenticationFailed PermissionDenied PermissionDeniedError Forbidden",
    ),
    (_A, "Unauthorized UnauthorizedError AccessDenied AccessDeniedException InsufficientPrivilege"),
    (_A, "InsufficientPrivilegeError InvalidPassword InvalidAuthorizationSpecification AuthError"),
    (_V, "ValidationError SchemaError BadRequest BadRequestError UnprocessableEntity UnprocessableEntityError"),
    (_V, "InvalidArgument IllegalArgumentException DataError IntegrityError InvalidInput JSONDecodeError"),
)

# Codes as in `codes_of`: errno, gRPC, SQLite, SMTP, SQLSTATE, Redis, AWS, openai and anthropic.
_BY_CODE = _table(
    (_R, "ENOSPC EDQUOT ENOMEM EMFILE ENFILE EFBIG"),
    (_T, "EAGAIN EINTR EBUSY ETXTBSY EDEADLK EDEADLOCK ENOLCK"),
    (_N, "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ETIMEDOUT EHOSTUNREACH EHOSTDOWN ENETUNREACH ENETDOWN"),
    (_N, "ENETRESET ENOTCONN EADDRNOTAVAIL"),
    (_A, "EACCES EPERM EROFS"),
    # gRPC, with the class of the equivalent HTTP status.
    (_T, "ABORTED CANCELLED INTERNAL UNAVAILABLE UNKNOWN"),
    (_N, "DEADLINE_EXCEEDED"),
    (_R, "RESOURCE_EXHAUSTED"),
    (_A, "PERMISSION_DENIED UNAUTHENTICATED"),
    (_V, "INVALID_ARGUMENT OUT_OF_RANGE"),
    (_P, "ALREADY_EXISTS DATA_LOSS FAILED_PRECONDITION NOT_FOUND UNIMPLEMENTED"),
    (_T, "SQLITE_BUSY SQLITE_LOCKED SQLITE_INTERRUPT SQLITE_PROTOCOL"),
    (_R, "SQLITE_FULL SQLITE_NOMEM SQLITE_IOERR"),
    (_A, "SQLITE_AUTH SQLITE_PERM SQLITE_READONLY"),
    (_V, "SQLITE_CONSTRAINT SQLITE_MISMATCH SQLITE_TOOBIG"),
    (_P, "SQLITE_CORRUPT SQLITE_NOTADB"),
    # Other SMTP codes: 4xx is transient, 5xx permanent.
    (_R, "SMTP_452 SMTP_552"),
    (_A, "SMTP_530 SMTP_534 SMTP_535 SMTP_538"),
    (_V, "SMTP_553"),
    # SQLSTATE: read-only, in use, query cancelled, server stopping or starting. Others by the first two characters.
    (_T, "25006 25P03 55006 55P03 57014 57P01 57P02 57P03"),
    (_A, "42501"),
    (_T, "BUSY CLUSTERDOWN LOADING MASTERDOWN READONLY TRYAGAIN"),
    (_R, "OOM"),
    (_A, "NOAUTH NOPERM WRONGPASS"),
    (_T, "Throttling ThrottlingException ThrottledException RequestThrottled RequestThrottledException SlowDown"),
    (_T, "TooManyRequestsException RequestLimitExceeded ProvisionedThroughputExceededException BandwidthLimitExceeded"),
    (_T, "EC2ThrottledException PriorRequestNotComplete TransactionInProgressException InternalError InternalFailure"),
    (_T, "InternalServerError ServiceUnavailable ServiceUnavailableException"),
    (_N, "RequestTimeout RequestTimeoutException"),
    (_R, "LimitExceededException QuotaExceededException ServiceQuotaExceededException"),
    (_A, "AccessDenied AccessDeniedException AuthFailure ExpiredToken ExpiredTokenException InvalidAccessKeyId"),
    (_A, "InvalidClientTokenId SignatureDoesNotMatch UnauthorizedOperation UnrecognizedClientException"),
    (_V, "InvalidParameterException InvalidParameterValue ValidationError ValidationException"),
    (_P, "ConditionalCheckFailedException NoSuchBucket NoSuchKey ResourceNotFoundException"),
    (_T, "api_error overloaded_error rate_limit_error rate_limit_exceeded server_error"),
    (_N, "timeout_error"),
    (_R, "billing_error billing_hard_limit_reached insufficient_quota"),
    (_A, "authentication_error invalid_api_key permission_error"),
    (_V, "context_length_exceeded invalid_request_error request_too_large"),
    (_P, "model_not_found not_found_error"),
)
_SQLSTATE = re.compile(r"\d[0-9A-Z]{4}")
_BY_SQLSTATE_CLASS = _table((_N, "08"), (_V, "22 23"), (_A, "28"), (_T, "40"), (_R, "53 58"), (_P, "42"))

# Codes not named here: other 5xx are transient, other 4xx permanent, anything else decides nothing.
_BY_STATUS = {
    code: error_class
    for error_class, codes in (
        (_T, (423, 425, 429)),
        (_N, (408, 504, 520, 521, 522, 523, 524, 525, 526, 527)),
        (_R, (507, 509)),
        (_A, (401, 403, 407, 511)),
        (_V, (400, 405, 406, 411, 413, 414, 415, 416, 417, 422, 431)),
        (_P, (501, 505, 506, 508, 510)),
    )
    for code in codes
}

# If words or codes have several classes, the first of these applies: retryable classes take precedence.
_TEXT_ORDER = (_T, _N, _R, _A, _V)
_TEXT_PHRASES = (
    "rate limit, rate limited, ratelimit, too many requests, throttled, throttling, throttlingexception, slow down, "
    "temporarily, temporary failure, try again, retry later, service unavailable, server is busy, is busy, busy, "
    "overloaded, database is locked, deadlock, could not serialize, lock timeout, bad gateway",
    "timeout, timed out, time out, time-out, connection refused, connection reset, connection aborted, "
    "connection closed, connection error, connection lost, broken pipe, unreachable, network, dns, "
    "name or service not known, name resolution, getaddrinfo, ssl, tls, certificate, handshake, eof, econnrefused, "
    "econnreset, etimedout, gateway timeout, no route to host",
    "out of memory, cannot allocate memory, no space left, disk full, disk is full, disk quota, quota exceeded, "
    "quota, oom, too many open files, too many connections, insufficient storage, resource exhausted",
    "permission denied, access denied, accessdenied, accessdeniedexception, unauthorized, unauthorised, "
    "not authorized, not authorised, forbidden, authentication failed, invalid credentials, invalid token, "
    "expired token, not permitted, insufficient privilege",
    "invalid, malformed, validation, not valid, bad request, unprocessable, could not parse, cannot parse, "
    "parse error, syntax error, unexpected token, schema, missing required, must be, out of range",
)


def _by_opener() -> dict[str, list[tuple[str, int]]]:
    phrases: dict[str, list[tuple[str, int]]] = {}
    for rank, row in enumerate(_TEXT_PHRASES):
        for phrase in row.split(","):
            words = tokenize(phrase)
            phrases.setdefault(words[0], []).append((_spaced(words), rank))
    return phrases


_PHRASES = _by_opener()
