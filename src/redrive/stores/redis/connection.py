"""One connection to one Redis server, and the meaning of the server's errors.

For each request it is known whether it was sent and whether it was answered.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Any

import redis.exceptions as rs
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from redrive.errors import InvalidInput
from redrive.model.url import ENCODED, redact_url
from redrive.stores.interruption import interruption


class ErrorEffect(Enum):
    """The effect of a script that was answered with an error."""

    RETRY = auto()
    """It did not run, or stopped before its first write, and may succeed soon."""
    REFUSED = auto()
    """It did not run, or stopped before its first write, and fails again until an operator acts."""
    UNKNOWN = auto()
    """It may have stopped between two writes."""


_MEMORY = "remove items, raise maxmemory, or send dead letters to a dead queue in another store"
_MEANINGS = {
    "NOSCRIPT": (
        ErrorEffect.RETRY,
        "it forgets scripts as soon as they are loaded; check which client runs SCRIPT FLUSH",
    ),
    "READONLY": (ErrorEffect.RETRY, "this server is a replica; connect to the primary"),
    "MASTERDOWN": (ErrorEffect.RETRY, "this server is a replica that lost its primary; connect to the primary"),
    "CLUSTERDOWN": (
        ErrorEffect.RETRY,
        "the cluster is down ({text}); see CLUSTER INFO, and restore the lost servers",
    ),
    "TRYAGAIN": (ErrorEffect.RETRY, "the cluster is moving these keys to another server; try again when that is done"),
    "BUSY": (ErrorEffect.RETRY, "a script runs there that does not end; wait, or end it with SCRIPT KILL"),
    "NOREPLICAS": (ErrorEffect.RETRY, "fewer replicas are there than its min-replicas-to-write asks for"),
    "OOM": (ErrorEffect.REFUSED, f"its memory is full, nothing was changed; {_MEMORY}"),
    "MISCONF": (ErrorEffect.REFUSED, "it cannot write to its disk ({text}); see its log, and free space"),
    "NOPERM": (ErrorEffect.REFUSED, "{text}; grant this user the rights that the guide to Redis lists"),
    "CROSSSLOT": (ErrorEffect.REFUSED, "{text}; this is a bug in Redrive"),
}
_BEFORE_THE_FIRST_WRITE = ("READONLY", "MISCONF", "NOREPLICAS", "OOM")
"""Errors that a server raises within a script too, and only before its first write."""
_WITHIN = re.compile(rf"@user_script: ?\d+: -?({'|'.join(_BEFORE_THE_FIRST_WRITE)}) ")
"""Such an error in Redis 6. Newer servers raise it as outside of a script, and name the script at the end."""
_REDIRECTION = re.compile(r"(MOVED|ASK) \d+ (.*):(\d+)")
_CODES: dict[type[rs.ResponseError], str] = {
    rs.NoScriptError: "NOSCRIPT",
    rs.ReadOnlyError: "READONLY",
    rs.MasterDownError: "MASTERDOWN",
    rs.ClusterDownError: "CLUSTERDOWN",
    rs.TryAgainError: "TRYAGAIN",
    rs.OutOfMemoryError: "OOM",
    rs.NoPermissionError: "NOPERM",
    rs.ClusterCrossSlotError: "CROSSSLOT",
}
"""Codes that the driver has removed from the text."""


def classify_error(error: rs.ResponseError) -> tuple[ErrorEffect, str]:
    """Return what an error means for the script, and the problem as a text."""
    text = str(error).strip().partition("\n")[0]
    code = _CODES.get(type(error)) or text.partition(" ")[0]
    if within := _WITHIN.search(text):
        code = within[1]
    elif "script:" in text and code not in _BEFORE_THE_FIRST_WRITE:
        return ErrorEffect.UNKNOWN, text
    known, words = _MEANINGS.get(code, (ErrorEffect.UNKNOWN, "{text}"))
    return known, words.replace("{text}", text)


def redirection(error: rs.ResponseError) -> tuple[str, int, bool] | None:
    """Return the target of a redirect: host (empty: the same host), port, and whether it is for one request only."""
    code = "MOVED" if isinstance(error, rs.MovedError) else "ASK" if isinstance(error, rs.AskError) else ""
    found = _REDIRECTION.fullmatch(f"{code} {error}".strip())
    return None if found is None else (found[2], int(found[3]), found[1] == "ASK")


Address = tuple[str, int]
Command = tuple[Any, ...]

CONNECT_TIMEOUT_SECONDS = 5.0
ANSWER_TIMEOUT_SECONDS = 30.0
"""Maximum wait for an answer. A script takes milliseconds, a sync of the log at most some seconds."""
IDLE_SECONDS = 5.0
"""A connection that was idle for this long is checked by PING before a request that must not be sent twice, because
networks drop idle connections silently."""
CLIENT_NAME = "redrive"
"""The name of our connections in `CLIENT LIST`."""
_LOADING = "it is loading its data; try again in a moment"

_SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "unix": "unix",
    "redis+cluster": "redis",
    "rediss+cluster": "rediss",
    "valkey+cluster": "redis",
    "valkeys+cluster": "rediss",
}
"""Schemes of URLs, and the driver's names of them. `+cluster` finds the other servers of a cluster."""


class NotSent(Exception):
    """The request did not run: there is no connection, it was not sent completely, or the server refused it."""


class ConnectionLost(Exception):
    """The request was sent and not answered: it ran or it did not."""

    def __init__(self, problem: str, *, gave_up: bool) -> None:
        super().__init__(problem)
        self.gave_up = gave_up
        """True if it timed out. A retry would take as long again."""


def connection_options(url: str) -> dict[str, Any]:
    """Return the options of the driver for a URL. Those after `?` are passed on."""
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in _SCHEMES:
        raise InvalidInput(f"{redact_url(url)!r} has no scheme of Redis; there are {', '.join(_SCHEMES)}")
    try:
        given: dict[str, Any] = parse_url(f"{_SCHEMES[scheme]}://{rest}")  # type: ignore[no-untyped-call] # driver
    except (ValueError, rs.RedisError):  # its text quotes the assumed port
        raise InvalidInput(f"{redact_url(url)!r} cannot be read as a URL of Redis; {ENCODED}") from None
    timeouts = {"socket_connect_timeout": CONNECT_TIMEOUT_SECONDS, "socket_timeout": ANSWER_TIMEOUT_SECONDS}
    # The driver must never send anything twice, nor decode answers.
    ours = {
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "health_check_interval": 0,
        "decode_responses": False,
        "client_name": CLIENT_NAME,
        "protocol": 2,
    }
    keepalive = {"socket_keepalive": True} if "path" not in given else {}
    return {**timeouts, **keepalive, **given, **ours}


def is_cluster_url(url: str) -> bool:
    """Return whether a URL names a cluster."""
    return url.partition("://")[0].endswith("+cluster")


def display_url(url: str, given: Mapping[str, Any]) -> str:
    """Return the URL without its password, for errors."""
    scheme = url.partition("://")[0]
    if "path" in given:
        return f"{scheme}://{given['path']}"
    return f"{scheme}://{given.get('host', 'localhost')}:{given.get('port', 6379)}/{given.get('db', 0)}"


_OWN = (rs.RedisError, NotSent, ConnectionLost)
"""Errors of the driver and of this module. All others come from signal handlers."""


class RedisConnection:
    """An open connection, for one thread at a time.

    An exception of a signal handler passes through. The connection cannot be used after it, because an answer may still
    arrive.
    """

    def __init__(self, given: Mapping[str, Any], address: Address | None = None) -> None:
        wanted = dict(given)
        if address is not None:
            wanted["host"], wanted["port"] = address
        make = wanted.pop("connection_class", None) or _plain()
        self.address = address
        try:
            self._driver = make(**wanted)
        except TypeError as error:  # the error names the option, which may be a part of a password
            found = re.search(r"'([a-z_]+)'$", str(error))
            named = found[1] if found else "…"
            raise InvalidInput(f"the URL of Redis has an option that the driver does not know: {named}") from None
        self._used_at = 0.0
        self._closed = False
        self._in_order = True
        """True if every request was answered."""
        with self._interruptible():
            self._open()

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Raise the exception of a signal handler. The driver treats its TimeoutError or OSError as its own."""
        before = sys.exception()
        self._in_order = False
        try:
            yield
        except BaseException as error:
            interrupted = interruption(error, before, _OWN)
            if interrupted is None:
                raise
            self.close()
            raise interrupted from None
        self._in_order = True

    def _open(self) -> None:
        try:
            self._driver.connect()
        except rs.AuthenticationError as error:
            raise NotSent(_login_refused(error)) from error
        except rs.BusyLoadingError as error:
            raise NotSent(_LOADING) from error
        except rs.ResponseError as refusal:
            raise NotSent(classify_error(refusal)[1]) from refusal
        except rs.RedisError as error:
            raise NotSent(_text(error)) from error
        self._used_at = time.monotonic()

    def request(self, *commands: Command) -> list[Any]:
        """Send all commands together, and return the answer to each: a value or a `ResponseError`.

        Raises `NotSent` or `ConnectionLost`, and closes the connection.
        """
        with self._interruptible():
            try:
                self._send(*commands)
            except NotSent as unsent:
                if len(commands) > 1:  # the first of them may have been sent completely
                    raise ConnectionLost(str(unsent), gave_up=isinstance(unsent.__cause__, rs.TimeoutError)) from unsent
                raise
            answers = [self._answer() for _ in commands]
            self._used_at = time.monotonic()
        return answers

    def send(self, *command: Any) -> None:
        """Send a command whose answer `receive` returns. Raises `NotSent`, and closes the connection."""
        with self._interruptible():
            self._send(command)

    def _send(self, *commands: Command) -> None:
        if self._closed:  # the driver would connect again
            raise NotSent("the connection is closed")
        try:
            self._driver.send_packed_command(self._driver.pack_commands(commands), check_health=False)
        except rs.RedisError as error:
            self.close()
            raise NotSent(_text(error)) from error

    def _answer(self) -> Any:
        try:
            return self._driver.read_response()
        except rs.ResponseError as refusal:
            return refusal
        except rs.BusyLoadingError as error:  # an answer, which the driver treats as a lost connection
            self.close()
            raise NotSent(_LOADING) from error
        except rs.AuthenticationError as error:
            self.close()
            raise NotSent(_login_refused(error)) from error
        except rs.TimeoutError as error:
            self.close()
            raise ConnectionLost(f"no answer within {self._driver.socket_timeout:g} seconds", gave_up=True) from error
        except rs.RedisError as error:
            self.close()
            raise ConnectionLost(_text(error), gave_up=False) from error

    def is_alive(self) -> bool:
        """Return whether the connection is usable, as far as this can be known before a request."""
        if self._closed or not self._in_order:
            return False
        try:
            with self._interruptible():
                has_input = self._driver.can_read(0)  # the server closed it
            if not has_input and time.monotonic() - self._used_at > IDLE_SECONDS:
                self.request(("PING",))
        except _OWN:
            return False
        return not has_input

    def receive(self) -> list[Any]:
        """Return what the server has sent, without waiting. Raises `ConnectionLost`, and closes the connection."""
        found = []
        if self._closed or not self._in_order:
            raise ConnectionLost("the connection is closed", gave_up=False)
        with self._interruptible():
            try:
                while self._driver.can_read(0):
                    found.append(self._answer())
            except rs.RedisError as error:
                self.close()
                raise ConnectionLost(_text(error), gave_up=False) from error
        return found

    def fileno(self) -> int:
        """Return the file descriptor of the socket."""
        # The driver has no public access to it.
        number: int = self._driver._sock.fileno()
        return number

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._closed = True
        self._driver.disconnect()

    def detach_after_fork(self) -> None:
        """Detach the socket in a forked child, so that nothing it does reaches the server."""
        # The driver has no public access to the socket.
        found = self._driver._sock
        if found is not None:
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, found.fileno())
                os.close(nowhere)


def _plain() -> Any:
    from redis.connection import Connection

    return Connection


def _login_refused(error: BaseException) -> str:
    return f"it refuses the login ({_text(error)}); correct user and password in the URL"


def _text(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
