"""Dead items that are leased by id: completed, or dead again unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from redrive import Broker, Dead, DeadReason, Failure, RetryVerdict
from redrive.clock import Instant
from redrive.contract.admin_calls import ManualChange, ManualTarget
from redrive.contract.item_calls import Complete, NewItem, Put, Reply, ReturnLease, Settle
from redrive.contract.queries import GetLease, GetLeasedItem, GetOverdue, GetResult, ListWorkerLeases
from redrive.contract.replies import REPLY_TO
from redrive.errors import InvalidInput, LeaseLost
from redrive.model.duration import SECOND
from redrive.model.filter import Filter
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Item, Lease, Result, Settled, Status
from redrive.model.judge import OutcomeKind
from redrive.model.payload import JSON
from redrive.model.state_machine import Verb
from redrive.testing.conformance.actions import die, find_all, found, ids_of, places, take
from redrive.testing.conformance.lease_by_id import lease_by_ids, run
from redrive.testing.conformance.suite import StoreDriver, StoreSuite
from redrive.testing.fake_clock import FakeClock

KILLED = Failure("WorkerLost", "killed by signal 9")
YES = Result(b'"yes"', JSON)


def _settle(outcome_kind: OutcomeKind, **details: Any) -> Callable[[StoreDriver, Lease], Any]:
    def settle(direct: StoreDriver, lease: Lease) -> Any:
        verdict = Dead(DeadReason.MAX_ATTEMPTS, "nowhere", drop=True)
        return direct.do(Settle(lease.token, outcome_kind, verdict, direct.version(lease.queue), **details))

    return settle


def _sweep(direct: StoreDriver, lease: Lease) -> Any:
    direct.clock.advance("1h")
    return _settle(OutcomeKind.LOST)(direct, lease)


def _manually(verb: Verb, **details: Any) -> Callable[[StoreDriver, Lease], Any]:
    def change(direct: StoreDriver, lease: Lease) -> Any:
        target = ManualTarget(lease.id, Dead(to="nowhere"), direct.version(lease.queue), **details)
        return direct.do(ManualChange(verb, (target,), "ada", force=True))[0]

    return change


ENDS: dict[str, tuple[Callable[[StoreDriver, Lease], Any], str | None, Counters]] = {
    "failed": (_settle(OutcomeKind.FAILED, failure=KILLED), "failed", Counters(2, 2, 2)),
    "failed, not counted": (
        _settle(OutcomeKind.EXTRA_FAILED, failure=KILLED), "failed", Counters(2, 2, 1),
    ),
    "lost": (_sweep, "lost", Counters(2, 2, 1, 1)),
    "worker gone": (_settle(OutcomeKind.LOST, failure=KILLED, worker_is_gone=True), "lost", Counters(2, 2, 1, 1)),
    "released": (_settle(OutcomeKind.RELEASED, note="later"), "released", Counters(2, 2, 1)),
    "buried": (_settle(OutcomeKind.BURIED), "buried", Counters(2, 2, 1)),
    "returned": (lambda direct, lease: direct.do(ReturnLease(lease.token)), None, Counters(2, 1, 1)),
    "returned with a note": (
        lambda direct, lease: direct.do(ReturnLease(lease.token, "not now")), "returned", Counters(2, 1, 1),
    ),
    "failed manually": (_manually(Verb.FAIL, failure=KILLED), "failed", Counters(2, 2, 2)),
    "buried manually": (_manually(Verb.BURY), "buried", Counters(2, 2, 1)),
}  # fmt: skip
"""The ends of a delivery other than completion, with the event in the history and the counters after it."""
every_end = pytest.mark.parametrize("end", ENDS)
SETTINGS: dict[str, dict[str, Any]] = {
    "stays": {},
    "dead queue": {"dead_queue": "morgue"},
    "dropped": {"on_dead": "drop"},
}
"""Settings of a queue for items that die in it."""


def dead_item(broker: Broker, **options: Any) -> Item:
    """Return an item that is dead in `jobs`, by one failure."""
    broker.put("jobs", {"word": "unicorn"}, priority=9, **options)
    return broker.get(broker.fail(take(broker), ValueError("boom"), verdict=Dead(DeadReason.POLICY)).id)


def without_delivery(item: Item) -> Item:
    """Return a dead item without the fields that an unsuccessful delivery changes."""
    return msgspec.structs.replace(item, counters=Counters(), history=())


class LeasedDeadLetterConformance(StoreSuite):
    """A leased item that is still a dead letter."""

    def test_dead_item_is_leased_with_the_reason_of_its_death(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        dead = dead_item(broker)
        clock.advance("1m")
        lease = broker.lease_by_id(dead.id, include_dead=True, worker="w1")
        assert (lease.id, lease.value, lease.dead_reason) == (dead.id, {"word": "unicorn"}, DeadReason.POLICY)
        assert lease.counters == Counters(deliveries=2, attempts=2, failures=1)
        assert (lease.first_leased_at, lease.leased_at) == (dead.first_leased_at, clock.now())
        item = broker.get(dead.id)
        assert (item.status, item.worker, item.dead_reason, item.ended_at) == ("active", "w1", "policy", None)
        assert (item.deaths, item.history) == (dead.deaths, dead.history)

    def test_it_is_found_by_the_time_of_its_death(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        clock.advance("10s")
        lease, died_at = take(broker), clock.now()
        broker.fail(lease, "boom", final=True)
        broker.lease_by_id(lease.id, include_dead=True)
        for since, expected in ((died_at, [lease.id]), (died_at + 1, [])):
            assert ids_of(find_all(broker, where=Filter(status=Status.ACTIVE, since=Instant(since)))) == expected

    def test_every_query_tells_why_it_is_dead(self, direct: StoreDriver, broker: Broker) -> None:
        direct.queue(lease_timeout=SECOND)
        (id,) = direct.put(b"a")
        direct.bury(direct.take())
        lease = run(direct, id, worker="w1", include_dead=True)
        assert direct.read(GetLease(lease.token)) == lease
        assert direct.read(ListWorkerLeases("w1")) == (lease,)
        assert direct.read(GetLeasedItem(lease.token)) == direct.get(id)
        direct.clock.advance("1s")
        (overdue,) = direct.read(GetOverdue())
        assert (overdue.token, overdue.dead_reason) == (lease.token, DeadReason.BURIED)

    def test_it_stays_a_dead_letter_while_it_is_active(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        before = dead_item(broker)
        die(broker, 2, ValueError("boom"))
        letters, groups = ids_of(find_all(broker)), broker.groups()
        broker.lease_by_id(before.id, include_dead=True)
        assert (ids_of(find_all(broker)), broker.groups()) == (letters, groups)
        assert found(broker, words="unicorn") == found(broker, status="active") == [{"word": "unicorn"}]
        assert (broker.count(queue="jobs"), broker.count(reason="policy"), broker.count(status="any")) == (3, 1, 3)
        stats = broker.stats("jobs")
        assert (places(stats), stats.dead_letters, stats.dead_total) == ({"active": 1, "dead": 2}, 3, 3)

    @pytest.mark.parametrize("keep", [None, "1h"], ids=["removed", "kept"])
    def test_completed_it_is_no_longer_a_dead_letter(self, broker: Broker, direct: StoreDriver, keep: Any) -> None:
        broker.create_queue("jobs", **({} if keep is None else {"keep_completed": keep}))
        id = dead_item(broker).id
        others = die(broker, 2, ValueError("boom"))
        after = broker.feed().last
        lease = broker.lease_by_id(id, include_dead=True)
        settled = broker.complete(lease, result="fixed", keep_result="1h")
        assert (settled.status, settled.dead_reason) == (None if keep is None else "completed", None)
        assert ids_of(find_all(broker, order="oldest")) == others
        ((group,), stats) = (broker.groups(), broker.stats("jobs"))
        assert (group.count, stats.dead_letters, stats.completed_total) == (2, 2, 1)
        assert places(stats) == {"dead": 2} if keep is None else {"dead": 2, "completed": 1}
        assert [(entry.kind, entry.id) for entry in broker.feed(after=after).entries] == [("done", id)]
        kept = direct.read(GetResult(id))
        assert kept is not None
        assert kept.value == "fixed"
        if keep is not None:
            item = broker.get(id)
            assert (item.status, item.dead_reason, len(item.deaths)) == ("completed", None, 1)

    def test_many_are_completed_together(self, broker: Broker, direct: StoreDriver) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 12)
        leases = lease_by_ids(direct, *map(ItemId, ids[:10]), include_dead=True)
        results = direct.commit(*[Complete(lease.token) for lease in leases], *[Complete(leases[0].token)]).results
        assert [type(result) for result in results] == [Settled] * 10 + [LeaseLost]
        assert (places(broker.stats("jobs")), broker.stats("jobs").dead_letters) == ({"dead": 2}, 2)
        assert [group.count for group in broker.groups()] == [2]

    @every_end
    @pytest.mark.parametrize("settings", SETTINGS)
    def test_any_other_end_leaves_it_dead_as_it_was(
        self, broker: Broker, direct: StoreDriver, clock: FakeClock, end: str, settings: str
    ) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs")
        dead = dead_item(broker, expire_timeout="1m")
        die(broker, 2, ValueError("boom"))
        broker.update_queue("jobs", **SETTINGS[settings])
        letters, groups, stats = ids_of(find_all(broker)), broker.groups(), broker.stats("jobs")
        clock.advance("1m")
        ending, event, counters = ENDS[end]
        settled = ending(direct, run(direct, dead.id, include_dead=True))
        assert isinstance(settled, Settled), settled
        assert (settled.id, settled.queue, settled.status, settled.ready_at) == (dead.id, "jobs", Status.DEAD, None)
        assert (settled.dead_reason, settled.counters) == (DeadReason.POLICY, counters)
        item = broker.get(dead.id)
        assert without_delivery(item) == without_delivery(dead)
        assert (item.counters, item.history[:1]) == (counters, dead.history)
        assert [entry.event for entry in item.history[1:]] == ([] if event is None else [event])
        assert (ids_of(find_all(broker)), broker.groups()) == (letters, groups)
        after = broker.stats("jobs")
        assert (places(after), after.dead_letters, after.dead_total) == ({"dead": 3}, 3, 3)
        assert after.failed_total == stats.failed_total + (event == "failed")
        assert broker.audit(limit=1)[0].verb in ({"fail", "bury"} if "manually" in end else {"update_queue"})
        assert broker.stats("morgue").dead_letters == 0

    @every_end
    def test_what_was_dead_can_be_leased_redriven_and_undone_again(
        self, broker: Broker, direct: StoreDriver, clock: FakeClock, end: str
    ) -> None:
        broker.create_queue("jobs")
        dead = dead_item(broker)
        ENDS[end][0](direct, run(direct, dead.id, include_dead=True))
        assert run(direct, dead.id, include_dead=True).deliveries == 3
        clock.advance("1h")
        broker.run_maintenance()
        assert broker.redrive(dead.id).counters == Counters(deliveries=3, redrives=1)
        assert broker.stats("jobs").dead_letters == 0
        assert broker.undo(dead.id).dead_reason == "policy"
        assert (broker.stats("jobs").dead_letters, broker.get(dead.id).deaths) == (1, dead.deaths)

    def test_retry_verdict_does_not_revive_it(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        direct.bury(direct.take())
        lease = run(direct, id, include_dead=True)
        for verdict in (RetryVerdict(), RetryVerdict(0, Status.FAILED)):
            refusal = direct.do(Settle(lease.token, OutcomeKind.FAILED, verdict, direct.version()))
            assert isinstance(refusal, InvalidInput)
        loss = Settle(lease.token, OutcomeKind.LOST, RetryVerdict(), direct.version(), worker_is_gone=True)
        assert isinstance(direct.do(loss), InvalidInput)
        target = ManualTarget(id, RetryVerdict(), direct.version())
        (refusal,) = direct.do(ManualChange(Verb.FAIL, (target,), "ada", force=True))
        assert isinstance(refusal, InvalidInput)
        assert (direct.get(id).status, places(direct.stats())) == (Status.ACTIVE, {"active": 1})
        direct.bury(lease)
        assert isinstance(direct.do(loss), LeaseLost)

    def test_death_is_not_answered_again(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("replies")
        (receipt,) = direct.do(Put("jobs", (NewItem(b"1", JSON, {REPLY_TO: "replies"}),)))
        direct.bury(direct.take())
        assert direct.stats("replies").pending == 1
        for end in ("failed", "worker gone", "returned", "buried manually"):
            lease = run(direct, receipt.id, include_dead=True)
            assert isinstance(direct.do(Reply(lease.token, YES)), InvalidInput)
            assert isinstance(direct.do(Complete(lease.token, reply=YES)), InvalidInput)
            assert ENDS[end][0](direct, lease).reply_refused is None
        direct.do(Complete(run(direct, receipt.id, include_dead=True).token, YES))
        assert direct.stats("replies").pending == 1

    def test_feed_tells_how_it_ended_and_of_no_second_death(self, broker: Broker, direct: StoreDriver) -> None:
        broker.create_queue("jobs")
        dead = dead_item(broker)
        after = broker.feed().last
        for end in ENDS:
            ENDS[end][0](direct, run(direct, dead.id, include_dead=True))
        kinds = [entry.kind for entry in broker.feed(after=after).entries]
        assert kinds == ["failed", "failed", "lost", "lost", "released", "returned", "failed"]

    def test_callers_that_await_it_are_woken(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        direct.bury(direct.take())
        topic = f"#{id[:4]}"
        for call in (
            lambda token: Settle(token, OutcomeKind.FAILED, Dead(), direct.version()),
            lambda token: ReturnLease(token),
        ):
            assert topic in direct.commit(call(run(direct, id, include_dead=True).token)).arrivals

    def test_wrong_token_version_and_queue_are_refused_as_ever(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("mails")
        (id,) = direct.put(b"a")
        direct.bury(direct.take())
        lease = run(direct, id, include_dead=True)
        stale = direct.do(Settle(lease.token, OutcomeKind.FAILED, Dead(), direct.version() + 1))
        early = direct.do(Settle(lease.token, OutcomeKind.LOST, Dead(), direct.version()))
        wrong = direct.do(ReturnLease(lease.token, None, "mails"))
        assert [type(each).__name__ for each in (stale, early, wrong)] == ["StaleSettings", "LeaseLost", "WrongQueue"]
        assert direct.get(id).status is Status.ACTIVE
        direct.do(ReturnLease(lease.token))
        assert isinstance(direct.do(Complete(lease.token)), LeaseLost)
        assert direct.get(id).status is Status.DEAD

    def test_completion_with_puts_is_one_transaction(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        direct.bury(direct.take())
        lease = run(direct, id, include_dead=True)
        nowhere = direct.do(Complete(lease.token, None, (Put("nowhere", (NewItem(b"2", JSON),)),)))
        assert not isinstance(nowhere, Settled)
        assert direct.get(id).status is Status.ACTIVE
        direct.do(Complete(lease.token, None, (Put("jobs", (NewItem(b"2", JSON),)),)))
        assert (direct.take().value, direct.stats().dead_letters) == (2, 0)
