"""Leases of items by id."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker
from redrive.contract.admin_calls import DeleteQueue, Hold, SetPaused
from redrive.contract.item_calls import Complete, LeaseByIds, LeaseItems, ReturnLease, Settle
from redrive.contract.queries import GetLease, ListWorkerLeases
from redrive.errors import (
    InvalidDuration,
    InvalidInput,
    ItemActive,
    ItemHeld,
    ItemNotFound,
    LeaseLost,
    QueuePaused,
    WrongStatus,
)
from redrive.model.duration import SECOND
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Lease, Settled, Status
from redrive.model.judge import OutcomeKind, RetryVerdict
from redrive.model.state_machine import Verb
from redrive.testing.conformance.actions import dead_queue, kill, places, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StoreSuite, put
from redrive.testing.fake_clock import FakeClock

UNKNOWN = ItemId("0" * 31 + "1")


def lease_by_ids(direct: StoreDriver, *ids: ItemId, **options: Any) -> tuple[Any, ...]:
    """Lease these items, and return the result of each."""
    results: tuple[Any, ...] = direct.do(LeaseByIds(ids, **options))
    return results


def run(direct: StoreDriver, id: ItemId, **options: Any) -> Lease:
    """Lease one item by its id."""
    (lease,) = lease_by_ids(direct, id, **options)
    assert isinstance(lease, Lease), lease
    return lease


def fail(direct: StoreDriver, lease: Lease) -> Settled:
    """Fail a delivery, with a retry after one minute."""
    verdict = RetryVerdict(60 * SECOND, Status.FAILED)
    settled = direct.do(Settle(lease.token, OutcomeKind.FAILED, verdict, direct.version(lease.queue)))
    assert isinstance(settled, Settled), settled
    return settled


class LeaseByIdConformance(StoreSuite):
    """Items that can be leased by id, and their leases."""

    def test_named_item_is_leased_before_those_in_front_of_it(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=30 * SECOND)
        first, second, third = direct.put(b"a", b"b", b"c")
        put_at = direct.clock.now()
        now = direct.clock.advance("1s")
        lease = run(direct, second, worker="w1")
        assert (lease.id, lease.queue, lease.payload, lease.worker) == (second, "jobs", b"b", "w1")
        assert (lease.put_at, lease.leased_at, lease.first_leased_at) == (put_at, now, now)
        assert (lease.deadline, lease.dead_reason) == (now + 30 * SECOND, None)
        assert lease.counters == Counters(deliveries=1, attempts=1)
        item = direct.get(second)
        assert (item.status, item.worker, item.history) == (Status.ACTIVE, "w1", ())
        assert [each.id for each in direct.lease(limit=3)] == [first, third]
        assert direct.stats().active == 3

    def test_token_is_as_good_as_any(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        lease = run(direct, id, worker="w1")
        assert direct.read(GetLease(lease.token)) == lease
        assert direct.read(ListWorkerLeases("w1")) == (lease,)
        assert direct.do(Complete(lease.token)).status is None
        assert isinstance(direct.do(Complete(lease.token)), LeaseLost)
        assert places(direct.stats()) == {}

    def test_failed_item_is_leased_before_its_next_attempt(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        first = direct.take()
        fail(direct, first)
        lease = run(direct, id)
        assert lease.counters == Counters(deliveries=2, attempts=2, failures=1)
        assert lease.first_leased_at == first.first_leased_at
        assert (places(direct.stats()), len(direct.get(id).history)) == ({"active": 1}, 1)
        assert fail(direct, lease).counters.failures == 2

    def test_scheduled_item_is_leased_before_its_time(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a", delay=60 * SECOND)
        assert run(direct, id).id == id
        direct.clock.advance("1h")
        assert list(direct.lease(ignore_overdue=True)) == []

    def test_returned_item_waits_for_its_time_again(self, direct: StoreDriver) -> None:
        direct.queue()
        (failed,) = direct.put(b"a")
        fail(direct, direct.take())
        (scheduled,) = direct.put(b"b", delay=30 * SECOND)
        for id, wait in ((failed, 60), (scheduled, 30)):
            settled = direct.do(ReturnLease(run(direct, id).token))
            assert (settled.status, settled.ready_at) == (Status.PENDING, direct.clock.now() + wait * SECOND)
        assert list(direct.lease(limit=2)) == []
        direct.clock.advance("60s")
        assert [lease.id for lease in direct.lease(limit=2)] == [scheduled, failed]

    def test_results_are_in_the_order_of_the_ids(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("mails", lease_timeout=5 * SECOND)
        ids = direct.put(*[b"a"] * 10)
        (mail,) = direct.put(b"m", queue="mails")
        asked = (*ids[::-1], UNKNOWN, mail, *ids[:2])
        results = lease_by_ids(direct, *asked)
        assert [result.id for result in results] == list(asked)
        assert [type(result) for result in results] == [Lease] * 10 + [ItemNotFound, Lease] + [ItemActive] * 2
        assert results[11].deadline == direct.clock.now() + 5 * SECOND
        assert len({lease.token for lease in results if isinstance(lease, Lease)}) == 11
        assert (direct.stats().active, direct.stats("mails").active) == (10, 1)

    def test_item_that_two_ids_mean_is_leased_once(self, broker: Broker) -> None:
        dead_queue(broker)
        settled = kill(broker)
        assert settled.source_id is not None
        lease, *refusals = broker.lease_by_id([settled.source_id, settled.id, settled.source_id], worker="w1")
        assert isinstance(lease, Lease)
        assert lease.id == settled.id
        for refusal in refusals:
            assert isinstance(refusal, ItemActive)
            assert (refusal.id, refusal.worker) == (settled.id, "w1")
        assert broker.stats("morgue").active == 1

    def test_lease_timeout_may_be_given(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=30 * SECOND)
        short, long = direct.put(b"a", b"b")
        assert run(direct, short, timeout=SECOND).deadline == direct.clock.now() + SECOND
        assert run(direct, long, timeout=90 * SECOND).deadline == direct.clock.now() + 90 * SECOND

    @pytest.mark.parametrize("timeout", [1, 90])
    def test_lease_that_runs_out_is_lost(self, direct: StoreDriver, broker: Broker, timeout: int) -> None:
        direct.queue(lease_timeout=30 * SECOND)
        (id,) = direct.put(b"a")
        run(direct, id, timeout=timeout * SECOND)
        direct.clock.advance(f"{timeout - 1}s")
        assert broker.run_maintenance().lost == 0
        direct.clock.advance("1s")
        assert broker.run_maintenance().lost == 1
        assert direct.get(id).counters == Counters(deliveries=1, attempts=1, losses=1)

    def test_dead_letter_in_a_dead_queue_is_leased_as_the_queue_would_lease_it(self, broker: Broker) -> None:
        dead_queue(broker)
        id = kill(broker).id
        lease = broker.lease_by_id(id)
        assert (lease.dead_reason, broker.stats("morgue").dead_letters) == (None, 1)
        assert broker.release(lease).status == "pending"

    def test_feed_tells_of_leases_where_that_is_asked_for(self, broker: Broker) -> None:
        broker.create_queue("jobs", feed=["leased"])
        id = broker.put("jobs", 1).id
        broker.lease_by_id(id)
        assert [(entry.kind, entry.id) for entry in broker.feed().entries] == [(FeedKind.LEASED, id)]

    def test_lease_by_id_comes_before_leases_of_the_same_batch(self, direct: StoreDriver) -> None:
        direct.queue()
        first, second = direct.put(b"a", b"b")
        leased, (lease,), (receipt,) = direct.commit(LeaseItems("jobs", 9), LeaseByIds((first,)), put(b"c")).results
        assert (lease.id, [each.id for each in leased.leases]) == (first, [second, receipt.id])

    def test_item_that_is_put_or_returned_in_the_same_batch_is_leased(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        held = direct.take()
        (lease,), _ = direct.commit(LeaseByIds((id,)), ReturnLease(held.token)).results
        assert lease.counters == Counters(deliveries=2, attempts=1)

    def test_other_workers_are_not_kept_waiting(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = [receipt.id for receipt in broker.put_many("jobs", range(20))]
        leases = broker.lease_by_id(ids[5:15])
        assert values(lease for lease in leases if isinstance(lease, Lease)) == list(range(5, 15))
        assert values(take_all(broker)) == [*range(5), *range(15, 20)]


class LeaseByIdRefusals(StoreSuite):
    """Items that cannot be leased by id, and their refusals."""

    def refusal_of(self, direct: StoreDriver, id: ItemId, **options: Any) -> Any:
        """Return the refusal of one id, and check that nothing has changed."""
        before, stats = direct.get(id), direct.stats()
        (refusal,) = lease_by_ids(direct, id, **options)
        assert (direct.get(id), direct.stats()) == (before, stats)
        return refusal

    def test_active_item_names_its_worker(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=SECOND)
        (id,) = direct.put(b"a")
        direct.lease(worker="w1")
        direct.clock.advance("1h")
        refusal = self.refusal_of(direct, id)
        assert isinstance(refusal, ItemActive)
        assert (refusal.id, refusal.worker) == (id, "w1")

    @pytest.mark.parametrize("include_dead", [False, True])
    def test_ended_items_say_what_they_are(self, direct: StoreDriver, include_dead: bool) -> None:
        direct.queue(keep_completed=60 * SECOND)
        ids = direct.put(b"completed", b"archived", b"moving")
        direct.do(Complete(direct.take().token))
        direct.bury(direct.take())
        direct.change(Verb.ARCHIVE, ids[1])
        direct.change(Verb.MOVE, ids[2], to="elsewhere@there")
        for id, status in zip(ids, ("completed", "archived", "moving"), strict=True):
            refusal = self.refusal_of(direct, id, include_dead=include_dead)
            assert isinstance(refusal, WrongStatus)
            assert (refusal.verb, refusal.status) == ("lease", status)

    def test_dead_item_is_refused_unless_it_is_asked_for(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        direct.bury(direct.take())
        refusal = self.refusal_of(direct, id)
        assert isinstance(refusal, WrongStatus)
        assert (refusal.status, refusal.allowed) == ("dead", ("pending", "failed"))
        assert "include_dead" in str(refusal)

    def test_held_item_names_who_holds_it(self, direct: StoreDriver) -> None:
        direct.queue()
        put_so, later = direct.put(b"a", held_by="breaker"), direct.put(b"b")
        direct.do(Hold(tuple(later), "ann"))
        for (id,), held_by in ((put_so, "breaker"), (later, "ann")):
            refusal = self.refusal_of(direct, id)
            assert isinstance(refusal, ItemHeld)
            assert (refusal.id, refusal.held_by) == (id, (held_by,))

    def test_expired_item_only_waits_for_its_end(self, direct: StoreDriver) -> None:
        direct.queue()
        ready, scheduled = (
            direct.put(b"a", expire_timeout=SECOND),
            direct.put(b"b", expire_timeout=SECOND, delay=SECOND),
        )
        direct.clock.advance("1s")
        for (id,) in (ready, scheduled):
            refusal = self.refusal_of(direct, id, include_dead=True)
            assert isinstance(refusal, WrongStatus)
            assert "expire deadline" in str(refusal)

    def test_paused_queue_gives_nothing(self, direct: StoreDriver) -> None:
        direct.queue()
        (pending, dead) = direct.put(b"a", b"b")
        direct.bury(run(direct, dead))
        direct.do(SetPaused("jobs", True, "ada"))
        for id in (pending, dead):
            refusal = self.refusal_of(direct, id, include_dead=True)
            assert isinstance(refusal, QueuePaused)
            assert refusal.queue == "jobs"
        direct.do(SetPaused("jobs", False, "ada"))
        assert run(direct, pending).id == pending

    def test_ids_of_a_deleted_queue_and_of_other_namespaces_are_not_found(
        self, direct: StoreDriver, open_broker: OpenBroker
    ) -> None:
        direct.queue()
        direct.queue("gone")
        (kept,), (gone,) = direct.put(b"a"), direct.put(b"b", queue="gone")
        direct.do(DeleteQueue("gone", 1, "ada"))
        with open_broker("elsewhere") as elsewhere:
            elsewhere.create_queue("jobs")
            assert [type(result) for result in elsewhere.lease_by_id([kept, gone])] == [ItemNotFound] * 2
        assert isinstance(lease_by_ids(direct, gone)[0], ItemNotFound)
        assert direct.get(kept).status is Status.PENDING

    def test_no_ids_are_no_leases(self, broker: Broker, direct: StoreDriver) -> None:
        assert lease_by_ids(direct) == ()
        assert broker.lease_by_id([]) == []

    def test_one_id_raises_what_refuses_it(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        id = broker.put("jobs", 1).id
        take(broker)
        with pytest.raises(ItemActive):
            broker.lease_by_id(id)
        with pytest.raises(ItemNotFound):
            broker.lease_by_id(UNKNOWN)

    def test_arguments_are_checked(self, broker: Broker) -> None:
        with pytest.raises(InvalidInput, match="1,000"):
            broker.lease_by_id([UNKNOWN] * 1001)
        with pytest.raises(InvalidInput):
            broker.lease_by_id("what")
        with pytest.raises(InvalidDuration):
            broker.lease_by_id(UNKNOWN, lease_timeout=0)
