"""Manual changes of items: retry, redrive, done, drop, archive, restore, fail, bury, move,
reschedule, purge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redrive import Broker, Settled
from redrive.errors import (
    InvalidInput,
    ItemActive,
    ItemNotFound,
    LeaseLost,
    QueueNotFound,
    WrongStatus,
)
from redrive.testing.conformance.actions import dead_queue, die, found, kill, places, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock

NEVER_PUT = "0123456789abcdef" * 2

VERBS: dict[str, Callable[..., Any]] = {
    "retry": lambda broker, id, **options: broker.retry(id, **options),
    "redrive": lambda broker, id, **options: broker.redrive(id, **options),
    "done": lambda broker, id, **options: broker.complete_items(id, **options),
    "drop": lambda broker, id, **options: broker.drop(id, **options),
    "archive": lambda broker, id, **options: broker.archive(id, **options),
    "restore": lambda broker, id, **options: broker.restore(id, **options),
    "fail": lambda broker, id, **options: broker.fail_items(id, "by hand", **options),
    "bury": lambda broker, id, **options: broker.bury_items(id, note="by hand", **options),
    "reschedule": lambda broker, id, **options: broker.reschedule(id, **options),
}

STATUSES = ("pending", "failed", "dead", "archived", "completed")

# The status after each verb, by the status before it; every other combination is refused.
OUTCOMES = {
    ("retry", "failed"): "pending",
    ("retry", "dead"): "pending",
    ("redrive", "dead"): "pending",
    ("done", "pending"): "completed",
    ("done", "failed"): "completed",
    ("done", "dead"): "completed",
    ("done", "archived"): "completed",
    ("drop", "pending"): "archived",
    ("drop", "failed"): "archived",
    ("drop", "dead"): "archived",
    ("drop", "archived"): "archived",
    ("drop", "completed"): "archived",
    ("archive", "pending"): "archived",
    ("archive", "failed"): "archived",
    ("archive", "dead"): "archived",
    ("archive", "completed"): "archived",
    ("restore", "archived"): "dead",
    ("fail", "pending"): "failed",
    ("fail", "failed"): "failed",
    ("bury", "pending"): "dead",
    ("bury", "failed"): "dead",
    ("reschedule", "pending"): "pending",
    ("reschedule", "failed"): "pending",
}
REFUSALS = [(verb, status) for verb in VERBS for status in STATUSES if (verb, status) not in OUTCOMES]


def item_in(broker: Broker, status: str) -> str:
    """Return the id of an item in this status, in a queue that keeps completed items and retries after one minute."""
    broker.create_queue("jobs", keep_completed="1d", retry={"attempts": 5, "cooldown": "1m"})
    receipt = broker.put("jobs", "x")
    if status != "pending":
        lease = take(broker, worker="w1")
        match status:
            case "failed":
                broker.fail(lease, "boom")
            case "completed":
                broker.complete(lease)
            case "dead" | "archived":
                broker.fail(lease, "boom", final=True)
        if status == "archived":
            broker.archive(receipt.id)
    assert broker.get(receipt.id).status == status
    return receipt.id


class ByHandConformance(Suite):
    """Manual changes by verb and status, and their effects."""

    def test_item_that_is_listed_under_two_ids_is_judged_once(self, broker: Broker) -> None:
        broker.create_queue("morgue", retry={"attempts": 5, "cooldown": "1h"})
        broker.create_queue("jobs", dead_queue="morgue")
        settled = kill(broker)
        assert settled.source_id is not None
        one, two, three = broker.fail_items([settled.source_id, settled.id, settled.id], "by hand")
        assert isinstance(one, Settled)
        assert one == two == three
        assert (one.id, one.status, broker.get(settled.id).counters.failures) == (settled.id, "failed", 1)

    @pytest.mark.parametrize(("verb", "status"), OUTCOMES.keys())
    def test_verb_applies(self, broker: Broker, clock: FakeClock, verb: str, status: str) -> None:
        id = item_in(broker, status)
        settled = VERBS[verb](broker, id, actor="ada")
        outcome = OUTCOMES[verb, status]
        assert (settled.id, settled.queue, settled.status) == (id, "jobs", outcome)
        entry = broker.audit()[0]
        assert (entry.actor, entry.verb, entry.ids, entry.count) == ("ada", verb, (id,), 1)
        assert entry.at == clock.now()
        item = broker.get(id)
        assert (item.status, item.counters) == (outcome, settled.counters)
        assert places(broker.stats("jobs")) == {outcome: 1}

    @pytest.mark.parametrize(("verb", "status"), REFUSALS)
    def test_verb_does_not_apply(self, broker: Broker, verb: str, status: str) -> None:
        id = item_in(broker, status)
        before, audit = broker.get(id), broker.audit()
        with pytest.raises(WrongStatus, match=f"cannot {verb} item {id}: it is {status}") as refusal:
            VERBS[verb](broker, id)
        assert refusal.value.status == status
        assert broker.get(id) == before
        assert broker.audit() == audit

    @pytest.mark.parametrize("verb", VERBS)
    def test_active_item_is_refused_and_its_worker_named(self, broker: Broker, verb: str) -> None:
        id = item_in(broker, "pending")
        lease = take(broker, worker="w1")
        before, audit = broker.get(id), broker.audit()
        with pytest.raises(ItemActive, match="worker 'w1'"):
            VERBS[verb](broker, id)
        assert broker.get(id) == before
        assert broker.audit() == audit
        broker.complete(lease)

    @pytest.mark.parametrize(
        ("verb", "status"),
        [("retry", "pending"), ("done", "completed"), ("drop", "archived"), ("fail", "failed"), ("bury", "dead")],
    )
    def test_force_revokes_the_lease(self, broker: Broker, verb: str, status: str) -> None:
        item_in(broker, "pending")
        lease = take(broker)
        settled = VERBS[verb](broker, lease.id, force=True, actor="ada")
        assert settled.status == status
        assert broker.audit()[0].count == 1
        with pytest.raises(LeaseLost) as refusal:
            broker.complete(lease)
        assert refusal.value.status == status

    @pytest.mark.parametrize("verb", VERBS)
    def test_unknown_item_is_refused(self, broker: Broker, verb: str) -> None:
        audit = broker.audit()
        with pytest.raises(ItemNotFound):
            VERBS[verb](broker, NEVER_PUT)
        assert broker.audit() == audit

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("id", ["", "x", "g" * 32, "0" * 31, "a\0", "0" * 33, 7, None], ids=repr)
    def test_id_that_is_none_is_refused(self, broker: Broker, verb: str, id: Any) -> None:
        with pytest.raises(InvalidInput):
            VERBS[verb](broker, [id])

    @pytest.mark.parametrize("verb", VERBS)
    def test_list_gives_a_result_for_each_and_one_audit_row(self, broker: Broker, verb: str) -> None:
        status = next(status for known, status in OUTCOMES if known == verb)
        id = item_in(broker, status)
        before = len(broker.audit())
        results = VERBS[verb](broker, [NEVER_PUT, id], actor="ada")
        assert isinstance(results[0], ItemNotFound)
        assert isinstance(results[1], Settled)
        assert len(results) == 2
        audit = broker.audit()
        assert len(audit) == before + 1
        assert (audit[0].ids, audit[0].count) == ((id,), 1)

    def test_empty_list_changes_nothing(self, broker: Broker) -> None:
        assert broker.retry([]) == []
        assert broker.audit() == ()

    def test_item_listed_twice_is_changed_once(self, broker: Broker) -> None:
        id = item_in(broker, "dead")
        first, second = broker.retry([id, id])
        assert isinstance(first, Settled)
        assert first.counters.redrives == 1
        assert isinstance(second, WrongStatus | Settled)
        assert broker.get(id).counters.redrives == 1

    def test_more_ids_than_one_call_takes_are_refused(self, broker: Broker) -> None:
        with pytest.raises(InvalidInput, match="make several calls"):
            broker.retry([NEVER_PUT] * 1001)

    def test_broker_was_opened_for_somebody(self, open_broker: OpenBroker) -> None:
        broker = open_broker(actor="nightly job")
        id = item_in(broker, "dead")
        broker.retry(id)
        assert broker.audit()[0].actor == "nightly job"
        assert broker.get(id).history[-1].actor == "nightly job"

    def test_somebody_is_always_named(self, broker: Broker) -> None:
        broker.retry(item_in(broker, "dead"))
        assert broker.audit()[0].actor

    @pytest.mark.parametrize("actor", ["", "a\0b", "x" * 300, 7], ids=lambda actor: repr(actor)[:10])
    def test_bad_actor_is_refused(self, broker: Broker, actor: Any) -> None:
        id = item_in(broker, "dead")
        with pytest.raises(InvalidInput):
            broker.retry(id, actor=actor)
        assert broker.get(id).status == "dead"

    def test_audit_is_read_newest_first_in_pages(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = [kill(broker, n).id for n in range(5)]
        for id in ids:
            clock.advance("1s")
            broker.drop(id)
        first = broker.audit(2)
        second = broker.audit(10, before=first[-1].number)
        assert [entry.ids for entry in (*first, *second)] == [(id,) for id in reversed(ids)]
        assert len({entry.number for entry in (*first, *second)}) == 5


class MoveByHandConformance(Suite):
    """`move`: one item or many, to an existing queue."""

    def test_pending_item_moves_with_everything_it_has(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs", retry={"attempts": 3})
        receipt = broker.put("jobs", {"n": 1}, headers={"h": "1"}, priority=7)
        broker.release(take(broker))
        clock.advance("1s")
        before = broker.get(receipt.id)
        settled = broker.move(receipt.id, "other", actor="ada")
        item = broker.get(settled.id)
        assert (settled.queue, settled.status, settled.source_id) == ("other", "pending", receipt.id)
        assert (item.value, item.headers, item.priority, item.counters) == ({"n": 1}, {"h": "1"}, 7, before.counters)
        assert (item.origin_id, item.origin_queue, item.earlier_ids) == (receipt.id, "jobs", (receipt.id,))
        entry = item.history[-1]
        assert (entry.event, entry.actor, entry.queue) == ("moved", "ada", "jobs")
        assert (places(broker.stats("jobs")), places(broker.stats("other"))) == ({}, {"pending": 1})
        assert broker.get(receipt.id) == item
        assert values(take_all(broker, "other")) == [{"n": 1}]

    def test_failed_item_stays_failed_until_it_is_due(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1m"})
        receipt = broker.put("jobs", "x")
        broker.fail(take(broker), "boom")
        assert broker.move(receipt.id, "other").status == "failed"
        assert take_all(broker, "other") == []
        clock.advance("1m")
        assert values(take_all(broker, "other")) == ["x"]

    def test_dead_item_stays_dead_with_its_cause(self, broker: Broker) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs")
        first, _ = die(broker, 2)
        moved = broker.move(first, "other")
        assert (moved.status, broker.get(moved.id).dead_reason) == ("dead", "final_error")
        assert found(broker, queue="other") == found(broker, words="boom", queue="other") == [0]
        assert found(broker) == [0, 1]
        (group,) = broker.groups()
        assert dict(group.queues) == {"other": 1, "jobs": 1}
        assert broker.stats("other").dead_letters == 1

    def test_dead_letter_in_a_dead_queue_goes_to_another_dead_queue_as_one(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.create_queue("cellar")
        broker.create_queue("mails", dead_queue="cellar")
        dead = kill(broker, "x")
        moved = broker.move(dead.id, "cellar")
        assert found(broker, queue="cellar") == ["x"]
        assert (broker.stats("cellar").dead_letters, broker.stats("morgue").dead_letters) == (1, 0)
        assert broker.redrive(moved.id).queue == "jobs"

    def test_move_to_where_it_is_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", "x")
        with pytest.raises(InvalidInput):
            broker.move(receipt.id, "jobs")
        assert (broker.get(receipt.id).queue, places(broker.stats("jobs"))) == ("jobs", {"pending": 1})

    def test_move_is_refused_for_what_is_not_at_rest(self, broker: Broker) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs", keep_completed="1h")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(ItemActive):
            broker.move(lease.id, "other")
        with pytest.raises(QueueNotFound):
            broker.move(lease.id, "nowhere", force=True)
        assert broker.move(lease.id, "other", force=True).queue == "other"
        with pytest.raises(LeaseLost):
            broker.complete(lease)
        done = take(broker, "other")
        broker.create_queue("third", keep_completed="1h")
        third = broker.put("third", 1)
        broker.complete(take(broker, "third"))
        with pytest.raises(WrongStatus):
            broker.move(third.id, "jobs")
        broker.archive(kill(broker).id)
        with pytest.raises(WrongStatus):
            broker.move(broker.find(status="archived").items[0].id, "other")
        broker.complete(done)

    def test_move_of_many_is_one_audit_row(self, broker: Broker) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs")
        ids = [receipt.id for receipt in broker.put_many("jobs", range(3))]
        broker.move([*ids, "f" * 32], "other", actor="ada")
        (entry,) = broker.audit(1)
        assert (entry.actor, entry.verb, entry.count) == ("ada", "move", 3)
        assert found(broker, status="pending", queue="other") == [0, 1, 2]


class PurgeConformance(Suite):
    """`purge`: permanent removal of archived items only."""

    def test_archived_item_is_gone_with_an_audit_row(self, broker: Broker) -> None:
        dead_queue(broker)
        (id,) = die(broker, 1)
        broker.archive(id)
        settled = broker.purge(id, actor="ada")
        assert settled.status is None
        with pytest.raises(ItemNotFound):
            broker.get(id)
        assert found(broker, status="archived") == found(broker, status="archived", words="boom") == []
        (entry,) = broker.audit(1)
        assert (entry.actor, entry.verb, entry.count) == ("ada", "purge", 1)
        assert places(broker.stats("morgue")) == {}

    def test_purge_is_for_the_archive_only(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        pending = broker.put("jobs", 1)
        (dead,) = die(broker, 1)
        for id in (pending.id, dead):
            with pytest.raises(WrongStatus):
                broker.purge(id)
        assert places(broker.stats("jobs")) == {"pending": 1, "dead": 1}
