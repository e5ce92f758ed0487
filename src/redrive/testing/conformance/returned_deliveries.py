"""Deliveries with a verdict that are not counted: returned ones, without an attempt, and extra ones that failed."""

from __future__ import annotations

import pytest

from redrive import Broker, Dead, RetryVerdict
from redrive.clock import Instant
from redrive.contract.admin_calls import Unhold, UpdateQueue
from redrive.contract.item_calls import Complete, LeaseByIds, Settle, StaleSettings
from redrive.contract.queries import ReadFeed
from redrive.errors import InvalidInput, LeaseLost
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.failure import failure_from_fields
from redrive.model.feed import FeedKind
from redrive.model.item import Counters, Lease, Settled, Status
from redrive.model.judge import OutcomeKind, Verdict
from redrive.model.queue import QueueSettings
from redrive.testing.conformance.suite import StoreDriver, StoreSuite

REFUSED = failure_from_fields("TooManyRequests", "come back later")


def _return(lease: Lease, version: int, verdict: Verdict | None = None, note: str | None = "gate") -> Settle:
    return Settle(lease.token, OutcomeKind.RETURNED, verdict or RetryVerdict(), version, REFUSED, note)


class ReturnedDeliveryConformance(StoreSuite):
    """Deliveries that are settled as RETURNED."""

    def test_attempt_and_failure_are_not_counted(self, direct: StoreDriver) -> None:
        direct.queue(max_attempts=1)
        (id,) = direct.put(b"a")
        for delivery in (1, 2, 3):
            settled = direct.do(_return(direct.take(), direct.version()))
            assert settled == Settled(id, "jobs", Status.PENDING, Counters(delivery), direct.clock.now())
        assert (direct.stats().failed_total, direct.stats().pending) == (0, 1)

    def test_failures_before_it_stay_counted(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        failed = Settle(direct.take().token, OutcomeKind.FAILED, RetryVerdict(), direct.version(), REFUSED)
        assert direct.do(failed).counters == Counters(1, 1, 1)
        assert direct.do(_return(direct.take(), direct.version())).counters == Counters(2, 1, 1)
        assert direct.stats().failed_total == 1

    def test_extra_failure_is_an_attempt_and_leaves_the_failures_as_they_are(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        later = RetryVerdict(SECOND, Status.FAILED)
        extra = Settle(direct.take().token, OutcomeKind.EXTRA_FAILED, later, direct.version(), REFUSED, "again")
        due = direct.clock.now() + SECOND
        assert direct.do(extra) == Settled(id, "jobs", Status.FAILED, Counters(1, 1, 0), Instant(due))
        (entry,) = direct.get(id).history
        assert (entry.event, entry.failure, entry.note) == ("failed", REFUSED, "again")
        (told,) = direct.read(ReadFeed(kinds=(FeedKind.FAILED,))).entries
        assert (told.id, told.title) == (id, REFUSED.title)
        assert (direct.stats().failed_total, direct.stats().failed) == (1, 1)

    def test_item_can_die_of_an_extra_failure(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        dead = Dead(DeadReason.POLICY)
        settled = direct.do(Settle(direct.take().token, OutcomeKind.EXTRA_FAILED, dead, direct.version(), REFUSED))
        assert (settled.status, settled.counters, settled.dead_reason) == (Status.DEAD, Counters(1, 1), "policy")
        assert direct.get(id).deaths[-1].cause.title == REFUSED.title
        assert (direct.stats().failed_total, direct.stats().dead_total) == (1, 1)

    def test_history_and_feed_have_the_failure_and_the_note(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        direct.do(_return(direct.lease(worker="w1")[0], direct.version()))
        (entry,) = direct.get(id).history
        assert (entry.event, entry.failure, entry.note, entry.worker) == ("returned", REFUSED, "gate", "w1")
        assert direct.get(id).last_failure == REFUSED
        (told,) = direct.read(ReadFeed(kinds=(FeedKind.RETURNED,))).entries
        assert (told.id, told.queue, told.title) == (id, "jobs", REFUSED.title)

    def test_item_goes_to_the_tail_after_its_delay(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b", b"c")
        leases = direct.lease(limit=2)
        direct.do(_return(leases[0], direct.version()))
        direct.do(_return(leases[1], direct.version(), RetryVerdict(SECOND)))
        assert [lease.payload for lease in direct.lease(limit=5)] == [b"c", b"a"]
        direct.clock.advance("1s")
        assert [lease.payload for lease in direct.lease(limit=5)] == [b"b"]

    def test_returned_item_may_be_held(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        settled = direct.do(_return(direct.take(), direct.version(), RetryVerdict(held_by=("breaker",))))
        assert (settled.counters, direct.get(id).lasting_holders) == (Counters(1), ("breaker",))
        assert (list(direct.lease()), direct.do(Unhold("breaker")), direct.take().id) == ([], 1, id)

    @pytest.mark.parametrize("verdict", [Dead(), RetryVerdict(0, Status.FAILED)], ids=["dead", "failed"])
    def test_no_other_verdict_can_follow(self, direct: StoreDriver, verdict: Verdict) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        assert isinstance(direct.do(_return(lease, direct.version(), verdict)), InvalidInput)
        assert isinstance(direct.do(Complete(lease.token)), Settled)

    def test_it_is_fenced_by_version_and_token(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease, version = direct.take(), direct.version()
        direct.do(UpdateQueue("jobs", QueueSettings(max_losses=7), version, "ada"))
        assert isinstance(direct.do(_return(lease, version)), StaleSettings)
        assert isinstance(direct.do(_return(lease, direct.version())), Settled)
        assert isinstance(direct.do(_return(lease, direct.version())), LeaseLost)

    @pytest.mark.parametrize("verdict", [Dead(), RetryVerdict(held_by=("breaker",))], ids=["dead", "retry"])
    def test_item_that_was_leased_although_it_is_dead_is_dead_again(
        self, direct: StoreDriver, broker: Broker, verdict: Verdict
    ) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        direct.bury(direct.take())
        before = direct.get(id)
        (lease,) = direct.do(LeaseByIds((id,), include_dead=True))
        settled = direct.do(_return(lease, direct.version(), verdict))
        assert (settled.status, settled.counters) == (Status.DEAD, Counters(2, 1))
        after = direct.get(id)
        assert (after.deaths, after.held_by, after.history[-1].event) == (before.deaths, (), "returned")
        assert (direct.stats().dead_total, broker.count(queue="jobs")) == (1, 1)
