"""What is the memory store's own: the table it checks itself against, how sparing it is with wake-ups, its index."""

from __future__ import annotations

import pytest

from redrive.contract.admin_calls import SetPaused
from redrive.contract.item_calls import Complete, LeaseItems, Settle
from redrive.contract.maintenance_calls import Promote
from redrive.errors import InvalidInput, OutcomeUnknown
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.failure import Failure
from redrive.model.item import Settled, Status
from redrive.model.judge import Dead, OutcomeKind
from redrive.model.state_machine import TRANSITIONS, Verb, check_transition
from redrive.store import Store
from redrive.stores.memory import MemoryStore
from redrive.stores.rules.indexes import Index
from redrive.testing import FakeClock
from redrive.testing.conformance.suite import StoreDriver, put


@pytest.fixture
def direct() -> StoreDriver:
    clock = FakeClock()
    return StoreDriver(MemoryStore(clock), clock)


def test_memory_store_is_a_store() -> None:
    store: Store = MemoryStore()
    assert (store.name, store.namespace, store.poll_changes()) == ("memory", "default", ())
    assert store.durability().level == "none"


def test_every_transition_outside_the_table_is_refused() -> None:
    statuses = [None, *Status]
    for verb, (sources, targets) in TRANSITIONS.items():
        for before in statuses:
            for after in statuses:
                if before in sources and after in targets:
                    check_transition(verb, before, after)
                else:
                    with pytest.raises(AssertionError):
                        check_transition(verb, before, after)


def test_only_force_lets_a_verb_by_hand_change_an_active_item() -> None:
    check_transition(Verb.RETRY, Status.ACTIVE, Status.PENDING, forced=True)
    with pytest.raises(AssertionError):
        check_transition(Verb.EXPIRE, Status.ACTIVE, Status.DEAD, forced=True)


def test_change_that_the_table_forbids_fails_alone_and_changes_nothing(direct: StoreDriver) -> None:
    direct.queue()
    direct.put(b"a")
    lease = direct.take()
    before = direct.get(lease.id)
    forbidden = Settle(lease.token, OutcomeKind.EXPIRED, Dead(DeadReason.EXPIRED), direct.version())
    refusal, receipts = direct.commit(forbidden, put(b"b")).results
    assert isinstance(refusal, OutcomeUnknown)
    assert isinstance(receipts, tuple)
    assert direct.get(lease.id) == before
    stats = direct.stats()
    assert (stats.pending, stats.active, stats.failed_total) == (1, 1, 0)
    assert isinstance(direct.do(Complete(lease.token)), Settled)


def test_failure_without_a_verdict_is_refused(direct: StoreDriver) -> None:
    direct.queue()
    assert isinstance(direct.do(put(b"x", failure=Failure("ValueError", "boom"))), InvalidInput)
    assert direct.stats().put_total == 0


# The contract allows more arrivals than there are; this store tells exactly.


def test_only_what_may_be_leased_now_arrives(direct: StoreDriver) -> None:
    direct.queue()
    commit = direct.commit(put(b"a", b"b"), put(b"later", delay=SECOND), put(b"held", held_by="x"))
    assert commit.arrivals == {"jobs": 2}
    direct.clock.advance("1s")
    assert direct.commit(Promote()).arrivals == {"jobs": 1}
    assert direct.commit(Promote()).arrivals == {}


def test_time_after_the_next_one_is_not_told(direct: StoreDriver) -> None:
    direct.queue()
    assert direct.commit(put(b"a", delay=2 * SECOND)).arrivals == {"jobs": 0}
    assert direct.commit(put(b"b", delay=3 * SECOND)).arrivals == {}


def test_items_leased_in_the_same_batch_wake_nobody(direct: StoreDriver) -> None:
    direct.queue()
    assert direct.commit(put(b"a"), LeaseItems("jobs", 5)).arrivals == {}


def test_paused_queue_has_no_arrivals(direct: StoreDriver) -> None:
    direct.queue()
    assert direct.commit(SetPaused("jobs", True, "ada"), put(b"a", b"b")).arrivals == {}


def test_store_in_memory_takes_part_in_no_transaction(direct: StoreDriver) -> None:
    with pytest.raises(InvalidInput, match="no transaction"):
        direct.store.put_in_transaction(object(), put(b"a"))


def test_index_stays_small_and_in_order_while_names_come_and_go() -> None:
    index: Index[str] = Index()
    for n in range(5_000):
        index.add(f"n{n % 7}", (5_000 - n, n))
        index.discard(f"n{(n + 3) % 7}")
    assert len(index._heap) < 200
    names = index.until(5_000, 100)
    assert sorted(names) == sorted(set(names))
    assert len(names) == len(index)
    assert names[0] == index.first() == "n1"
    assert index.until(5_000, 2) == names[:2]
