"""One connection to one server, of which is known what left and what was answered."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import redis.exceptions as rs
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from redrive.errors import InvalidInput
from redrive.model.url import ENCODED, redact_url
from redrive.stores.interruption import interruption
from redrive.stores.redis.refusals import meaning

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


class Unsent(Exception):
    """The server cannot have run it: there is no connection, or it did not leave whole, or the server said so."""


class Lost(Exception):
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


_OWN = (rs.RedisError, Unsent, Lost)
"""Errors of the driver and of a link; anything else comes from outside."""


class Link:
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
            raise Unsent(_not_let_in(error)) from error
        except rs.BusyLoadingError as error:
            raise Unsent(_LOADING) from error
        except rs.ResponseError as refusal:
            raise Unsent(meaning(refusal)[1]) from refusal
        except rs.RedisError as error:
            raise Unsent(_text(error)) from error
        self._used_at = time.monotonic()

    def ask(self, *commands: Command) -> list[Any]:
        """Send all of them at once, then read an answer to each: a value, or a `ResponseError`.

        Raises `Unsent` or `Lost`; the connection is closed then.
        """
        with self._interruptible():
            try:
                self._send(*commands)
            except Unsent as unsent:
                if len(commands) > 1:  # the first of them may have left whole
                    raise Lost(str(unsent), gave_up=isinstance(unsent.__cause__, rs.TimeoutError)) from unsent
                raise
            answers = [self._answer() for _ in commands]
            self._used_at = time.monotonic()
        return answers

    def say(self, *command: Any) -> None:
        """Send something whose answer is heard later. Raises `Unsent`; the connection is closed then."""
        with self._interruptible():
            self._send(command)

    def _send(self, *commands: Command) -> None:
        if self._closed:  # the driver would connect anew
            raise Unsent("the connection is closed")
        try:
            self._wire.send_packed_command(self._wire.pack_commands(commands), check_health=False)
        except rs.RedisError as error:
            self.close()
            raise Unsent(_text(error)) from error

    def _answer(self) -> Any:
        try:
            return self._wire.read_response()
        except rs.ResponseError as refusal:
            return refusal
        except rs.BusyLoadingError as error:  # an answer, although the driver takes it for a lost connection
            self.close()
            raise Unsent(_LOADING) from error
        except rs.AuthenticationError as error:
            self.close()
            raise Unsent(_not_let_in(error)) from error
        except rs.TimeoutError as error:
            self.close()
            raise Lost(f"no answer within {self._wire.socket_timeout:g} seconds", gave_up=True) from error
        except rs.RedisError as error:
            self.close()
            raise Lost(_text(error), gave_up=False) from error

    def is_alive(self) -> bool:
        """Whether something can be sent, as far as can be known before it is."""
        if self._closed or not self._in_order:
            return False
        try:
            with self._interruptible():
                unasked = self._wire.can_read(0)  # a goodbye
            if not unasked and time.monotonic() - self._used_at > IDLE_SECONDS:
                self.ask(("PING",))
        except _OWN:
            return False
        return not unasked

    def heard(self) -> list[Any]:
        """What the server said unasked, without waiting. Raises `Lost`; the connection is closed then."""
        found = []
        if self._closed or not self._in_order:
            raise Lost("the connection is closed", gave_up=False)
        with self._interruptible():
            try:
                while self._wire.can_read(0):
                    found.append(self._answer())
            except rs.RedisError as error:
                self.close()
                raise Lost(_text(error), gave_up=False) from error
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

    def leave_to_the_parent(self) -> None:
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
