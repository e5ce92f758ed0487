"""By hand, without a token: retry, redrive, done, drop, archive, restore, fail, bury."""

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
    WrongStatus,
)
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import kill, places, take
from redrive.testing.conformance.suite import OpenBroker, Suite

NEVER_PUT = "0123456789abcdef" * 2

Verb = Callable[..., Any]

VERBS: dict[str, Verb] = {
    "retry": lambda broker, id, **options: broker.retry(id, **options),
    "redrive": lambda broker, id, **options: broker.redrive(id, **options),
    "done": lambda broker, id, **options: broker.done(id, **options),
    "drop": lambda broker, id, **options: broker.drop(id, **options),
    "archive": lambda broker, id, **options: broker.archive(id, **options),
    "restore": lambda broker, id, **options: broker.restore(id, **options),
    "fail": lambda broker, id, **options: broker.fail_by_hand(id, "by hand", **options),
    "bury": lambda broker, id, **options: broker.bury_by_hand(id, note="by hand", **options),
}

STATUSES = ("pending", "failed", "dead", "archived", "completed")

# What each verb makes of an item in each status; where there is nothing, it is refused. None: removed.
OUTCOMES: dict[tuple[str, str], str | None] = {
    ("retry", "failed"): "pending",
    ("retry", "dead"): "pending",
    ("redrive", "dead"): "pending",
    ("done", "pending"): "completed",
    ("done", "failed"): "completed",
    ("done", "dead"): "completed",
    ("done", "archived"): "completed",
    ("drop", "pending"): None,
    ("drop", "failed"): None,
    ("drop", "dead"): None,
    ("drop", "archived"): None,
    ("drop", "completed"): None,
    ("archive", "dead"): "archived",
    ("restore", "archived"): "dead",
    ("fail", "pending"): "failed",
    ("fail", "failed"): "failed",
    ("bury", "pending"): "dead",
    ("bury", "failed"): "dead",
}
REFUSALS = [(verb, status) for verb in VERBS for status in STATUSES if (verb, status) not in OUTCOMES]


def item_in(broker: Broker, status: str) -> str:
    """The id of an item that is in a status, in a queue that keeps what is completed and retries in a minute."""
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
    """Which verb applies to which status, and what it leaves behind."""

    def test_item_that_is_listed_under_two_ids_is_judged_once(self, broker: Broker) -> None:
        broker.create_queue("morgue", retry={"attempts": 5, "cooldown": "1h"})
        broker.create_queue("jobs", dead_queue="morgue")
        settled = kill(broker)
        assert settled.source_id is not None
        one, two, three = broker.fail_by_hand([settled.source_id, settled.id, settled.id], "by hand")
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
        if outcome is None:
            with pytest.raises(ItemNotFound):
                broker.get(id)
            assert places(broker.stats("jobs")) == {}
        else:
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
        [("retry", "pending"), ("done", "completed"), ("drop", None), ("fail", "failed"), ("bury", "dead")],
    )
    def test_force_revokes_the_lease(self, broker: Broker, verb: str, status: str | None) -> None:
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
