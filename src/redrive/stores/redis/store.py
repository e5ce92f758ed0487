"""`RedisStore`: calls in, one durable script, results out.

What is done often (puts, leases, ends of deliveries) is one script. Everything else follows the rules of
`redrive.stores.rules` in this process, on what it reads while it has the turn of the namespace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from redrive.clock import Clock, Instant, ServerClock
from redrive.contract import Call, Query
from redrive.contract.admin_calls import (
    ApplyRetention,
    CloseMove,
    CreateQueue,
    DeleteQueue,
    Expire,
    FinishMove,
    Hold,
    Import,
    ManualChange,
    Receive,
    Register,
    Unhold,
)
from redrive.contract.item_calls import Complete, Extend, Put, ReturnLease, Settle
from redrive.errors import (
    Closed,
    InvalidInput,
    NotAStore,
    OutcomeUnknown,
    RedriveError,
    SchemaTooNew,
    StoreError,
    StoreFailed,
    StoreUnavailable,
)
from redrive.model.arrival import ledger_key
from redrive.model.ids import ItemId, item_id_of
from redrive.model.item import Receipt
from redrive.model.queue import Queue
from redrive.store import Commit, Durability
from redrive.stores.redis.fast_path import FastPathBatch, is_fast_path
from redrive.stores.redis.fast_path_results import ResultReader, arrivals_of
from redrive.stores.redis.keys import FORMAT, Keys
from redrive.stores.redis.namespace_lock import LockGrant, LockWait, NamespaceLock
from redrive.stores.redis.pubsub import PubSub
from redrive.stores.redis.queries import answer_query, is_anything_old, queues_to_clean
from redrive.stores.redis.queue_state import read_queue
from redrive.stores.redis.redis_client import RedisClient
from redrive.stores.redis.scripts import COMMIT, OPEN
from redrive.stores.redis.state import RedisState
from redrive.stores.redis.unit_of_work import Session
from redrive.stores.rules.dispatch import execute_calls, in_commit_order

_MOST_LOST_TURNS = 5
"""How often a batch is tried that was too slow for its turn."""


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
        self._connection = RedisClient(url, relaxed=relaxed, wait_replicas=wait_replicas)
        self._lock = NamespaceLock(self._connection, self._keys)
        self._epoch = -1
        self._queues: Mapping[str, Queue] = {}
        self._notices = PubSub(self._connection, self._keys.of("notifications"))
        try:
            self._open(create)
        except BaseException:
            self._connection.close()
            raise

    def _open(self, create: bool) -> None:
        now, found = self._connection.run_write(OPEN, [self._keys.meta], [FORMAT, int(create)])
        self._follow(Instant(now))
        if not found:
            problem = (
                "it has nothing of Redrive there; correct the URL, or leave create_if_missing=False out to begin anew"
            )
            raise StoreUnavailable(self._connection.name, problem)
        if found > FORMAT:
            raise SchemaTooNew(self._connection.name, found, FORMAT)
        if found < FORMAT:
            problem = f"its keys {self._keys.root}* have format {found}, which no release of Redrive ever had"
            remedy = "Name another prefix or namespace, or delete these keys"
            raise NotAStore(self._connection.name, problem, remedy)

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        self._check_open()
        if now is None and self._server_clock is None:
            now = self.clock.now()
        commit = (
            self._commit_by_script(calls, now) if all(map(is_fast_path, calls)) else self._commit_in_parts(calls, now)
        )
        if commit.arrivals:
            self._notices.publish(commit.arrivals)
        return commit

    def read(self, query: Query) -> Any:
        self._check_open()
        session = self._session()
        now, (raw,) = session.look_at(("HGETALL", self._keys.of("queues")))
        self._follow(now)
        state = RedisState(session, self.namespace, self.name, _queues(raw))
        return answer_query(state, session, query, self.clock.now())

    def put_in_transaction(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        raise InvalidInput(
            f"store {self.name} is a Redis server and takes part in no transaction of yours; "
            "put without `transaction`, or use a store in the database that your transaction is in"
        )

    def poll_changes(self) -> Collection[str] | None:
        self._check_open()
        return self._notices.received()

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._notices.subscribe(wake)

    def durability(self) -> Durability:
        return self._connection.durability()

    def warnings(self) -> tuple[str, ...]:
        warning = self._connection.memory().warning
        return () if warning is None else (warning,)

    def reopen(self) -> None:
        self._connection.reopen()
        self._notices.reopen()
        self._epoch = -1

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._connection.is_the_parents:
            self._notices.close()
            self._connection.close()

    def _commit_in_parts(self, calls: Sequence[Call], now: Instant | None) -> Commit:
        """Execute what the script can do by the script, and the rest by the rules, so that neither delays the other.

        A part that fails does not change the results of the parts before it.
        """
        results: list[Any] = [None] * len(calls)
        arrivals: Counter[str] = Counter()
        if all(isinstance(call, ApplyRetention) for call in calls) and not self._has_to_clean(now):
            return Commit([0] * len(calls), {}, self.clock.now() if now is None else now)
        first = True
        for kind, group in groupby(in_commit_order(calls), key=lambda position: _part_of(position, calls[position])):
            positions = list(group)
            commit_part = self._commit_by_script if kind == "fast path" else self._commit_by_rules
            try:
                commit = commit_part([calls[position] for position in positions], now)
            except (StoreError, OutcomeUnknown) as problem:
                if first:
                    raise
                commit = Commit([problem] * len(positions), {}, Instant(0) if now is None else now)
            else:
                now = commit.now
            first = False
            arrivals.update(commit.arrivals)
            for position, result in zip(positions, commit.results, strict=True):
                results[position] = result
        assert now is not None
        return Commit(results, arrivals, now)

    def _commit_by_script(self, calls: Sequence[Call], now: Instant | None, *, merge: bool = True) -> Commit:
        """Run the script. While another process has the lock, it does nothing, and is run again."""
        batch = FastPathBatch(calls, merge=merge)
        lock_wait = LockWait(self._lock)
        args = batch.arguments(self._keys.root, now)
        while True:
            done, *answer = self._connection.run_write(COMMIT, [self._keys.meta, self._keys.lock], args)
            if done:
                break
            lock_wait.wait(answer[0])
        if now is None:
            self._follow(Instant(answer[0]))
        reader = ResultReader(batch, self.namespace, self._connection.name)
        commit = Commit(reader.read(answer), arrivals_of(answer), Instant(answer[0]))
        return self._put_unmerged(calls, reader.unmerged, commit) if reader.unmerged else commit

    def _put_unmerged(self, calls: Sequence[Call], positions: Sequence[int], commit: Commit) -> Commit:
        """Send puts that were refused as one run separately. If that fails, all other calls have happened."""
        try:
            unmerged = self._commit_by_script([calls[position] for position in positions], commit.now, merge=False)
        except (StoreError, OutcomeUnknown) as problem:
            unmerged = Commit([problem] * len(positions), {}, commit.now)
        for position, result in zip(positions, unmerged.results, strict=True):
            commit.results[position] = result
        return Commit(commit.results, Counter(commit.arrivals) + Counter(unmerged.arrivals), commit.now)

    def _commit_by_rules(self, calls: Sequence[Call], now: Instant | None) -> Commit:
        """By the rules. Again where the turn was lost before anything was written."""
        for _ in range(_MOST_LOST_TURNS):
            with self._lock.mine() as taken:
                self._follow(taken.now)
                commit = self._try(taken, calls, self.clock.now() if now is None else now)
                if commit is not None:
                    return commit
        raise StoreFailed(self.name, "the calls take longer than a process may have the namespace for itself")

    def _try(self, taken: LockGrant, calls: Sequence[Call], now: Instant) -> Commit | None:
        session = self._session()
        self._know_queues(session, taken.epoch)
        queues = self._queues
        if all(isinstance(call, ApplyRetention) for call in calls):
            queues = queues_to_clean(session, queues, now)
        state = RedisState(session, self.namespace, self.name, queues, taken.last, taken.version)
        state.begin(now)
        state.queues.load(_queues_named(calls))
        session.load(_ids_named(calls))
        for named in _names_named(calls):
            state.read_ahead(*named)
        closed = (ledger_key(id) for call in calls if isinstance(call, CloseMove) for id in call.source_ids)
        session.ahead["sources"].extend(closed)
        results: list[Any] = [None] * len(calls)
        for position in in_commit_order(calls):
            try:
                results[position] = execute_calls(state, calls[position])
            except StoreError:
                raise
            except RedriveError as refusal:
                results[position] = refusal
        last = state.flush()
        if not self._lock.apply(taken.token, last, session, when_full=not any(map(_takes_memory, calls))):
            return None
        return Commit(results, state.arrived(), now)

    def _has_to_clean(self, now: Instant | None) -> bool:
        session = self._session()
        (raw,) = session.look(("HGETALL", self._keys.of("queues")))
        instant = self.clock.now() if now is None else now
        return bool(queues_to_clean(session, _queues(raw), instant)) or is_anything_old(session, instant)

    def _know_queues(self, session: Session, epoch: int) -> None:
        if epoch != self._epoch:
            (raw,) = session.look(("HGETALL", self._keys.of("queues")))
            self._queues, self._epoch = _queues(raw), epoch

    def _follow(self, now: Instant) -> None:
        if self._server_clock is not None:
            self._server_clock.follow(now)

    def _session(self) -> Session:
        return Session(self._connection, self._keys)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed


def _queues(raw: list[bytes]) -> dict[str, Queue]:
    fields = iter(raw)
    return {name.decode(): read_queue(value) for name, value in zip(fields, fields, strict=True)}


def _part_of(position: int, call: Call) -> str:
    """Return the part of a call: calls of one part are executed together. A deletion of a queue is a separate part,
    because what is read for other calls may be in the queue."""
    if is_fast_path(call):
        return "fast path"
    if isinstance(call, DeleteQueue):
        return f"deletion {position}"
    return "takes memory" if _takes_memory(call) else "rest"


def _takes_memory(call: Call) -> bool:
    """Whether a full memory refuses it. Changes of what is there go on, so that somebody can make room."""
    return isinstance(call, CreateQueue | Put | Import | Receive) or (
        isinstance(call, Complete | Register) and bool(call.puts)
    )


def _queues_named(calls: Sequence[Call]) -> list[str]:
    return [call.queue for call in calls if isinstance(call, Put | Import | Receive)]


def _names_named(calls: Sequence[Call]) -> Iterator[tuple[str, str, list[str]]]:
    """Idempotency keys and source ids of queues that calls are about, to be read at once."""
    for call in calls:
        match call:
            case Put() | Complete() | Register():
                for put in (call,) if isinstance(call, Put) else call.puts:
                    keys = [item.idempotency_key for item in put.items if item.idempotency_key is not None]
                    yield put.queue, "keys", keys
                    yield put.queue, "sources", _ledger([i.source_id for i in put.items if i.source_id is not None])
            case Import():
                yield call.queue, "sources", _ledger([item.id for item in call.items])
            case Receive():
                yield call.queue, "sources", _ledger([call.move.item.id])


def _ledger(source_ids: Sequence[ItemId]) -> list[str]:
    return [*source_ids, *map(ledger_key, source_ids)]


def _ids_named(calls: Sequence[Call]) -> list[ItemId]:
    """The items that calls are about, as far as they say so, to be read at once."""
    ids: list[ItemId] = []
    for call in calls:
        match call:
            case Complete() | Settle() | ReturnLease() | Extend():
                ids.append(item_id_of(call.token))
            case Expire():
                ids.append(call.id)
            case ManualChange():
                ids.extend(target.id for target in call.targets)
            case Hold() | Unhold() | FinishMove():
                ids.extend(call.ids or ())
            case Import():
                ids.extend(item.id for item in call.items)
    return ids
