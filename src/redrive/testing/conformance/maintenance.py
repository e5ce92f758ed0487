"""Maintenance: retention of dead, archived and completed items, and the calls that process overdue items."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.clock import Instant
from redrive.contract.admin_calls import Hold, Unhold
from redrive.contract.item_calls import Complete, Extend, Leased, LeaseItems, ReturnLease, Settle
from redrive.contract.maintenance_calls import Expire, Promote
from redrive.contract.queries import GetLease, GetLeases, GetNextDue, GetOverdue
from redrive.errors import ItemNotFound, LeaseLost, WrongStatus
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.failure import Failure
from redrive.model.ids import ItemId, make_token, parse_id
from redrive.model.item import Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict
from redrive.model.state_machine import Verb
from redrive.testing.conformance.actions import dead_queue, die, found, kill, places, take
from redrive.testing.conformance.suite import StoreDriver, StoreSuite, Suite
from redrive.testing.fake_clock import FakeClock


class RetentionOfTheDeadConformance(Suite):
    """`archive_after` and `keep_archived`, and the reports of retention."""

    def test_dead_letters_are_archived_when_their_time_has_come(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", archive_after="1h")
        die(broker, 2)
        clock.advance("59m")
        kill(broker, "late")
        broker.run_maintenance()
        assert places(broker.stats("jobs")) == {"dead": 3}
        clock.advance("1m")
        broker.run_maintenance()
        assert places(broker.stats("jobs")) == {"dead": 1, "archived": 2}
        assert found(broker, status="archived", words="boom") == [0, 1]
        assert [group.count for group in broker.groups()] == [1]
        entries = broker.feed(kinds=["archived"]).entries
        assert [(entry.actor, entry.queue) for entry in entries] == [("retention", "jobs")] * 2

    def test_archiving_by_itself_is_audited(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", archive_after="1h")
        ids = die(broker, 2)
        clock.advance("1h")
        broker.run_maintenance()
        entries = [entry for entry in broker.audit() if entry.actor == "retention"]
        assert {entry.verb for entry in entries} == {"archive"}
        assert sum(entry.count for entry in entries) == 2
        assert {id for entry in entries for id in entry.ids} == set(ids)

    def test_queue_in_which_it_lies_decides(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue", archive_after="1h")
        broker.create_queue("jobs", dead_queue="morgue", archive_after="1m")
        dead = kill(broker, "x")
        other = broker.put("morgue", "no dead letter")
        clock.advance("59m")
        broker.run_maintenance()
        assert broker.get(dead.id).status == "pending"
        clock.advance("1m")
        broker.run_maintenance()
        assert broker.get(dead.id).status == "archived"
        assert broker.get(other.id).status == "pending"
        assert broker.restore(dead.id).status == "pending"

    def test_active_dead_letter_is_left_alone(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker, archive_after="1h")
        kill(broker, "x")
        lease = take(broker, "morgue", lease_timeout="1d")
        clock.advance("2h")
        broker.run_maintenance()
        assert broker.get(lease.id).status == "active"
        broker.complete(lease)

    def test_archived_items_are_removed_when_their_time_is_over(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_archived="2h")
        ids = die(broker, 2)
        clock.advance("1h")
        broker.archive(ids[0])
        clock.advance("59m")
        broker.run_maintenance()
        assert found(broker, status="archived") == [0]
        clock.advance("1m")
        broker.run_maintenance()
        with pytest.raises(ItemNotFound):
            broker.get(ids[0])
        assert (found(broker, status="archived"), found(broker)) == ([], [1])
        (entry,) = broker.feed(kinds=["removed"]).entries
        assert (entry.actor, entry.id) == ("retention", ids[0])
        assert ("retention", 1) in [(row.actor, row.count) for row in broker.audit()]

    def test_archived_first_and_removed_later(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker, archive_after="1h", keep_archived="3h")
        die(broker, 3)
        seen = []
        for _ in range(4):
            clock.advance("1h")
            broker.run_maintenance()
            broker.run_maintenance()
            seen.append(places(broker.stats("morgue")))
        assert seen == [{"archived": 3}, {"archived": 3}, {}, {}]

    def test_what_was_removed_by_keep_dead_is_told(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_dead="1h")
        (id,) = die(broker, 1)
        clock.advance("1h")
        assert broker.run_maintenance().removed >= 1
        (entry,) = broker.feed(kinds=["removed"]).entries
        assert (entry.actor, entry.id, entry.queue) == ("retention", id, "jobs")

    def test_completed_items_go_without_a_word(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_completed="1h", feed="all")
        broker.put("jobs", 1)
        broker.complete(take(broker))
        clock.advance("1h")
        broker.run_maintenance()
        assert places(broker.stats("jobs")) == {}
        assert [entry.kind for entry in broker.feed().entries] == ["put", "leased", "completed"]

    def test_unset_means_for_ever(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 2)
        broker.archive(ids[0])
        clock.advance("3650d")
        broker.run_maintenance()
        assert (found(broker), found(broker, status="archived")) == ([1], [0])

    def test_changed_setting_holds_for_what_is_archived_already(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.archive(die(broker, 1))
        clock.advance("2h")
        broker.update_queue("jobs", keep_archived="1h")
        broker.run_maintenance()
        assert found(broker, status="archived") == []


class RetentionConformance(Suite):
    """`keep_completed` and `keep_dead`."""

    def test_completed_items_go_when_their_time_is_over(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_completed="1h")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.complete(lease)
        clock.advance("59m")
        broker.run_maintenance()
        assert broker.get(lease.id).status == "completed"
        clock.advance("2m")
        broker.run_maintenance()
        with pytest.raises(ItemNotFound):
            broker.get(lease.id)
        assert places(broker.stats("jobs")) == {}

    def test_dead_items_go_when_their_time_is_over_with_an_audit_row(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_dead="1h")
        ids = {kill(broker).id, kill(broker).id}
        clock.advance("59m")
        late = kill(broker).id
        broker.run_maintenance()
        assert places(broker.stats("jobs")) == {"dead": 3}
        clock.advance("2m")
        broker.run_maintenance()
        assert places(broker.stats("jobs")) == {"dead": 1}
        assert broker.get(late).status == "dead"
        entries = [entry for entry in broker.audit() if entry.queue == "jobs"]
        assert sum(entry.count for entry in entries) == 2
        assert {id for entry in entries for id in entry.ids} == ids

    def test_retention_is_that_of_the_queue_in_which_the_item_lies(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue", keep_dead="1d")
        broker.create_queue("jobs", dead_queue="morgue", keep_dead="1h")
        dead = kill(broker)
        clock.advance("2h")
        broker.run_maintenance()
        assert broker.get(dead.id).queue == "morgue"

    def test_dead_letters_in_a_dead_queue_go_by_its_retention(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue", keep_dead="1h")
        broker.create_queue("jobs", dead_queue="morgue")
        dead = kill(broker)
        other = broker.put("morgue", "no dead letter")
        clock.advance("59m")
        broker.run_maintenance()
        assert broker.get(dead.id).queue == "morgue"
        clock.advance("2m")
        broker.run_maintenance()
        with pytest.raises(ItemNotFound):
            broker.get(dead.id)
        assert broker.get(other.id).status == "pending"

    def test_changed_retention_holds_for_what_is_there(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        kill(broker)
        clock.advance("2h")
        broker.run_maintenance()
        assert places(broker.stats("jobs")) == {"dead": 1}
        broker.update_queue("jobs", keep_dead="1h")
        broker.run_maintenance()
        assert places(broker.stats("jobs")) == {}

    def test_retention_counts_from_the_death(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_dead="1h")
        broker.put("jobs", 1)
        clock.advance("1d")
        settled = broker.fail(take(broker, lease_timeout="10d"), "boom")
        clock.advance("59m")
        broker.run_maintenance()
        assert broker.get(settled.id).status == "dead"

    def test_redriven_item_is_kept(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_dead="1h")
        dead = kill(broker)
        broker.redrive(dead.id)
        clock.advance("2h")
        broker.run_maintenance()
        assert broker.get(dead.id).status == "pending"

    def test_done_by_hand_is_kept_like_any_completion(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_completed="1h")
        dead = kill(broker)
        broker.complete_items(dead.id)
        assert broker.get(dead.id).status == "completed"
        clock.advance("61m")
        broker.run_maintenance()
        assert places(broker.stats("jobs")) == {}

    def test_done_by_hand_is_removed_where_nothing_is_kept(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker)
        assert broker.complete_items(dead.id).status is None
        assert places(broker.stats("jobs")) == {}


class UpkeepConformance(StoreSuite):
    """Sweeps, expiry and due items, call by call."""

    def test_lease_says_when_to_look_again(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=60 * SECOND)
        now = direct.clock.now()
        assert direct.do(LeaseItems("jobs", 1)).next_at is None
        direct.put(b"later", delay=90 * SECOND)
        assert direct.do(LeaseItems("jobs", 1)).next_at == now + 90 * SECOND
        direct.put(b"a")
        direct.take()
        assert direct.do(LeaseItems("jobs", 1)).next_at == now + 60 * SECOND
        assert direct.read(GetNextDue()) == now + 60 * SECOND

    def test_nothing_is_due_where_nothing_is(self, direct: StoreDriver) -> None:
        direct.queue()
        assert direct.read(GetNextDue()) is None
        assert direct.read(GetOverdue()) == ()

    def test_overdue_lease_stops_leasing_until_it_is_swept(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=SECOND)
        direct.put(b"a", b"b")
        lost = direct.take()
        direct.clock.advance("1s")
        stopped: Leased = direct.do(LeaseItems("jobs", 1))
        assert (list(stopped.leases), stopped.overdue) == ([], True)
        (overdue,) = direct.read(GetOverdue("jobs"))
        assert (overdue.id, overdue.token, overdue.expired) == (lost.id, lost.token, False)
        sweep = Settle(lost.token, OutcomeKind.LOST, RetryVerdict(), direct.version())
        settled, leased = direct.commit(sweep, LeaseItems("jobs", 1, ignore_overdue=True)).results
        assert (settled.status, settled.counters.losses) == (Status.PENDING, 1)
        assert leased.leases[0].payload == b"b"

    def test_sweep_before_the_deadline_is_refused(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=SECOND)
        direct.put(b"a")
        lease = direct.take()
        assert isinstance(direct.do(Settle(lease.token, OutcomeKind.LOST, RetryVerdict(), direct.version())), LeaseLost)
        assert direct.get(lease.id).counters.losses == 0

    def test_overdue_of_one_queue_leaves_others_out(self, direct: StoreDriver) -> None:
        for name in ("jobs", "mails"):
            direct.queue(name, lease_timeout=SECOND)
            direct.put(b"a", queue=name)
            direct.take(name)
        direct.clock.advance("1s")
        assert [overdue.queue for overdue in direct.read(GetOverdue("mails"))] == ["mails"]
        assert {overdue.queue for overdue in direct.read(GetOverdue())} == {"jobs", "mails"}
        assert len(direct.read(GetOverdue(limit=1))) == 1

    def test_active_lease_is_found_by_its_token(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        assert direct.read(GetLease(lease.token)) == lease
        deadline = direct.do(Extend(lease.token, 90 * SECOND))
        assert direct.read(GetLease(lease.token)).deadline == deadline == direct.clock.now() + 90 * SECOND

    def test_leases_are_found_by_their_tokens_together(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b", b"c")
        first, second, third = (direct.take() for _ in range(3))
        direct.do(Complete(second.token))
        direct.do(ReturnLease(third.token))
        again = direct.take()
        unknown = make_token(*parse_id(first.id), 1)
        asked = (again.token, third.token, second.token, unknown, first.token, again.token)
        assert direct.read(GetLeases(asked)) == (again, None, None, None, first, again)
        assert direct.read(GetLeases(())) == ()

    @pytest.mark.parametrize("queue", ["jobs", "other"])
    @pytest.mark.parametrize("closes", [True, False], ids=["retry after", "retry"])
    def test_refusal_of_an_old_token_says_what_the_batch_made_of_the_item(
        self, direct: StoreDriver, queue: str, closes: bool
    ) -> None:
        direct.queue()
        direct.queue("other")
        (id,) = direct.put(b"a")
        old = direct.take().token
        direct.do(ReturnLease(old))
        direct.change(Verb.MOVE, id, to=queue)
        until = Instant(direct.clock.now() + SECOND) if closes else None
        token, version = direct.take(queue).token, direct.version(queue)
        failed = Settle(token, OutcomeKind.FAILED, RetryVerdict(), version, close_until=until)
        settled, refusal = direct.commit(failed, Extend(old)).results
        assert isinstance(refusal, LeaseLost)
        assert (settled.status, refusal.status) == (Status.PENDING, Status.PENDING)

    def test_expired_items_are_never_leased_and_can_still_be_settled(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a", expire_timeout=SECOND)
        direct.put(b"b")
        dead = Dead(DeadReason.EXPIRED)
        assert isinstance(direct.do(Expire(id, dead, direct.version())), WrongStatus)
        direct.clock.advance("1s")
        assert direct.do(LeaseItems("jobs", 1)).overdue
        assert direct.lease(ignore_overdue=True)[0].payload == b"b"
        assert direct.store.examine() == ()
        (overdue,) = direct.read(GetOverdue())
        assert (overdue.id, overdue.token, overdue.expired) == (id, None, True)
        assert direct.do(Expire(id, dead, direct.version())).status is Status.DEAD
        assert isinstance(direct.do(Expire(id, dead, direct.version())), WrongStatus)
        assert isinstance(direct.do(Expire(ItemId("0" * 32), dead, direct.version())), ItemNotFound)

    def test_promotion_is_bounded(self, direct: StoreDriver) -> None:
        for name in ("jobs", "mails"):
            direct.queue(name)
            direct.put(b"a", b"b", queue=name, delay=SECOND)
        direct.clock.advance("1s")
        assert [direct.do(Promote(3)), direct.do(Promote(3)), direct.do(Promote(3))] == [3, 1, 0]

    def test_held_failed_item_is_ready_in_its_place_once_unheld(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        failure = Failure("ValueError", "boom")
        direct.do(
            Settle(
                direct.take().token, OutcomeKind.FAILED, RetryVerdict(SECOND, Status.FAILED), direct.version(), failure
            )
        )
        assert (direct.do(Hold((id,), "x")), direct.do(Hold((id,), "y"))) == (1, 1)
        direct.clock.advance("2s")
        direct.put(b"b")
        assert direct.do(Promote()) == 0
        assert (direct.do(Unhold("y")), direct.get(id).status, direct.do(Unhold("x"))) == (1, "failed", 1)
        assert [lease.payload for lease in direct.lease(limit=5)] == [b"a", b"b"]
