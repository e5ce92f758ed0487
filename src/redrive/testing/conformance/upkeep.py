"""Upkeep as the store does it: what is overdue, when to look again, and the calls that settle it."""

from __future__ import annotations

from redrive.errors import ItemNotFound, LeaseLost, WrongStatus
from redrive.model.duration import SECOND
from redrive.model.failure import Failure
from redrive.model.ids import ItemId
from redrive.model.item import Status
from redrive.model.judge import Again, Dead, Ending
from redrive.model.reason import DeadReason
from redrive.store import (
    Expire,
    Extend,
    GetActive,
    GetOverdue,
    Hold,
    Leased,
    LeaseItems,
    NextDue,
    Promote,
    Settle,
    Unhold,
)
from redrive.testing.conformance.direct import Direct, DirectSuite


class UpkeepConformance(DirectSuite):
    """Sweeps, expiry and what falls due, call by call."""

    def test_lease_says_when_to_look_again(self, direct: Direct) -> None:
        direct.queue(lease_timeout=60 * SECOND)
        now = direct.clock.now()
        assert direct.do(LeaseItems("jobs", 1)).next_at is None
        direct.put(b"later", delay=90 * SECOND)
        assert direct.do(LeaseItems("jobs", 1)).next_at == now + 90 * SECOND
        direct.put(b"a")
        direct.take()
        assert direct.do(LeaseItems("jobs", 1)).next_at == now + 60 * SECOND
        assert direct.read(NextDue()) == now + 60 * SECOND

    def test_nothing_is_due_where_nothing_is(self, direct: Direct) -> None:
        direct.queue()
        assert direct.read(NextDue()) is None
        assert direct.read(GetOverdue()) == ()

    def test_overdue_lease_stops_leasing_until_it_is_swept(self, direct: Direct) -> None:
        direct.queue(lease_timeout=SECOND)
        direct.put(b"a", b"b")
        lost = direct.take()
        direct.clock.advance("1s")
        stopped: Leased = direct.do(LeaseItems("jobs", 1))
        assert (list(stopped.leases), stopped.overdue) == ([], True)
        (overdue,) = direct.read(GetOverdue("jobs"))
        assert (overdue.id, overdue.token, overdue.expired) == (lost.id, lost.token, False)
        sweep = Settle(lost.token, Ending.LOST, Again(), direct.version())
        settled, leased = direct.commit(sweep, LeaseItems("jobs", 1, swept=True)).results
        assert (settled.status, settled.counters.losses) == (Status.PENDING, 1)
        assert leased.leases[0].payload == b"b"

    def test_sweep_before_the_deadline_is_refused(self, direct: Direct) -> None:
        direct.queue(lease_timeout=SECOND)
        direct.put(b"a")
        lease = direct.take()
        assert isinstance(direct.do(Settle(lease.token, Ending.LOST, Again(), direct.version())), LeaseLost)
        assert direct.get(lease.id).counters.losses == 0

    def test_overdue_of_one_queue_leaves_others_out(self, direct: Direct) -> None:
        for name in ("jobs", "mails"):
            direct.queue(name, lease_timeout=SECOND)
            direct.put(b"a", queue=name)
            direct.take(name)
        direct.clock.advance("1s")
        assert [overdue.queue for overdue in direct.read(GetOverdue("mails"))] == ["mails"]
        assert {overdue.queue for overdue in direct.read(GetOverdue())} == {"jobs", "mails"}
        assert len(direct.read(GetOverdue(limit=1))) == 1

    def test_active_lease_is_found_by_its_token(self, direct: Direct) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        assert direct.read(GetActive(lease.token)) == lease
        deadline = direct.do(Extend(lease.token, 90 * SECOND))
        assert direct.read(GetActive(lease.token)).deadline == deadline == direct.clock.now() + 90 * SECOND

    def test_expired_items_are_never_leased_and_can_still_be_settled(self, direct: Direct) -> None:
        direct.queue()
        (id,) = direct.put(b"a", expire_timeout=SECOND)
        direct.put(b"b")
        dead = Dead(DeadReason.EXPIRED)
        assert isinstance(direct.do(Expire(id, dead, direct.version())), WrongStatus)
        direct.clock.advance("1s")
        assert direct.do(LeaseItems("jobs", 1)).overdue
        assert direct.lease(swept=True)[0].payload == b"b"
        (overdue,) = direct.read(GetOverdue())
        assert (overdue.id, overdue.token, overdue.expired) == (id, None, True)
        assert direct.do(Expire(id, dead, direct.version())).status is Status.DEAD
        assert isinstance(direct.do(Expire(id, dead, direct.version())), WrongStatus)
        assert isinstance(direct.do(Expire(ItemId("0" * 32), dead, direct.version())), ItemNotFound)

    def test_promotion_is_bounded(self, direct: Direct) -> None:
        for name in ("jobs", "mails"):
            direct.queue(name)
            direct.put(b"a", b"b", queue=name, delay=SECOND)
        direct.clock.advance("1s")
        assert [direct.do(Promote(3)), direct.do(Promote(3)), direct.do(Promote(3))] == [3, 1, 0]

    def test_held_failed_item_is_ready_in_its_place_once_unheld(self, direct: Direct) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        failure = Failure("ValueError", "boom")
        direct.do(Settle(direct.take().token, Ending.FAILED, Again(SECOND, Status.FAILED), direct.version(), failure))
        assert (direct.do(Hold((id,), "x")), direct.do(Hold((id,), "y"))) == (1, 0)
        direct.clock.advance("2s")
        direct.put(b"b")
        assert direct.do(Promote()) == 0
        assert (direct.do(Unhold("y")), direct.do(Unhold("x"))) == (0, 1)
        assert [lease.payload for lease in direct.lease(limit=5)] == [b"a", b"b"]
