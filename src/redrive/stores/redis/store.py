"""`RedisStore`: calls are executed by one durable script, which returns their results.

Frequent calls (puts, leases, settled deliveries) are one script. All others are executed in this process by the rules
of `redrive.stores.rules`, on data that it reads while it has the lock of the namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from redrive.clock import Clock, Instant, ServerClock
from redrive.contract import Call, Query
from redrive.contract.admin_calls import DeleteQueue
from redrive.contract.base import in_commit_order
from redrive.contract.item_calls import Put
from redrive.contract.maintenance_calls import ApplyRetention
from redrive.errors import (
    Closed,
    InvalidInput,
    RedriveError,
    SchemaTooNew,
    SchemaTooOld,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreUnavailable,
)
from redrive.model.item import Receipt
from redrive.model.queue import Queue
from redrive.store import Commit, Durability, commit_rest
from redrive.stores.redis.examination import find_problems
from redrive.stores.redis.fast_path import FastPathBatch, is_fast_path
from redrive.stores.redis.fast_path_results import ResultReader, arrivals_of
from redrive.stores.redis.keys import FIRST_FORMAT, FORMAT, Keys
from redrive.stores.redis.namespace_lock import LockGrant, LockWait, NamespaceLock
from redrive.stores.redis.pubsub import PubSub
from redrive.stores.redis.queries import answer_query, is_anything_old, queues_to_clean
from redrive.stores.redis.queue_state import decode_queues
from redrive.stores.redis.redis_client import Part, RedisClient
from redrive.stores.redis.scripts import COMMIT, OPEN
from redrive.stores.redis.state import RedisState
from redrive.stores.redis.unit_of_work import Session, flat
from redrive.stores.rules.damage import failure_of, naming_damage
from redrive.stores.rules.dispatch import execute_calls
from redrive.stores.rules.read_ahead import ids_of, names_of, queues_of

_MAX_LOST_LOCKS = 5
"""Maximum number of attempts at a batch whose lock expires."""


class RedisStore:
    """Queues and items of one namespace on a Redis or Valkey server, or in a cluster."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        name: str = "redis",
        prefix: str = "redrive",
        relaxed: bool = False,
        create: bool = True,
        clock: Clock | None = None,
        wait_replicas: int = 0,
    ) -> None:
        server_clock = ServerClock()
        self.clock: Clock = clock or server_clock
        self._server_clock = server_clock if clock is None else None
        self.namespace = namespace
        self.name = name
        self._closed = False
        self._keys = Keys(prefix, namespace)
        self._client = RedisClient(url, relaxed=relaxed, wait_replicas=wait_replicas)
        self.place = f"{self._client.name} ({prefix})"
        self._lock = NamespaceLock(self._client, self._keys)
        self._epoch = -1
        self._queues: Mapping[str, Queue] = {}
        self._notifications = PubSub(self._client, self._keys.of("notifications"))
        try:
            self._open(create)
        except BaseException:
            self._client.close()
            raise

    def _open(self, create: bool) -> None:
        now, found = self._client.run_write(OPEN, [self._keys.meta], [FORMAT, int(create)])
        self._follow(Instant(now))
        if not found:
            problem = (
                "it has no keys of Redrive; correct the URL, or leave create_if_missing=False out for an empty store"
            )
            raise StoreUnavailable(self._client.name, problem)
        if found > FORMAT:
            raise SchemaTooNew(self._client.name, found, FORMAT)
        if found < FIRST_FORMAT:
            raise SchemaTooOld(f"{self._client.name} ({self._keys.root}*)", found, FIRST_FORMAT)

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        self._check_open()
        if now is None and self._server_clock is None:
            now = self.clock.now()
        commit = (
            self._commit_by_script(calls, now) if all(map(is_fast_path, calls)) else self._commit_in_parts(calls, now)
        )
        if commit.arrivals:
            self._notifications.publish(commit.arrivals)
        return commit

    def read(self, query: Query) -> Any:
        self._check_open()
        with naming_damage(self.name):
            session = Session(self._client, self._keys, read_only=True)
            now, (raw,) = session.fetch_with_instant(("HGETALL", self._keys.of("queues")))
            self._follow(now)
            state = RedisState(session, self.namespace, self.name, decode_queues(raw))
            return answer_query(state, session, query, self.clock.now())

    def put_in_transaction(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        raise InvalidInput(
            f"store {self.name} is a Redis server and takes part in no transaction of yours; "
            "put without `transaction`, or use a store in the database that your transaction is in"
        )

    def poll_changes(self) -> Collection[str] | None:
        self._check_open()
        return self._notifications.received()

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._notifications.subscribe(wake)

    def durability(self) -> Durability:
        return self._client.durability()

    def warnings(self) -> tuple[str, ...]:
        warning = self._client.memory().warning
        return () if warning is None else (warning,)

    def examine(self) -> tuple[str, ...]:
        self._check_open()
        now = self.clock.now() if self._server_clock is None else None
        with naming_damage(self.name):
            problems = tuple(find_problems(self._client, self._keys, now))
        return tuple(f"The store {self.name} is damaged: {problem}" for problem in problems)

    def reopen(self) -> None:
        self._client.reopen()
        self._notifications.reopen()
        self._epoch = -1

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._client.is_inherited:
            self._notifications.close()
            self._client.close()

    def _commit_in_parts(self, calls: Sequence[Call], now: Instant | None) -> Commit:
        """Execute calls of the fast path by the script, and the rest by the rules, so that neither delays the other.

        A part that fails does not change the results of others.
        """
        if all(isinstance(call, ApplyRetention) for call in calls) and not self._has_to_clean(now):
            return Commit([0] * len(calls), {}, self.clock.now() if now is None else now)
        done = Commit([None] * len(calls), {}, self.clock.now() if now is None else now)
        first = True

        def execute(positions: Sequence[int]) -> Commit:
            commit_part = self._commit_by_script if is_fast_path(calls[positions[0]]) else self._commit_by_rules
            return commit_part([calls[position] for position in positions], now if first else done.now)

        for _, group in groupby(in_commit_order(calls), key=lambda position: _part_of(position, calls[position])):
            done = commit_rest(done, list(group), execute, self.name, is_first=first)
            first = False
        return done

    def _commit_by_script(self, calls: Sequence[Call], now: Instant | None, *, merge: bool = True) -> Commit:
        """Run the script. It does nothing while another process has the lock, and is retried."""
        batch = FastPathBatch(calls, self.namespace, self.name, merge=merge)
        lock_wait = LockWait(self._lock)
        args = batch.arguments(self._keys.root, now)
        while True:
            done, *answer = self._client.run_write(COMMIT, [self._keys.meta, self._keys.lock], args)
            if done:
                break
            lock_wait.wait(answer[0])
        if now is None:
            self._follow(Instant(answer[0]))
        reader = ResultReader(batch, self.namespace, self._client.name)
        commit = Commit(reader.read(answer), arrivals_of(answer), Instant(answer[0]))
        if reader.is_run_refused:
            return self._commit_rest(calls, reader.left, commit, partial(self._commit_by_script, merge=False))
        if reader.left:
            return self._commit_rest(calls, reader.left, commit, self._commit_by_rules)
        return commit

    def _commit_rest(
        self, calls: Sequence[Call], positions: Sequence[int], commit: Commit, commit_part: Callable[..., Commit]
    ) -> Commit:
        """Execute calls that the script did not execute. If that fails, the other calls stay committed."""

        def execute(some: Sequence[int]) -> Commit:
            return commit_part([calls[position] for position in some], commit.now)

        return commit_rest(commit, positions, execute, self.name)

    def _commit_by_rules(self, calls: Sequence[Call], now: Instant | None) -> Commit:
        """Execute calls by the rules. If the lock is lost before anything is written, retry."""
        for _ in range(_MAX_LOST_LOCKS):
            with self._lock.held() as grant:
                self._follow(grant.now)
                commit = self._try(grant, calls, self.clock.now() if now is None else now)
                if commit is not None:
                    return commit
        raise StoreFailed(self.name, "the calls take longer than a process may have the namespace for itself")

    def _try(self, grant: LockGrant, calls: Sequence[Call], now: Instant) -> Commit | None:
        """Execute calls under the lock. Return None if it was lost, with nothing written."""
        session = self._session()
        try:
            results, arrivals, writes = self._execute(session, grant, calls, now)
        except Exception as problem:
            # Without the lock, others may change data between two reads, so that rules meet what cannot be.
            if not self._lock.is_held(grant.token):
                return None
            if isinstance(problem, RedriveError):
                raise
            raise failure_of(self.name, problem) from problem
        if not self._lock.apply(grant.token, writes, when_full=not any(call.takes_space for call in calls)):
            return None
        return Commit(results, arrivals, now)

    def _execute(
        self, session: Session, grant: LockGrant, calls: Sequence[Call], now: Instant
    ) -> tuple[list[Any], dict[str, int], list[Part]]:
        """Return the results of calls, the arrivals, and the writes with which they take effect."""
        self._refresh_queues(session, grant.epoch)
        queues = self._queues
        if all(isinstance(call, ApplyRetention) for call in calls):
            queues = queues_to_clean(session, queues, now)
        state = RedisState(session, self.namespace, self.name, queues, grant.last, grant.version)
        state.begin(now)
        state.queues.load(queues_of(calls))
        session.load(ids_of(calls))
        for names in names_of(calls):
            state.prefetch(*names)
        results: list[Any] = [None] * len(calls)
        for position in in_commit_order(calls):
            try:
                results[position] = execute_calls(state, calls[position])
            except RedriveError as refusal:
                if isinstance(refusal, StoreError) and not isinstance(refusal, StoreDamaged):
                    raise
                results[position] = refusal
        last = state.flush()
        return results, state.arrived(), [last, *flat(session.writes)]

    def _has_to_clean(self, now: Instant | None) -> bool:
        session = self._session()
        (raw,) = session.fetch(("HGETALL", self._keys.of("queues")))
        instant = self.clock.now() if now is None else now
        return bool(queues_to_clean(session, decode_queues(raw), instant)) or is_anything_old(session, instant)

    def _refresh_queues(self, session: Session, epoch: int) -> None:
        if epoch != self._epoch:
            (raw,) = session.fetch(("HGETALL", self._keys.of("queues")))
            self._queues, self._epoch = decode_queues(raw), epoch

    def _follow(self, now: Instant) -> None:
        if self._server_clock is not None:
            self._server_clock.follow(now)

    def _session(self) -> Session:
        return Session(self._client, self._keys)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed


def _part_of(position: int, call: Call) -> str:
    """Return the part of a call: calls of one part are executed together. A deletion of a queue is a separate part,
    because the data read for other calls may be in the queue."""
    if is_fast_path(call):
        return "fast path"
    if isinstance(call, DeleteQueue):
        return f"deletion {position}"
    return "takes space" if call.takes_space else "rest"
