"""Arrivals: a commit says where something may be leased now, so that whoever waits there is woken.

Too many are harmless, so these tests ask for what must be told, and never for more.
"""

from __future__ import annotations

from redrive.model.duration import SECOND
from redrive.model.failure import Failure
from redrive.model.item import Status
from redrive.model.judge import Again, Dead, Ending
from redrive.model.reason import DeadReason
from redrive.model.transitions import Verb
from redrive.store import Change, Commit, Promote, Return, SetPaused, Settle, Target, Unhold
from redrive.testing.conformance.direct import Direct, DirectSuite, put


def told(commit: Commit, queue: str = "jobs") -> int:
    """How many items arrived in the queue. The test fails if it is not named."""
    assert queue in commit.arrivals, f"nobody who waits for '{queue}' is woken: {commit.arrivals}"
    return commit.arrivals[queue]


class ArrivalConformance(DirectSuite):
    """Everything that makes an item leasable, and every new time at which one falls due."""

    def test_put_items_arrive(self, direct: Direct) -> None:
        direct.queue()
        assert told(direct.commit(put(b"a", b"b"), put(b"c"), put(b"later", delay=SECOND))) >= 3

    def test_unheld_items_arrive(self, direct: Direct) -> None:
        direct.queue()
        direct.put(b"a", b"b", held_by="x")
        assert told(direct.commit(Unhold("x"))) >= 2

    def test_item_that_fell_due_arrives(self, direct: Direct) -> None:
        direct.queue()
        direct.put(b"a", delay=SECOND)
        direct.clock.advance("1s")
        assert told(direct.commit(Promote())) >= 1

    def test_returned_item_arrives(self, direct: Direct) -> None:
        direct.queue()
        direct.put(b"a")
        assert told(direct.commit(Return(direct.take().token))) >= 1

    def test_new_time_to_wait_for_is_told(self, direct: Direct) -> None:
        direct.queue()
        told(direct.commit(put(b"a", delay=2 * SECOND)))
        told(direct.commit(put(b"b", delay=SECOND)))

    def test_time_of_a_retry_is_told(self, direct: Direct) -> None:
        direct.queue()
        direct.put(b"a")
        verdict = Again(SECOND, Status.FAILED)
        failed = Settle(direct.take().token, Ending.FAILED, verdict, direct.version(), Failure("ValueError", "boom"))
        told(direct.commit(failed))

    def test_time_to_wait_for_is_told_when_a_paused_queue_goes_on(self, direct: Direct) -> None:
        direct.queue()
        direct.put(b"a", delay=SECOND)
        direct.do(SetPaused("jobs", True, "ada"))
        told(direct.commit(SetPaused("jobs", False, "ada")))

    def test_items_of_a_paused_queue_arrive_when_it_goes_on(self, direct: Direct) -> None:
        direct.queue()
        direct.commit(SetPaused("jobs", True, "ada"), put(b"a", b"b"))
        assert list(direct.lease(limit=5)) == []
        assert told(direct.commit(SetPaused("jobs", False, "ada"))) >= 2

    def test_dead_item_arrives_in_its_dead_queue(self, direct: Direct) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue="morgue")
        direct.put(b"a")
        verdict = Dead(DeadReason.BURIED, "morgue")
        buried = Settle(direct.take().token, Ending.BURIED, verdict, direct.version())
        assert told(direct.commit(buried), "morgue") >= 1

    def test_redriven_item_arrives_where_it_came_from(self, direct: Direct) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue="morgue")
        direct.put(b"a")
        moved = direct.bury(direct.take(), "morgue")
        assert told(direct.commit(Change(Verb.REDRIVE, (Target(moved.id),), "ada"))) >= 1

    def test_immediate_retry_arrives_though_it_is_still_failed(self, direct: Direct) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        verdict = Again(0, Status.FAILED)
        failed = Settle(lease.token, Ending.FAILED, verdict, direct.version(), Failure("ValueError", "boom"))
        commit = direct.commit(failed)
        assert commit.results[0].status is Status.FAILED
        assert told(commit) >= 1
        assert direct.take().id == lease.id
