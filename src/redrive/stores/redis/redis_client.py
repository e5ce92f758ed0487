"""Scripts on Redis and Valkey, run once or not at all: lost connections, clusters, replicas, and forks.

No write is sent twice. A request that was not sent completely, or that the server refused before it ran, is retried for
a short time. A write that was sent and not answered is `OutcomeUnknown`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis.exceptions as rs
from redis.crc import key_slot

from redrive.errors import Closed, OutcomeUnknown, StoreFailed, StoreUnavailable
from redrive.store import Durability
from redrive.stores.connection_slots import Slots
from redrive.stores.redis.cluster_slots import Cluster
from redrive.stores.redis.connection import (
    Address,
    Command,
    ConnectionLost,
    ErrorEffect,
    NotSent,
    RedisConnection,
    classify_error,
    connection_options,
    display_url,
    is_cluster_url,
    redirection,
)
from redrive.stores.redis.scripts import Script
from redrive.stores.redis.server_info import (
    Memory,
    RedisServerInfo,
    check,
    check_version,
    describe_durability,
    memory,
    read_server_info,
)

MAX_CONNECTIONS = 8
"""Maximum number of open connections for scripts."""
SLOT_TIMEOUT_SECONDS = 30.0
"""Maximum wait of a call for one of these connections."""
RETRY_SECONDS = 1.0
"""Time during which a request that did not run is retried."""
PAUSE_SECONDS = 0.02
"""Interval between two attempts."""
MAX_REDIRECTS = 5
"""Maximum number of redirects of one call in a cluster."""
REPLICA_SECONDS = 1.0
"""Maximum wait of a write for the acknowledgement of replicas."""

Part = bytes | str | int | float
_Request = Callable[[RedisConnection, Sequence[Command]], Any]
"""A function of a connection and the commands to send there first."""

_never_collected: list[object] = []
"""Connections of a parent process, kept so that the child never closes them."""
_open_clients: weakref.WeakSet[RedisClient] = weakref.WeakSet()


class _Moved(Exception):
    """Another server has the slot: permanently, or (`once`) for this key while the slot moves. Nothing ran."""

    def __init__(self, to: Address, *, once: bool) -> None:
        super().__init__(f"the cluster sends us to {to[0]}:{to[1]} again and again; see CLUSTER SLOTS")
        self.to = to
        self.once = once


class RedisClient:
    """A server or a cluster, for any thread. Connections are opened on demand.

    Each new connection checks its server, and raises `StoreUnavailable` unless the server is as durable as required.
    """

    def __init__(self, url: str, *, relaxed: bool = False, wait_replicas: int = 0) -> None:
        self._options = connection_options(url)
        self.name = display_url(url, self._options)
        self.relaxed = relaxed
        self.wait_replicas = wait_replicas
        self._clustered = is_cluster_url(url)
        self._server_info: RedisServerInfo | None = None
        self._last_slot: int | None = None if self._clustered else 0
        self._open()

    def _open(self) -> None:
        self._closed = False
        self.is_inherited = False
        """True in a forked child before `reopen`: all connections belong to the parent."""
        first = (self._options.get("host", "localhost"), self._options.get("port", 6379))
        self._cluster = Cluster(first, self._connect) if self._clustered else None
        self._connections: weakref.WeakSet[RedisConnection] = weakref.WeakSet()
        self._idle: list[RedisConnection] = []
        self._mutex = threading.Lock()
        self._connection_slots = Slots(MAX_CONNECTIONS)
        self._presence: RedisConnection | None = None
        self._client_id: str | None = None
        self._presence_mutex = threading.Lock()
        self._end = threading.Event()
        _open_clients.add(self)

    def run(self, script: Script, keys: Sequence[bytes | str], args: Sequence[Part]) -> Any:
        """Run a script that only reads. If its connection is lost, retry on another."""

        def evaluate(connection: RedisConnection, asking: Sequence[Command]) -> Any:
            return self._evaluate(connection, script, keys, args, asking)

        return self._with_retries(keys[0], evaluate)

    def run_write(self, script: Script, keys: Sequence[bytes | str], args: Sequence[Part]) -> Any:
        """Run a script that writes, once or not at all. When this returns, the write is as durable as required.

        `StoreUnavailable`: it did not run. `OutcomeUnknown`: it ran or it did not, fewer than `wait_replicas` replicas
        have it, or it stopped at an error.
        """

        def evaluate(connection: RedisConnection, asking: Sequence[Command]) -> Any:
            return self._evaluate(connection, script, keys, args, asking, writes=True)

        return self._with_retries(keys[0], evaluate, writes=True)

    def request(self, *command: Part) -> Any:
        """Send one command that changes nothing, and return its answer. In a cluster it goes to the server of the last
        script."""

        def send(connection: RedisConnection, asking: Sequence[Command]) -> Any:
            return self._checked_answer(connection.request(*asking, command)[-1], writes=False)

        return self._with_retries(None, send)

    def dial(self) -> RedisConnection:
        """Return a connection for notifications, to any server of the cluster. The caller closes it."""
        if self._closed:
            raise Closed
        try:
            return self._connect(self._address())
        except NotSent as problem:
            raise StoreUnavailable(self.name, str(problem)) from problem

    def client_id(self) -> str | None:
        """Return the id of a connection that stays open while this process lives; None if it is not known."""
        if self._closed:
            raise Closed
        if self._last_slot is None:  # the server of the namespace is not yet known
            return None
        with self._presence_mutex:
            try:
                address = self._address()
                if self._presence is None or self._presence.address != address or not self._presence.is_alive():
                    self._close_presence()
                    presence = self._connect(address)
                    (answer,) = presence.request(("CLIENT", "ID"))
                    self._presence = presence
                    self._client_id = None if isinstance(answer, rs.ResponseError) else str(answer)
            except (NotSent, ConnectionLost):
                self._close_presence()
            return self._client_id

    def has_client(self, client: str) -> bool:
        """Return False if the server reports that no connection has this id; True if one has, or if unknown."""
        try:
            return bool(self.request("CLIENT", "LIST", "ID", client))
        except StoreFailed:
            return True

    def durability(self) -> Durability:
        """Return the durability of acknowledged calls, by the settings of the server at the last connection."""
        if self._server_info is None:
            self.request("PING")
        assert self._server_info is not None
        return describe_durability(self._server_info, self.wait_replicas)

    def memory(self) -> Memory:
        """Return the memory usage of the server."""
        found: Memory = self._with_retries(None, lambda connection, _: memory(connection))
        return found

    def close(self) -> None:
        """Close all idle connections. Those in use are closed after their request. Idempotent."""
        if self.is_inherited:
            return
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        self._end.set()
        for connection in idle:
            connection.close()
        with self._presence_mutex:
            self._close_presence()
        _open_clients.discard(self)

    def reopen(self) -> None:
        """Reset to no connections in a forked child."""
        self._open()

    def detach_after_fork(self) -> None:
        """Detach all connections in a forked child: nothing done to them here may reach the server."""
        connections = tuple(self._connections)
        for connection in connections:
            connection.detach_after_fork()
        _never_collected.extend(connections)
        self.is_inherited = True
        self._closed, self._idle = True, []
        _open_clients.discard(self)

    def _with_retries(self, key: bytes | str | None, request: _Request, *, writes: bool = False) -> Any:
        """Send a request until it ran or may have run, or until the time for retries has passed."""
        if self._closed:
            raise Closed
        end = time.monotonic() + RETRY_SECONDS
        slot = self._slot(key)
        to: _Moved | None = None
        redirects = 0
        while True:
            try:
                with self._borrowed(slot, to) as connection:
                    return request(connection, [("ASKING",)] if to is not None and to.once else [])
            except _Moved as moved:
                to = moved
                redirects += 1
                problem: Exception = moved
                if not moved.once and self._cluster is not None:
                    self._cluster.moved(slot, moved.to)
                if redirects <= MAX_REDIRECTS:
                    continue
            except NotSent as unsent:
                to, problem = None, unsent
                self._drop_idle(slot)
            except ConnectionLost as lost:
                to, problem = None, lost
                if writes:
                    raise OutcomeUnknown(self.name, str(lost)) from lost
                if lost.gave_up:
                    raise StoreUnavailable(self.name, str(lost)) from lost
                self._drop_idle(slot)
            if time.monotonic() > end or self._end.wait(PAUSE_SECONDS):
                raise StoreUnavailable(self.name, str(problem)) from problem

    def _slot(self, key: bytes | str | None) -> int:
        if self._cluster is not None and key is not None:
            self._last_slot = key_slot(key.encode() if isinstance(key, str) else key)
        return self._last_slot or 0

    def _address(self) -> Address | None:
        """Return the server of the last script. Raises `NotSent` if no server of the cluster answers."""
        return None if self._cluster is None else self._cluster.owner(self._last_slot or 0)

    def _close_presence(self) -> None:
        presence, self._presence, self._client_id = self._presence, None, None
        if presence is not None:
            presence.close()

    def _drop_idle(self, slot: int) -> None:
        """Close idle connections and forget the owner of the slot: the server may have been replaced."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        if self._cluster is not None:
            self._cluster.forget(slot)

    def _evaluate(
        self,
        connection: RedisConnection,
        script: Script,
        keys: Sequence[bytes | str],
        args: Sequence[Part],
        asking: Sequence[Command],
        *,
        writes: bool = False,
    ) -> Any:
        """Run a script by EVALSHA. A server that does not know it has not run it, and receives it by SCRIPT LOAD."""
        request: list[Command] = [*asking, ("EVALSHA", script.sha, len(keys), *keys, *args)]
        if waits := writes and self.wait_replicas > 0:
            request.append(("WAIT", self.wait_replicas, int(REPLICA_SECONDS * 1000)))
        answers = connection.request(*request)
        if isinstance(answers[len(asking)], rs.NoScriptError):
            self._load(connection, script)
            answers = connection.request(*request)
        answer = self._checked_answer(answers[len(asking)], writes=writes)
        if waits:
            self._check_replicas(answers[-1])
        return answer

    def _load(self, connection: RedisConnection, script: Script) -> None:
        """Load a script. Nothing ran yet: a connection that breaks here breaks before the script was sent."""
        try:
            (answer,) = connection.request(("SCRIPT", "LOAD", script.source))
        except ConnectionLost as lost:
            raise NotSent(str(lost)) from lost
        if isinstance(answer, rs.ResponseError):
            known, problem = classify_error(answer)
            if known is ErrorEffect.RETRY:
                raise NotSent(problem) from answer
            raise StoreFailed(self.name, f"it does not take the script {script.name}: {problem}") from answer

    def _checked_answer(self, answer: Any, *, writes: bool) -> Any:
        if not isinstance(answer, rs.ResponseError):
            return answer
        if (redirected := redirection(answer)) is not None:
            if self._cluster is None:
                problem = "this server is one of a cluster; write redis+cluster:// in the URL"
                raise StoreUnavailable(self.name, problem) from answer
            host, port, once = redirected
            raise _Moved((host or self._options.get("host", "localhost"), port), once=once) from answer
        known, problem = classify_error(answer)
        if known is ErrorEffect.RETRY:
            raise NotSent(problem) from answer
        if known is ErrorEffect.REFUSED:
            raise StoreUnavailable(self.name, problem) from answer
        if writes:  # a script is not rolled back: a retry could repeat half of it
            raise OutcomeUnknown(self.name, problem) from answer
        raise StoreFailed(self.name, problem) from answer

    def _check_replicas(self, answer: Any) -> None:
        if isinstance(answer, rs.ResponseError) or answer < self.wait_replicas:
            problem = f"{answer} of {self.wait_replicas} replicas have it after {REPLICA_SECONDS:g} s; the primary has"
            raise OutcomeUnknown(self.name, problem)

    @contextlib.contextmanager
    def _borrowed(self, slot: int, to: _Moved | None) -> Iterator[RedisConnection]:
        with self._connection_slots.one(SLOT_TIMEOUT_SECONDS) as is_free:
            if not is_free:
                problem = f"{MAX_CONNECTIONS} calls are running and none of them has ended; retry"
                raise StoreUnavailable(self.name, problem)
            address = to.to if to is not None else self._cluster.owner(slot) if self._cluster is not None else None
            connection = self._take_idle(address) or self._open_checked(address)
            try:
                yield connection
            except BaseException:  # lost, refused, or interrupted: an answer may still arrive
                connection.close()
                raise
            with self._mutex:
                keep = not self._closed
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    def _take_idle(self, address: Address | None) -> RedisConnection | None:
        """Return an idle connection that is still open."""
        while True:
            with self._mutex:
                if self._closed:
                    raise Closed
                found = next((connection for connection in reversed(self._idle) if connection.address == address), None)
                if found is None:
                    return None
                self._idle.remove(found)
            if found.is_alive():
                return found
            found.close()

    def _open_checked(self, address: Address | None) -> RedisConnection:
        connection = self._connect(address)
        try:
            self._server_info = read_server_info(connection)
            if self.relaxed:
                check_version(self._server_info)
            else:
                check(self._server_info, self.name)
        except ConnectionLost as lost:  # the request was not yet sent
            connection.close()
            raise NotSent(str(lost)) from lost
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self, address: Address | None) -> RedisConnection:
        connection = RedisConnection(self._options, address)
        self._connections.add(connection)
        return connection


def _after_fork_in_child() -> None:
    for client in tuple(_open_clients):
        client.detach_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
