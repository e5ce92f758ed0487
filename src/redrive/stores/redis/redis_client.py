"""Redis and Valkey as the store sees them: scripts that run once or not at all, lost connections, clusters, and fork.

Nothing here sends a write twice. What did not leave whole, and what the server refused before it ran, is sent again for
a short time; what left and was not answered is `OutcomeUnknown`.
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
    in_cluster,
    meaning,
    options,
    redirection,
    shown,
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

MAX_LINKS = 8
"""Connections that are open for scripts at a time."""
TURN_SECONDS = 30.0
"""How long a call waits for one of them."""
PATIENCE_SECONDS = 1.0
"""How long something is tried again that did not happen."""
PAUSE_SECONDS = 0.02
MAX_REDIRECTS = 5
"""How often a cluster may send one call elsewhere."""
REPLICA_SECONDS = 1.0
"""How long the acknowledgement of replicas is waited for."""

Part = bytes | str | int | float
_Work = Callable[[RedisConnection, Sequence[Command]], Any]
"""Takes a connection, and what is to be sent there first."""

_never_collected: list[object] = []
"""Connections of a parent process: the child lets them be."""
_open_connections: weakref.WeakSet[RedisClient] = weakref.WeakSet()


class _Moved(Exception):
    """The cluster has the slot elsewhere: for good, or (`once`) for this key while the slot moves. Nothing ran."""

    def __init__(self, to: Address, *, once: bool) -> None:
        super().__init__(f"the cluster sends us to {to[0]}:{to[1]} again and again; see CLUSTER SLOTS")
        self.to = to
        self.once = once


class RedisClient:
    """A server, or a cluster of servers. For any thread. Opens nothing until it is needed.

    Every server is examined when a connection to it is made: `StoreUnavailable` unless it is as durable as asked for.
    """

    def __init__(self, url: str, *, relaxed: bool = False, wait_replicas: int = 0) -> None:
        self._options = options(url)
        self.name = shown(url, self._options)
        self.relaxed = relaxed
        self.wait_replicas = wait_replicas
        self._clustered = in_cluster(url)
        self._found: RedisServerInfo | None = None
        self._last_slot: int | None = None if self._clustered else 0
        self._open()

    def _open(self) -> None:
        self._closed = False
        self.is_the_parents = False
        """In a forked child, before `reopen`: nothing here is its own."""
        first = (self._options.get("host", "localhost"), self._options.get("port", 6379))
        self._cluster = Cluster(first, self._link) if self._clustered else None
        self._links: weakref.WeakSet[RedisConnection] = weakref.WeakSet()
        self._idle: list[RedisConnection] = []
        self._mutex = threading.Lock()
        self._turns = Slots(MAX_LINKS)
        self._presence: RedisConnection | None = None
        self._client: str | None = None
        self._presence_mutex = threading.Lock()
        self._end = threading.Event()
        _open_connections.add(self)

    def run(self, script: Script, keys: Sequence[bytes | str], args: Sequence[Part]) -> Any:
        """Run a script that only reads. Where its connection is lost, it is run again on another."""
        return self._repeatedly(keys[0], lambda link, asking: self._evaluate(link, script, keys, args, asking))

    def run_write(self, script: Script, keys: Sequence[bytes | str], args: Sequence[Part]) -> Any:
        """Run a script that writes: once, or not at all. When this returns, it is as durable as was asked for.

        `StoreUnavailable`: it did not run. `OutcomeUnknown`: it did or did not, or fewer than `wait_replicas` replicas
        have it, or it stopped at an error of its own.
        """
        return self._repeatedly(
            keys[0], lambda link, asking: self._evaluate(link, script, keys, args, asking, writes=True), writes=True
        )

    def request(self, *command: Part) -> Any:
        """Send one command that changes nothing, and give its answer. Of a cluster, it goes to the server of the last
        script."""

        def send(link: RedisConnection, asking: Sequence[Command]) -> Any:
            return self._answered(link.request(*asking, command)[-1], writes=False)

        return self._repeatedly(None, send)

    def dial(self) -> RedisConnection:
        """A connection that its caller closes, to some server of the cluster: for notices."""
        if self._closed:
            raise Closed
        try:
            return self._link(self._address())
        except NotSent as problem:
            raise StoreUnavailable(self.name, str(problem)) from problem

    def client(self) -> str | None:
        """The id of a connection that is there as long as this process is; None where that is not known."""
        if self._closed:
            raise Closed
        if self._last_slot is None:  # on which server of the cluster it has to be is not known yet
            return None
        with self._presence_mutex:
            try:
                address = self._address()
                if self._presence is None or self._presence.address != address or not self._presence.is_alive():
                    self._leave()
                    presence = self._link(address)
                    (answer,) = presence.request(("CLIENT", "ID"))
                    self._presence = presence
                    self._client = None if isinstance(answer, rs.ResponseError) else str(answer)
            except (NotSent, ConnectionLost):
                self._leave()
            return self._client

    def has_client(self, client: str) -> bool:
        """Whether that process is there, as far as is known: it is, unless the server says that it is not."""
        try:
            return bool(self.request("CLIENT", "LIST", "ID", client))
        except StoreFailed:
            return True

    def durability(self) -> Durability:
        """What an acknowledged call survives, by what the server said of itself when it was last connected to."""
        if self._found is None:
            self.request("PING")
        assert self._found is not None
        return describe_durability(self._found, self.wait_replicas)

    def memory(self) -> Memory:
        """How full the memory of the server is."""
        found: Memory = self._repeatedly(None, lambda link, _: memory(link))
        return found

    def close(self) -> None:
        """Release all connections. Twice is no error. Whoever uses one closes it when he is done."""
        if self.is_the_parents:
            return
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        self._end.set()
        for link in idle:
            link.close()
        with self._presence_mutex:
            self._leave()
        _open_connections.discard(self)

    def reopen(self) -> None:
        """In a forked child: connections of its own."""
        self._open()

    def detach_after_fork(self) -> None:
        """After a fork, in the child: nothing that happens to these connections here may reach the server."""
        links = tuple(self._links)
        for link in links:
            link.detach_after_fork()
        _never_collected.extend(links)
        self.is_the_parents = True
        self._closed, self._idle = True, []
        _open_connections.discard(self)

    def _repeatedly(self, key: bytes | str | None, work: _Work, *, writes: bool = False) -> Any:
        """Do it until it happened, or may have; or for so long that somebody has to be told."""
        if self._closed:
            raise Closed
        end = time.monotonic() + PATIENCE_SECONDS
        slot = self._slot(key)
        to: _Moved | None = None
        redirects = 0
        while True:
            try:
                with self._borrowed(slot, to) as link:
                    return work(link, [("ASKING",)] if to is not None and to.once else [])
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
                self._look_again(slot)
            except ConnectionLost as lost:
                to, problem = None, lost
                if writes:
                    raise OutcomeUnknown(self.name, str(lost)) from lost
                if lost.gave_up:
                    raise StoreUnavailable(self.name, str(lost)) from lost
                self._look_again(slot)
            if time.monotonic() > end or self._end.wait(PAUSE_SECONDS):
                raise StoreUnavailable(self.name, str(problem)) from problem

    def _slot(self, key: bytes | str | None) -> int:
        if self._cluster is not None and key is not None:
            self._last_slot = key_slot(key.encode() if isinstance(key, str) else key)
        return self._last_slot or 0

    def _address(self) -> Address | None:
        """Where the last script ran. Raises `NotSent` where no server of the cluster can be asked."""
        return None if self._cluster is None else self._cluster.owner(self._last_slot or 0)

    def _leave(self) -> None:
        presence, self._presence, self._client = self._presence, None, None
        if presence is not None:
            presence.close()

    def _look_again(self, slot: int) -> None:
        """The server may have been replaced: idle connections go, and who has the slot is asked anew."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()
        if self._cluster is not None:
            self._cluster.forget(slot)

    def _evaluate(
        self,
        link: RedisConnection,
        script: Script,
        keys: Sequence[bytes | str],
        args: Sequence[Part],
        asking: Sequence[Command],
        *,
        writes: bool = False,
    ) -> Any:
        """EVALSHA; a server that does not know the script has not run it, so it is told the script and asked again."""
        request: list[Command] = [*asking, ("EVALSHA", script.sha, len(keys), *keys, *args)]
        if waits := writes and self.wait_replicas > 0:
            request.append(("WAIT", self.wait_replicas, int(REPLICA_SECONDS * 1000)))
        answers = link.request(*request)
        if isinstance(answers[len(asking)], rs.NoScriptError):
            self._load(link, script)
            answers = link.request(*request)
        answer = self._answered(answers[len(asking)], writes=writes)
        if waits:
            self._check_replicas(answers[-1])
        return answer

    def _load(self, link: RedisConnection, script: Script) -> None:
        """Nothing ran yet: a connection that breaks here breaks before the script was sent."""
        try:
            (answer,) = link.request(("SCRIPT", "LOAD", script.source))
        except ConnectionLost as lost:
            raise NotSent(str(lost)) from lost
        if isinstance(answer, rs.ResponseError):
            known, problem = meaning(answer)
            if known is ErrorEffect.RETRY:
                raise NotSent(problem) from answer
            raise StoreFailed(self.name, f"it does not take the script {script.name}: {problem}") from answer

    def _answered(self, answer: Any, *, writes: bool) -> Any:
        if not isinstance(answer, rs.ResponseError):
            return answer
        if (elsewhere := redirection(answer)) is not None:
            if self._cluster is None:
                problem = "this server is one of a cluster; write redis+cluster:// in the URL"
                raise StoreUnavailable(self.name, problem) from answer
            host, port, once = elsewhere
            raise _Moved((host or self._options.get("host", "localhost"), port), once=once) from answer
        known, problem = meaning(answer)
        if known is ErrorEffect.RETRY:
            raise NotSent(problem) from answer
        if known is ErrorEffect.REFUSED:
            raise StoreUnavailable(self.name, problem) from answer
        if writes:  # a script is not rolled back: to run its calls again could do half of them twice
            raise OutcomeUnknown(self.name, problem) from answer
        raise StoreFailed(self.name, problem) from answer

    def _check_replicas(self, answer: Any) -> None:
        if isinstance(answer, rs.ResponseError) or answer < self.wait_replicas:
            problem = f"{answer} of {self.wait_replicas} replicas have it after {REPLICA_SECONDS:g} s; the primary has"
            raise OutcomeUnknown(self.name, problem)

    @contextlib.contextmanager
    def _borrowed(self, slot: int, to: _Moved | None) -> Iterator[RedisConnection]:
        with self._turns.one(TURN_SECONDS) as is_free:
            if not is_free:
                raise StoreUnavailable(self.name, f"{MAX_LINKS} calls are under way and none of them ends; try again")
            address = to.to if to is not None else self._cluster.owner(slot) if self._cluster is not None else None
            link = self._take(address) or self._examined(address)
            try:
                yield link
            except BaseException:  # lost, refused, or interrupted: what is still to be answered is nobody's
                link.close()
                raise
            with self._mutex:
                keep = not self._closed
                if keep:
                    self._idle.append(link)
            if not keep:
                link.close()

    def _take(self, address: Address | None) -> RedisConnection | None:
        """An idle connection that is still there."""
        while True:
            with self._mutex:
                if self._closed:
                    raise Closed
                found = next((link for link in reversed(self._idle) if link.address == address), None)
                if found is None:
                    return None
                self._idle.remove(found)
            if found.is_alive():
                return found
            found.close()

    def _examined(self, address: Address | None) -> RedisConnection:
        link = self._link(address)
        try:
            self._found = read_server_info(link)
            if self.relaxed:
                check_version(self._found)
            else:
                check(self._found, self.name)
        except ConnectionLost as lost:  # nothing of the caller's was sent yet
            link.close()
            raise NotSent(str(lost)) from lost
        except BaseException:
            link.close()
            raise
        return link

    def _link(self, address: Address | None) -> RedisConnection:
        link = RedisConnection(self._options, address)
        self._links.add(link)
        return link


def _after_fork_in_child() -> None:
    for connection in tuple(_open_connections):
        connection.detach_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
