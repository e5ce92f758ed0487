"""The contract between the broker and a store.

A store executes a batch of calls durably, each call atomically, and returns one result for each. If it has
transactions, the batch is ONE. It never waits, never judges, and holds no state that a crash would lose.

    commit([Put(…), Complete(…), LeaseItems(…)])  →  Commit(results, arrivals, now)
    read(GetItem(…))                              →  Item

Rules for every store:

- **One place.** At every instant, and after a crash at any point, an item has exactly one status.
- **Durable.** When `commit` returns, its effects survive a crash and a power cut, unless the store was opened with
  relaxed durability.
- **A call is atomic.** All of it happens, or nothing: `Complete` with its puts, a `Put` of many, a `ManualChange` of
  one target. A store without rollback may execute a batch in parts; then the failure of a part is the result
  (`StoreError`, `OutcomeUnknown`) of the calls in it.
- **One instant.** A batch has one `now`: the given one, else that of the store's clock. Delays are durations; the
  store adds them to `now`.
- **One bad call fails alone.** A refusal is a result: an instance of `RedriveError`, returned and not raised. It
  changed nothing and does not disturb its neighbours. `commit` raises only when the store itself cannot serve the
  batch (`StoreError`, or `Closed` after `close`: nothing was changed; `OutcomeUnknown`: all or nothing was).
- **Order.** Calls of one batch are concurrent. They take effect by kind in this order: queues, puts, registrations,
  imports, held items, settles, manual changes, operations, maintenance, leases by id, leases; within a kind in the
  order of the batch.
- **Fence.** A call that names a token is accepted while the item is active under that token, regardless of the
  clock. Otherwise it gets `LeaseLost` with the item's current status and changes nothing. So of two calls with one
  token exactly one is accepted.
- **Verdicts.** They come with the call. A call that carries a verdict names the version of the queue's settings it was
  judged by; if that is no longer the newest, the result is `StaleSettings` and nothing was changed.

Every store passes the suite in `redrive.testing.conformance`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from redrive.clock import Clock, Instant
from redrive.contract import Call, Query
from redrive.contract.item_calls import Put
from redrive.errors import OutcomeUnknown, RedriveError, StoreFailed
from redrive.model.item import Receipt


class Commit(msgspec.Struct, frozen=True):
    """One committed transaction."""

    results: list[Any]
    """One for each call, in the order of the calls: the type its docstring names, or a `RedriveError`."""
    arrivals: Mapping[str, int]
    """Queues in which more items may be leased than before, and how many; 0 if only a new due time was set. Waiters of
    these queues are woken; too many is harmless. Also the `result_topic` of every id that an item had which died
    (or is a dead letter again, by UNDO) or whose result was kept: all waiters of that topic are woken."""
    now: Instant


def commit_rest(
    done: Commit,
    positions: Sequence[int],
    execute: Callable[[Sequence[int]], Commit],
    store: str,
    *,
    is_first: bool = False,
) -> Commit:
    """Execute the calls at these positions of a batch of which others may be committed, and add their results.

    An error is the result of these calls alone: `OutcomeUnknown` if it is an unexpected one. If nothing of several
    calls was executed because one of them fails (`StoreFailed`), each is executed alone. With `is_first`, nothing is
    committed before, and an error that changed nothing, or an unexpected one of the whole batch, is raised.
    """
    try:
        rest = execute(positions)
    except RedriveError as problem:
        if is_first and not isinstance(problem, OutcomeUnknown):
            raise
        if isinstance(problem, StoreFailed) and len(positions) > 1:
            for position in positions:
                done = commit_rest(done, (position,), execute, store)
            return done
        rest = Commit([problem] * len(positions), {}, done.now)
    except Exception as unexpected:
        if is_first and len(positions) == len(done.results):
            raise
        rest = Commit([OutcomeUnknown(store, repr(unexpected))] * len(positions), {}, done.now)
    for position, result in zip(positions, rest.results, strict=True):
        done.results[position] = result
    arrivals = Counter(done.arrivals)
    arrivals.update(rest.arrivals)  # not `+`, which drops queues with 0: their due time changed
    return Commit(done.results, arrivals, rest.now)


class Durability(msgspec.Struct, frozen=True):
    """The failures that an acknowledged call survives, as text for an operator."""

    level: str
    """`full`, `relaxed`, or `none` where nothing survives the process."""
    survives: str
    can_lose: str


class Store(Protocol):
    """The queues and items of one namespace.

    `commit` is called by one thread at a time (the committer ensures it); the other methods by any.
    `clock` is the store's time as this process knows it: if a server keeps the time, it follows `Commit.now`.
    """

    name: str
    namespace: str
    clock: Clock
    place: str
    """Where it is, without a password: a path, or the address of a server. Objects with equal places are one store;
    those with equal names may not be, as a store without a name has that of its kind."""

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        """Execute all calls in one durable transaction."""
        ...

    def read(self, query: Query) -> Any:
        """Answer one query. Raises the errors that its docstring names."""
        ...

    def put_in_transaction(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        """Put inside the caller's own transaction: the items exist if and only if that transaction commits.

        The items name no queue for replies: to record that would keep other transactions waiting for the caller's.
        Raises refusals. `InvalidInput` if the connection is not one of this store, or has no open transaction.
        """
        ...

    def poll_changes(self) -> Collection[str] | None:
        """Return the queues and result topics in which another process may have changed something since the last call;
        None: any. Cheap."""
        ...

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake` from any thread as soon as `poll_changes` may return something.

        `wake` is called at most once until the next `poll_changes`. Callers must poll anyway: a store without
        notifications does nothing, and one with them subscribes at the first `poll_changes`. The subscription survives
        a fork.
        """
        ...

    def durability(self) -> Durability:
        """Return the failures that an acknowledged call survives."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """Return warnings for the operator about the database, a sentence each."""
        ...

    def examine(self) -> tuple[str, ...]:
        """Read everything, and return a sentence for each damage of tables and indexes. True beside any other work; a
        store that is a server or in memory returns none."""
        ...

    def reopen(self) -> None:
        """Open new connections in a forked child. Those of the parent are neither used nor closed."""
        ...

    def close(self) -> None:
        """Release all resources; idempotent. From then on `commit`, `read` and `poll_changes` raise `Closed`."""
        ...
