"""The contract between the broker and a store.

A store takes a batch of calls, carries them out durably and each of them whole, and returns one result for each. Where
it has transactions the batch is ONE. It never waits, never judges, and holds no state that a crash would lose.

    commit([Put(…), Complete(…), LeaseItems(…)])  →  Commit(results, arrivals, now)
    read(GetItem(…))                              →  Item

Rules for every store:

- **One place.** At every instant, and after a crash at any point, an item has exactly one status.
- **Durable.** When `commit` returns, its effects survive a crash and a power cut, unless the store was opened with
  relaxed durability.
- **A call is atomic.** All of it happens, or nothing: `Complete` with its puts, a `Put` of many, a `ManualChange` of
  one target. A store without rollback may carry out a batch in parts; then a part that breaks off is the result
  (`StoreError`, `OutcomeUnknown`) of its own calls.
- **One instant.** A batch has one `now`: the one given, else the store's own clock. Delays are durations; the
  store makes instants of them.
- **One bad call fails alone.** A refusal is a result: an instance of `RedriveError`, returned and not raised. It
  changed nothing and does not disturb its neighbours. `commit` raises only when the store itself cannot serve the
  batch (`StoreError`, or `Closed` after `close`: nothing was changed; `OutcomeUnknown`: all or nothing was).
- **Order.** Calls of one batch are concurrent. They take effect by kind in this order: queues, puts, registrations,
  imports, held items, settles, changes by hand, operations, upkeep, leases; within a kind in the order of the batch.
- **Fence.** A call that names a token is accepted while the item is active under that token, whatever the clock
  says. Otherwise it gets `LeaseLost` with the item's present status and changes nothing. So of two calls with one
  token exactly one is accepted.
- **Who decides.** Verdicts come with the call. A call that carries a verdict names the version of the queue's
  settings it was judged by; if that is no longer the newest, the result is `StaleSettings` and nothing was changed.

Every store passes the suite in `redrive.testing.conformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from redrive.clock import Clock, Instant
from redrive.contract import Call, Query
from redrive.contract.item_calls import Put
from redrive.model.item import Receipt


class Commit(msgspec.Struct, frozen=True):
    """One committed transaction."""

    results: list[Any]
    """One for each call, in the order of the calls: the type its docstring names, or a `RedriveError`."""
    arrivals: Mapping[str, int]
    """Queues in which more may be leased than before, and how many items; 0 where only a new time was set at which
    something falls due. Whom to wake: too many is harmless."""
    now: Instant


class Durability(msgspec.Struct, frozen=True):
    """What an acknowledged call survives, in words for a person."""

    level: str
    """`full`, `relaxed`, or `none` where nothing survives the process."""
    survives: str
    can_lose: str


class Store(Protocol):
    """A place where queues and items of one namespace live.

    `commit` is called by one thread at a time (the committer sees to that); the rest from any.
    `clock` is the store's time as this process knows it: where a server keeps the time, it follows `Commit.now`.
    """

    name: str
    namespace: str
    clock: Clock

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        """Carry out all calls in one transaction and make it durable."""
        ...

    def read(self, query: Query) -> Any:
        """Answer one query. Raises the errors that its docstring names."""
        ...

    def put_in_transaction(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        """Put inside the caller's own transaction: the items exist if and only if that transaction commits.

        Raises refusals. `InvalidInput` where the connection is not one of this store, or has no transaction open.
        """
        ...

    def poll_changes(self) -> Collection[str] | None:
        """Queues in which another process may have changed something since the last call; None: in any. Cheap."""
        ...

    def subscribe(self, wake: Callable[[], None]) -> None:
        """From now on call `wake`, from any thread, as soon as `changed` may have something to tell.

        It rings once, and again only after `changed` was called. For whoever asks now and then anyway: a store that
        cannot know does nothing, and one that can begins with the first `changed`. A forked child goes on ringing it.
        """
        ...

    def durability(self) -> Durability:
        """What an acknowledged call survives."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """What a person should know about the place where everything is kept, a sentence each."""
        ...

    def reopen(self) -> None:
        """Open connections anew in a forked child. Those of the parent are neither used nor closed."""
        ...

    def close(self) -> None:
        """Release everything. Twice is no error. From then on `commit`, `read` and `changed` raise `Closed`."""
        ...
