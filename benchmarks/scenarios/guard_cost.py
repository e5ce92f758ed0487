"""The CPU time that rights take from a call of a named caller, where nothing has to be read: bind, sign, check, filter.

A request in JSON binds a broker to its caller and makes one call, as measured here; a store that answers at no cost
stands for the rest, which is the same without a token.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement
from redrive import AsyncBroker, connect
from redrive.auth.bound_broker import BoundBroker
from redrive.auth.caller import Caller, KnownLeases
from redrive.auth.principal import Principal, Role
from redrive.broker.flows.deliveries import new_item
from redrive.contract import Call
from redrive.contract.item_calls import Complete, Leased, LeaseItems, Put

QUEUE = "jobs"
REPEAT, ROUNDS = 20_000, 7
LIMIT = 5.0
CALLERS = {
    "everywhere": Principal("ann", frozenset({Role.CONSUMER})),
    "some": Principal("ann", frozenset({Role.CONSUMER}), queues=("jobs*", "mail*")),
    "admin": Principal("ann", frozenset({Role.ADMIN})),
}
WORDS = {"everywhere": "a consumer in all queues", "some": "a consumer in some queues", "admin": "an admin"}


class Answering(AsyncBroker):
    """Gives the same answer to every call, at once."""

    answer: Any = None

    async def submit(self, call: Call) -> Any:
        return self.answer


def measure(caller: str, kind: str, directory: Path) -> Measurement:
    with connect("memory://", maintenance=False) as broker:
        broker.create_queue(QUEUE)
        broker.put(QUEUE, 1)
        (lease,) = broker.lease(QUEUE)
        known = KnownLeases()
        known.add("default", [lease])
        calls: dict[str, tuple[Call, Any]] = {
            "put": (Put(QUEUE, (new_item(1),)), ()),
            "lease": (LeaseItems(QUEUE, 1, "host-1"), Leased((lease,), None, False)),
            "complete": (Complete(lease.token), None),
        }
        unbound = Answering(broker.core)
        call, unbound.answer = calls[kind]

        def bare() -> Coroutine[Any, Any, Any]:
            return unbound.submit(call)

        def guarded() -> Coroutine[Any, Any, Any]:
            return BoundBroker(unbound, Caller(CALLERS[caller], "default", broker.core, known)).submit(call)

        return Measurement({"microseconds": _microseconds(guarded) - _microseconds(bare)})


def _microseconds(made: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    """The CPU time of one call, in the best of some rounds."""
    return min(_round(made) for _ in range(ROUNDS)) / REPEAT * 1e6


def _round(made: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    started = process_time()
    for _ in range(REPEAT):
        try:
            made().send(None)
        except StopIteration:
            continue
        raise RuntimeError("the call waits for something")
    return process_time() - started


CASES = [
    Case(f"guard.{caller}.{kind}", "The cost of rights", f"{kind}, {WORDS[caller]}", partial(measure, caller, kind))
    for caller in CALLERS
    for kind in ("put", "lease", "complete")
]
BARS = [
    Bar(f"{case.title}: rights cost at most {LIMIT:g} µs of CPU", case.key, (), figure="microseconds", at_most=LIMIT)
    for case in CASES
]
