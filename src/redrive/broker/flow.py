"""Flows: the logic of a broker, written once and run by two drivers.

A flow is a generator that yields effects, which its driver performs: to commit calls, to answer a query, or to wait for
a queue. `run` drives it in the calling thread; the asynchronous driver is in `redrive.broker.async_api.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from redrive.broker.signal_shield import shielded
from redrive.clock import Instant
from redrive.contract import Call, Query
from redrive.contract.base import StoreCall, StoreQuery
from redrive.contract.queries import GetItems, GetLeases
from redrive.errors import RedriveError
from redrive.model.ids import ItemId, Token
from redrive.model.item import Item, Lease

if TYPE_CHECKING:
    from redrive.broker.core import Core

_T = TypeVar("_T")
_Name = TypeVar("_Name", ItemId, Token)


class CommitCalls(msgspec.Struct, frozen=True):
    """The effect that commits calls. Its answer is the list of their results."""

    calls: Sequence[Call]


class TimedCommit(msgspec.Struct, frozen=True):
    """The effect that commits one call. Its answer is the `Commit`: the result, and the instant of the transaction."""

    call: Call


class ReadQuery(msgspec.Struct, frozen=True):
    """The effect that answers a query."""

    query: Query
    is_internal: bool = False
    """True if the answer is not shown to the caller: it has the rules of redaction, and needs no permission."""


class WaitForQueue(msgspec.Struct, frozen=True):
    """The effect that waits until something may be leasable in the queue, or until an instant; True if it was woken.

    `sequence` is that of `Notifier.sequence` before the queue was found empty: an arrival since then ends the wait.
    """

    queue: str
    sequence: int
    until: Instant
    next_at: Instant | None
    """The instant at which the store expects something to become leasable."""


class OnStore(msgspec.Struct, frozen=True):
    """The effect that performs another effect on another store of the program."""

    store: str
    effect: CommitCalls | ReadQuery


class GiveTurn(msgspec.Struct, frozen=True):
    """The effect that yields to other tasks of the event loop. It does nothing in a thread."""


Effect = CommitCalls | TimedCommit | ReadQuery | WaitForQueue | OnStore | GiveTurn
Flow = Generator[Effect, Any, _T]


def raise_if_refused(result: Any) -> Any:
    """Return the result, or raise it if it is a refusal."""
    if isinstance(result, RedriveError):
        raise result
    return result


def commit_call(call: StoreCall[_T]) -> Flow[_T]:
    """Commit one call and return its result; raise if it was refused."""
    results = yield CommitCalls((call,))  # type: ignore[arg-type]  # `Call` has all of them; a test checks it
    result: _T = raise_if_refused(results[0])
    return result


def commit_calls(calls: Sequence[Call]) -> Flow[Sequence[Any]]:
    """Commit calls together. An error is not raised, but the result of each call that it affects."""
    try:
        results: Sequence[Any] = (yield CommitCalls(calls)) if calls else ()
    except RedriveError as error:
        return [error] * len(calls)
    return results


def run_query(query: StoreQuery[_T]) -> Flow[_T]:
    """Answer one query."""
    answer: _T = yield ReadQuery(query)  # type: ignore[arg-type]  # as above
    return answer


def read_items(ids: Sequence[ItemId]) -> Flow[list[Item | None]]:
    """Read items with as few queries as their size allows."""
    return (yield from _read_each(GetItems, ids))


def read_leases(tokens: Sequence[Token]) -> Flow[list[Lease | None]]:
    """Read leases with as few queries as their size allows. One that is lost is None."""
    return (yield from _read_each(GetLeases, tokens))


def _read_each(
    query_of: Callable[[tuple[_Name, ...]], StoreQuery[tuple[_T | None, ...]]], names: Sequence[_Name]
) -> Flow[list[_T | None]]:
    found: list[_T | None] = []
    while len(found) < len(names):
        found += yield from run_query(query_of(tuple(names[len(found) :])))
    return found


def wait_until(core: Core, until: Instant) -> Flow[None]:
    """Wait until an instant. May return earlier, as after a commit of another process."""
    name = "# time"  # no queue can have this name
    yield WaitForQueue(name, core.notify.sequence(name), until, None)


def run(core: Core, flow: Flow[_T]) -> _T:
    """Drive a flow to its end in this thread. If it raises or is interrupted, return the leases of its last answer."""
    answer: Any = None
    try:
        effect = next(flow)
        while True:
            try:
                answer = perform_effect(core, effect)
            except RedriveError as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as end:
        result: _T = end.value
        return result
    except BaseException:
        core.committer.give_up(answer)
        flow.close()
        raise


def perform_effect(core: Core, effect: Effect) -> Any:
    """Perform an effect of a flow in this thread, and return the answer."""
    match effect:
        case CommitCalls(calls):
            return core.committer.commit(calls)
        case TimedCommit(call):
            return core.committer.transact((call,))
        case ReadQuery(query):
            return core.read(query)
        case WaitForQueue():
            return core.notify.wait(effect)
        case OnStore(store, inner):
            return perform_effect(shielded(core.stores.at, store), inner)
        case GiveTurn():
            return None
