"""One connection to one Redis server, and what the errors of the server mean.

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
    """What is known of a script that was answered with an error."""

    RETRY = auto()
    """It did not run, or stopped before its first write, and may run in a moment."""
    REFUSED = auto()
    """The same, and it will not run until somebody does something."""
    UNKNOWN = auto()
    """It may have stopped half way."""


_MEMORY = "remove items, raise maxmemory, or send dead letters to a dead queue in another store"
_MEANINGS = {
    "NOSCRIPT": (
        ErrorEffect.RETRY,
        "it forgets scripts as soon as it is told them; somebody runs SCRIPT FLUSH in a loop",
    ),
    "READONLY": (ErrorEffect.RETRY, "this server is a replica; connect to the primary"),
    "MASTERDOWN": (ErrorEffect.RETRY, "this server is a replica that lost its primary; connect to the primary"),
    "CLUSTERDOWN": (
        ErrorEffect.RETRY,
        "the cluster is down ({text}); see CLUSTER INFO, and bring the lost servers back",
    ),
    "TRYAGAIN": (ErrorEffect.RETRY, "the cluster is moving these keys to another server; try again when that is done"),
    "BUSY": (ErrorEffect.RETRY, "a script runs there that does not end; wait, or end it with SCRIPT KILL"),
    "NOREPLICAS": (ErrorEffect.RETRY, "fewer replicas are there than its min-replicas-to-write asks for"),
    "OOM": (ErrorEffect.REFUSED, f"its memory is full, nothing was changed; {_MEMORY}"),
    "MISCONF": (ErrorEffect.REFUSED, "it cannot write to its disk ({text}); see its log, and free space"),
    "NOPERM": (ErrorEffect.REFUSED, "{text}; grant this user the rights that the guide to Redis lists"),
    "CROSSSLOT": (ErrorEffect.REFUSED, "{text}; this is a mistake in Redrive"),
}
_BEFORE_THE_FIRST_WRITE = ("READONLY", "MISCONF", "NOREPLICAS", "OOM")
"""What the server says within a script too: before its first write, and not again."""
_WITHIN = re.compile(rf"@user_script: ?\d+: -?({'|'.join(_BEFORE_THE_FIRST_WRITE)}) ")
"""How Redis 6 says it. Newer servers say it as outside a script, and name the script at the end."""
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
"""Codes that the driver has taken from the text."""


def meaning(error: rs.ResponseError) -> tuple[ErrorEffect, str]:
    """What the answer says of the script, and the problem in words."""
    text = str(error).strip().partition("\n")[0]
    code = _CODES.get(type(error)) or text.partition(" ")[0]
    if within := _WITHIN.search(text):
        code = within[1]
    elif "script:" in text and code not in _BEFORE_THE_FIRST_WRITE:
        return ErrorEffect.UNKNOWN, text
    known, words = _MEANINGS.get(code, (ErrorEffect.UNKNOWN, "{text}"))
    return known, words.replace("{text}", text)


def redirection(error: rs.ResponseError) -> tuple[str, int, bool] | None:
    """Where a cluster sends us: host (empty for the one that was asked), port, and whether for this once only."""
    code = "MOVED" if isinstance(error, rs.MovedError) else "ASK" if isinstance(error, rs.AskError) else ""
    found = _REDIRECTION.fullmatch(f"{code} {error}".strip())
    return None if found is None else (found[2], int(found[3]), found[1] == "ASK")


Address = tuple[str, int]
Command = tuple[Any, ...]

CONNECT_TIMEOUT_SECONDS = 5.0
ANSWER_TIMEOUT_SECONDS = 30.0
"""How long an answer is waited for. A script takes milliseconds, a sync of the log at most some seconds."""
IDLE_SECONDS = 5.0
"""A connection that was idle for so long is asked whether it still is one before something is sent that is not to be
sent twice: a network forgets connections and tells nobody."""
CLIENT_NAME = "redrive"
"""How `CLIENT LIST` on the server names our connections."""
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
"""Schemes of URLs, and what the driver calls them. With `+cluster` the servers find each other."""


class NotSent(Exception):
    """The server cannot have run it: there is no connection, or it did not leave whole, or the server said so."""


class ConnectionLost(Exception):
    """It left, and no answer came: the server ran it, or it did not."""

    def __init__(self, problem: str, *, gave_up: bool) -> None:
        super().__init__(problem)
        self.gave_up = gave_up
        """Whether no answer came for so long that to ask again would take as long again."""


def options(url: str) -> dict[str, Any]:
    """What the driver needs to connect. What stands behind `?` is for the driver."""
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in _SCHEMES:
        raise InvalidInput(f"{redact_url(url)!r} has no scheme of Redis; there are {', '.join(_SCHEMES)}")
    try:
        given: dict[str, Any] = parse_url(f"{_SCHEMES[scheme]}://{rest}")  # type: ignore[no-untyped-call] # the driver's
    except (ValueError, rs.RedisError):  # whose text quotes what it takes for a port
        raise InvalidInput(f"{redact_url(url)!r} cannot be read as a URL of Redis; {ENCODED}") from None
    timeouts = {"socket_connect_timeout": CONNECT_TIMEOUT_SECONDS, "socket_timeout": ANSWER_TIMEOUT_SECONDS}
    # The driver must never send anything twice, nor decode what is ours.
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


def in_cluster(url: str) -> bool:
    """Whether the URL names a cluster."""
    return url.partition("://")[0].endswith("+cluster")


def shown(url: str, given: Mapping[str, Any]) -> str:
    """The server without its password, for errors."""
    scheme = url.partition("://")[0]
    if "path" in given:
        return f"{scheme}://{given['path']}"
    return f"{scheme}://{given.get('host', 'localhost')}:{given.get('port', 6379)}/{given.get('db', 0)}"


_OWN = (rs.RedisError, NotSent, ConnectionLost)
"""Errors of the driver and of a link; anything else comes from outside."""


class RedisConnection:
    """A connection that is open from its making until `close`. For one thread at a time.

    What is raised from outside comes out as itself, and the connection is of no more use then: an answer may be on its
    way that nobody asked for.
    """

    def __init__(self, given: Mapping[str, Any], address: Address | None = None) -> None:
        wanted = dict(given)
        if address is not None:
            wanted["host"], wanted["port"] = address
        make = wanted.pop("connection_class", None) or _plain()
        self.address = address
        try:
            self._wire = make(**wanted)
        except TypeError as error:  # which names the option; a part of a password may have been taken for one
            found = re.search(r"'([a-z_]+)'$", str(error))
            named = found[1] if found else "…"
            raise InvalidInput(f"the URL of Redis has an option that the driver does not know: {named}") from None
        self._used_at = 0.0
        self._closed = False
        self._in_order = True
        """Whether every answer was read to what was asked."""
        with self._interruptible():
            self._open()

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The driver takes what a signal handler raises for its own, where it is a TimeoutError or an OSError."""
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
            self._wire.connect()
        except rs.AuthenticationError as error:
            raise NotSent(_not_let_in(error)) from error
        except rs.BusyLoadingError as error:
            raise NotSent(_LOADING) from error
        except rs.ResponseError as refusal:
            raise NotSent(meaning(refusal)[1]) from refusal
        except rs.RedisError as error:
            raise NotSent(_text(error)) from error
        self._used_at = time.monotonic()

    def request(self, *commands: Command) -> list[Any]:
        """Send all of them at once, then read an answer to each: a value, or a `ResponseError`.

        Raises `NotSent` or `Lost`; the connection is closed then.
        """
        with self._interruptible():
            try:
                self._send(*commands)
            except NotSent as unsent:
                if len(commands) > 1:  # the first of them may have left whole
                    raise ConnectionLost(str(unsent), gave_up=isinstance(unsent.__cause__, rs.TimeoutError)) from unsent
                raise
            answers = [self._answer() for _ in commands]
            self._used_at = time.monotonic()
        return answers

    def send(self, *command: Any) -> None:
        """Send something whose answer is heard later. Raises `NotSent`; the connection is closed then."""
        with self._interruptible():
            self._send(command)

    def _send(self, *commands: Command) -> None:
        if self._closed:  # the driver would connect anew
            raise NotSent("the connection is closed")
        try:
            self._wire.send_packed_command(self._wire.pack_commands(commands), check_health=False)
        except rs.RedisError as error:
            self.close()
            raise NotSent(_text(error)) from error

    def _answer(self) -> Any:
        try:
            return self._wire.read_response()
        except rs.ResponseError as refusal:
            return refusal
        except rs.BusyLoadingError as error:  # an answer, although the driver takes it for a lost connection
            self.close()
            raise NotSent(_LOADING) from error
        except rs.AuthenticationError as error:
            self.close()
            raise NotSent(_not_let_in(error)) from error
        except rs.TimeoutError as error:
            self.close()
            raise ConnectionLost(f"no answer within {self._wire.socket_timeout:g} seconds", gave_up=True) from error
        except rs.RedisError as error:
            self.close()
            raise ConnectionLost(_text(error), gave_up=False) from error

    def is_alive(self) -> bool:
        """Whether something can be sent, as far as can be known before it is."""
        if self._closed or not self._in_order:
            return False
        try:
            with self._interruptible():
                unasked = self._wire.can_read(0)  # a goodbye
            if not unasked and time.monotonic() - self._used_at > IDLE_SECONDS:
                self.request(("PING",))
        except _OWN:
            return False
        return not unasked

    def receive(self) -> list[Any]:
        """What the server said unasked, without waiting. Raises `Lost`; the connection is closed then."""
        found = []
        if self._closed or not self._in_order:
            raise ConnectionLost("the connection is closed", gave_up=False)
        with self._interruptible():
            try:
                while self._wire.can_read(0):
                    found.append(self._answer())
            except rs.RedisError as error:
                self.close()
                raise ConnectionLost(_text(error), gave_up=False) from error
        return found

    def fileno(self) -> int:
        """The number of its socket."""
        # The driver has no other way to it.
        number: int = self._wire._sock.fileno()
        return number

    def close(self) -> None:
        """Twice is no error."""
        self._closed = True
        self._wire.disconnect()

    def detach_after_fork(self) -> None:
        """After a fork, in the child: nothing that happens here may reach the server."""
        # The driver has no other way to the socket.
        found = self._wire._sock
        if found is not None:
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, found.fileno())
                os.close(nowhere)


def _plain() -> Any:
    from redis.connection import Connection

    return Connection


def _not_let_in(error: BaseException) -> str:
    return f"it does not let us in ({_text(error)}); correct user and password in the URL"


def _text(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
