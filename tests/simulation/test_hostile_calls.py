"""Whatever a client sends, the store behind the guard answers with a result or a refusal, and is none the worse.

The guard stands where everybody may do everything, so that nothing is refused for want of rights.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.simulation.hostile import QUEUES, TAME, Mischief
from tests.sizes import THOROUGH

from redrive import Broker, Item, Lease, RedriveError, Status, connect
from redrive.auth.caller import Caller, KnownLeases
from redrive.auth.principal import UNAUTHENTICATED_ADMIN
from redrive.auth.result_filter import filter_result
from redrive.auth.store_call_authorization import authorize_calls
from redrive.broker.flows.export_import import encode_line
from redrive.contract import Call
from redrive.contract.item_calls import Leased
from redrive.contract.queries import FindItems
from redrive.errors import Closed, InvalidInput, NotFound, OutcomeUnknown, Overloaded, Refused, StoreError
from redrive.model.filter import Filter, Order
from redrive.model.operation import Operation
from redrive.server.validation.dispatch import validate_call
from redrive.testing import FakeClock
from redrive.wire.result_codec import encode, encode_results

RUNS, STEPS = (500, 1000) if THOROUGH else (8, 600)
RECOUNT_EVERY = 100
COMMITTED = get_args(Call)
REFUSED = (Refused, NotFound, InvalidInput)
BROKEN = (StoreError, OutcomeUnknown, Overloaded, Closed)


class Run:
    """A program that works, and a client that means harm, on one store."""

    def __init__(self, url: str, random: Random, tally: Counter[str]) -> None:
        self.random, self.tally = random, tally
        self.clock = FakeClock()
        self.broker: Broker = connect(url, clock=self.clock, maintenance=False, durability="relaxed")
        self.caller = Caller(UNAUTHENTICATED_ADMIN, "default", self.broker.core, KnownLeases())
        self.mischief = Mischief(random)
        self.leases: list[Lease] = []
        self.make_queues()

    def make_queues(self) -> None:
        for name in reversed(QUEUES):
            with contextlib.suppress(REFUSED):
                self.broker.create_queue(name, **({} if name == "morgue" else {"dead_queue": "morgue"}))

    def work(self) -> None:
        """What a program does."""
        queue = self.random.choice(QUEUES)
        match self.random.randrange(7):
            case 0:
                self.mischief.ids.append(self.broker.put(queue, {"some": "payload"}, headers={"a": "b"}).id)
            case 1:
                self.leases += self.broker.lease(queue, limit=3, worker="ann")
            case 2 if self.leases:
                lease = self.leases.pop()
                ending = self.random.choice(("complete", "bury", "release"))
                getattr(self.broker, ending)(lease)
            case 3 if self.leases:
                self.mischief.ids.append(self.broker.fail(self.leases.pop(), "it went wrong").id)
            case 4:
                self.clock.advance(self.random.choice((1, 61, 3600, 86_400)))
            case 5:
                self.broker.run_maintenance()
            case 6:
                key = self.random.choice(TAME["idempotency_key"])
                self.broker.put_failed(queue, {"a": 1}, "it went wrong", idempotency_key=key)

    def attack(self) -> None:
        """What a client does that means harm."""
        self.mischief.tokens = [lease.token for lease in self.leases[-20:]]
        self.mischief.now = self.clock.now()
        call = self.mischief.call()
        now = self.broker.core.clock.now()
        flow = authorize_calls(self.caller, (call,), lambda call: validate_call(call, now))
        (made,) = self.broker.run_flow(flow)
        name = type(call).__name__
        if isinstance(made, RedriveError):
            assert isinstance(made, InvalidInput), (call, made)
            self.tally["refused by the guard"] += 1
            return
        result = self.carried_out(made)
        if isinstance(result, RedriveError):
            self.tally["refused by the store"] += 1
            return
        self.tally["let in"] += 1
        self.tally[name] += 1
        self.learn(result)
        shown = filter_result(self.caller, call, result)
        encode(encode_results((call,), (shown,)) if isinstance(call, COMMITTED) else shown)

    def carried_out(self, call: Any) -> Any:
        """The result. Whatever is raised that is no refusal fails the test, as does a store that says it failed."""
        store = self.broker.core.store
        if isinstance(call, COMMITTED):
            result = store.commit([call]).results[0]
        else:
            try:
                result = store.read(call)
            except RedriveError as refusal:
                result = refusal
        assert not isinstance(result, BROKEN), (call, result)
        return result

    def learn(self, result: Any) -> None:
        if isinstance(result, Leased):
            self.leases += result.leases
        if isinstance(result, Operation):
            self.mischief.operations.append(result.id)
        for each in result if isinstance(result, tuple) else (result,):
            id = getattr(each, "id", None)
            if isinstance(id, str) and len(id) == 32 and not isinstance(result, Operation):
                self.mischief.ids.append(id)
        del self.mischief.ids[:-50]

    def recount(self) -> None:
        """Everything is in one place, and can be read."""
        self.mischief.versions = [1]
        for queue in self.broker.list_queues():
            self.mischief.versions.append(queue.version)
            stats = self.broker.stats(queue.name)
            for status in Status:
                found = list(self.found(Filter(status=status, queue=queue.name)))
                counted = stats.dead_letters if status is Status.DEAD else getattr(stats, status.value)
                assert len(found) == counted, (queue.name, status)
                for item in found:
                    encode_line(item)
                self.mischief.items = [*self.mischief.items, *found][-20:]
        self.make_queues()

    def found(self, where: Filter) -> Iterator[Item]:
        cursor = None
        while True:
            page = self.broker.core.store.read(FindItems(where, Order.OLDEST, 1000, cursor))
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                return

    def live_on(self) -> None:
        """An ordinary item still lives an ordinary life."""
        broker = self.broker
        broker.create_queue("afterwards", retry={"attempts": 2}, keep_completed="1h")
        id = broker.put("afterwards", {"still": "here"}).id
        for error in ("once", "twice"):
            (lease,) = broker.lease("afterwards")
            broker.fail(lease, error)
        assert broker.get(id).status is Status.DEAD
        broker.redrive(id)
        (lease,) = broker.lease("afterwards")
        assert lease.value == {"still": "here"}
        broker.complete(lease)
        assert broker.get(id).status is Status.COMPLETED
        for _ in range(5):
            broker.run_maintenance()

    def close(self) -> None:
        self.broker.close()


def run(url: str, seed: int, tally: Counter[str]) -> None:
    one = Run(url, Random(seed), tally)
    try:
        for step in range(STEPS):
            with contextlib.suppress(REFUSED):
                one.work()
            one.attack()
            if step % RECOUNT_EVERY == 0:
                one.recount()
        one.recount()
        one.live_on()
    finally:
        one.close()


@pytest.mark.timeout(600)
def test_hostile_calls_do_no_harm(place: Callable[[str], str], slower: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    tally: Counter[str] = Counter()

    @given(seed=st.integers(0, 2**32))
    @hypothesis_settings(max_examples=max(1, RUNS // slower), deadline=None)
    def runs(seed: int) -> None:
        with tempfile.TemporaryDirectory(prefix="redrive-") as folder:
            run(place(folder), seed, tally)

    runs()
    # A run in which nothing got through, or nothing was refused, proves nothing.
    for kind in ("let in", "refused by the guard", "refused by the store"):
        assert tally[kind] > RUNS // slower * STEPS / 20, tally
    # SetSourceQueue and the like hardly ever meet what they are for; most kinds of calls must have been carried out.
    assert sum(tally[kind.__name__] > 0 for kind in COMMITTED) >= len(COMMITTED) - 5, tally
