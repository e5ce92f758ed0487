"""What the public face cannot reach: batches of several kinds, arrivals, refusals beside neighbours, the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from redrive.errors import (
    IdempotencyConflict,
    InvalidInput,
    InvalidSetting,
    ItemActive,
    ItemNotFound,
    LeaseLost,
    QueueFull,
    QueueNotFound,
    StoreFailed,
    StoreUnavailable,
    WrongStatus,
)
from redrive.model.dead_queue import check_dead_queues, users_of
from redrive.model.failure import Failure
from redrive.model.ids import ItemId, Token
from redrive.model.item import Counters, DeadReason, Item, Lease, Receipt, Settled, Status
from redrive.model.judge import Again, Dead, Ending
from redrive.model.lifecycle import TRANSITIONS, Verb
from redrive.model.queue import QueueSettings
from redrive.store import (
    LEDGER_TIMEOUT,
    Call,
    Change,
    Clean,
    Commit,
    Complete,
    CreateQueue,
    DeleteQueue,
    Expire,
    Extend,
    GetActive,
    GetItem,
    GetOverdue,
    GetQueue,
    GetStats,
    Hold,
    Leased,
    LeaseItems,
    ListAudit,
    NewItem,
    NextDue,
    Promote,
    Put,
    Return,
    SetPaused,
    Settle,
    Stale,
    Store,
    Target,
    Unhold,
    UpdateQueue,
)
from redrive.stores.memory import MemoryStore
from redrive.stores.memory.index import Index
from redrive.stores.memory.state import check_transition
from redrive.testing import FakeClock

SECOND = 1_000_000
FAILURE = Failure(type="ValueError", text="boom")


class Bench:
    """A store with a clock, and short words for what the tests say most."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)

    def commit(self, *calls: Call) -> Commit:
        return self.store.commit(calls)

    def do(self, call: Call) -> Any:
        (result,) = self.commit(call).results
        return result

    def queue(self, name: str = "jobs", **settings: Any) -> None:
        assert not isinstance(self.do(CreateQueue(name, QueueSettings(**settings))), Exception)

    def put(self, *payloads: bytes, queue: str = "jobs", **options: Any) -> list[ItemId]:
        return [receipt.id for receipt in self.do(put(*payloads, queue=queue, **options))]

    def lease(self, queue: str = "jobs", limit: int = 1, **options: Any) -> Sequence[Lease]:
        leased: Leased = self.do(LeaseItems(queue, limit, **options))
        return leased.leases

    def take(self, queue: str = "jobs") -> Lease:
        (lease,) = self.lease(queue)
        return lease

    def get(self, id: ItemId) -> Item:
        item: Item = self.store.read(GetItem(id))
        return item

    def change(self, verb: Verb, id: ItemId, **options: Any) -> Any:
        (result,) = self.do(Change(verb, (Target(id),), "ada", **options))
        return result

    def bury(self, lease: Lease, to: str | None = None) -> Settled:
        settled = self.do(Settle(lease.token, Ending.BURIED, Dead(DeadReason.BURIED, to), 1))
        assert isinstance(settled, Settled)
        return settled


def put(*payloads: bytes, queue: str = "jobs", **options: Any) -> Put:
    return Put(queue, tuple(NewItem(payload, "application/octet-stream", **options) for payload in payloads))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_memory_store_is_a_store() -> None:
    store: Store = MemoryStore()
    assert (store.name, store.namespace, store.changed()) == ("memory", "default", ())


# The table


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


def test_change_that_the_table_forbids_fails_alone_and_changes_nothing(bench: Bench) -> None:
    bench.queue()
    bench.put(b"a")
    lease = bench.take()
    before = bench.get(lease.id)
    forbidden = Settle(lease.token, Ending.EXPIRED, Dead(DeadReason.EXPIRED), 1)
    refusal, receipts = bench.commit(forbidden, put(b"b")).results
    assert isinstance(refusal, StoreFailed)
    assert isinstance(receipts, tuple)
    assert bench.get(lease.id) == before
    stats = bench.store.read(GetStats("jobs"))
    assert (stats.pending, stats.active, stats.failed_total) == (1, 1, 0)
    assert isinstance(bench.do(Complete(lease.token)), Settled)


# Batches


def test_calls_of_one_batch_take_effect_by_kind(bench: Bench) -> None:
    commit = bench.commit(
        LeaseItems("jobs", 10),
        Unhold("canary"),
        put(b"held", held_by="canary"),
        put(b"free"),
        CreateQueue("jobs", QueueSettings()),
    )
    leased, unheld, held, free, queue = commit.results
    assert (queue.name, unheld) == ("jobs", 1)
    assert [lease.id for lease in leased.leases] == [held[0].id, free[0].id]
    assert commit.now == bench.clock.now()


def test_settle_frees_its_item_for_a_lease_in_the_same_batch(bench: Bench) -> None:
    bench.queue()
    bench.put(b"a")
    lease = bench.take()
    leased, settled = bench.commit(LeaseItems("jobs", 1), Return(lease.token)).results
    assert settled.counters == Counters(deliveries=1)
    assert leased.leases[0].id == lease.id
    assert leased.leases[0].token != lease.token


def test_refused_call_does_not_disturb_its_neighbours(bench: Bench) -> None:
    bench.queue(max_size=2)
    results = bench.commit(
        put(b"a"), put(b"b", b"c"), put(b"d"), put(b"x", queue="none"), Extend(Token("0" * 48))
    ).results
    assert [type(result) for result in results] == [tuple, QueueFull, tuple, QueueNotFound, LeaseLost]
    assert bench.store.read(GetStats("jobs")).pending == 2


def test_of_two_calls_with_one_token_exactly_one_is_accepted(bench: Bench) -> None:
    bench.queue()
    bench.put(b"a")
    lease = bench.take()
    first, second = bench.commit(Complete(lease.token), Return(lease.token)).results
    assert isinstance(first, Settled)
    assert isinstance(second, LeaseLost)
    assert second.status is None


def test_given_instant_is_the_instant_of_the_transaction(bench: Bench) -> None:
    bench.queue()
    now = bench.clock.now()
    later = type(now)(now + 5 * SECOND)
    commit = bench.store.commit([put(b"a", delay=SECOND)], now=later)
    assert commit.now == later
    assert bench.get(commit.results[0][0].id).ready_at == later + SECOND


def test_complete_whose_put_is_refused_completes_nothing(bench: Bench) -> None:
    bench.queue()
    bench.queue("small", max_size=1)
    bench.put(b"a")
    lease = bench.take()
    result = bench.do(Complete(lease.token, puts=(put(b"1"), put(b"2", b"3", queue="small"))))
    assert isinstance(result, QueueFull)
    assert bench.get(lease.id).status is Status.ACTIVE
    assert (bench.store.read(GetStats("jobs")).pending, bench.store.read(GetStats("small")).pending) == (0, 0)


def test_completed_item_makes_room_for_its_own_puts(bench: Bench) -> None:
    bench.queue(max_size=1)
    bench.put(b"a")
    assert isinstance(bench.do(Complete(bench.take().token, puts=(put(b"b"),))), Settled)
    assert bench.take().payload == b"b"


def test_key_and_source_are_known_within_one_put(bench: Bench) -> None:
    bench.queue(max_size=1)
    first, second = bench.do(put(b"a", b"a", idempotency_key="k"))
    assert second == Receipt(first.id, duplicate=True)
    assert isinstance(bench.do(put(b"a", b"b", idempotency_key="k2")), IdempotencyConflict)
    assert bench.store.read(GetStats("jobs")).put_total == 1


# Arrivals


def test_arrivals_count_what_may_be_leased_now(bench: Bench) -> None:
    bench.queue()
    assert bench.commit(put(b"a", b"b"), put(b"later", delay=SECOND), put(b"held", held_by="x")).arrivals == {"jobs": 2}
    assert bench.commit(Unhold("x")).arrivals == {"jobs": 1}
    bench.clock.advance("1s")
    assert bench.commit(Promote()).arrivals == {"jobs": 1}
    assert bench.commit(Promote()).arrivals == {}


def test_new_time_to_wait_for_is_told_without_an_arrival(bench: Bench) -> None:
    bench.queue()
    assert bench.commit(put(b"a", delay=2 * SECOND)).arrivals == {"jobs": 0}
    assert bench.commit(put(b"b", delay=3 * SECOND)).arrivals == {}
    assert bench.commit(put(b"c", delay=SECOND)).arrivals == {"jobs": 0}
    bench.do(SetPaused("jobs", True, "ada"))
    assert bench.commit(SetPaused("jobs", False, "ada")).arrivals == {"jobs": 0}


def test_items_leased_in_the_same_batch_wake_nobody(bench: Bench) -> None:
    bench.queue()
    assert bench.commit(put(b"a"), LeaseItems("jobs", 5)).arrivals == {}


def test_dead_item_arrives_in_its_dead_queue(bench: Bench) -> None:
    bench.queue("dlq")
    bench.queue(dead_queue="dlq")
    bench.put(b"a")
    lease = bench.take()
    assert bench.commit(Settle(lease.token, Ending.BURIED, Dead(DeadReason.BURIED, "dlq"), 1)).arrivals == {"dlq": 1}


def test_immediate_retry_arrives_though_it_is_still_failed(bench: Bench) -> None:
    bench.queue()
    bench.put(b"a")
    lease = bench.take()
    commit = bench.commit(Settle(lease.token, Ending.FAILED, Again(0, Status.FAILED), 1, FAILURE))
    assert (commit.results[0].status, commit.arrivals) == (Status.FAILED, {"jobs": 1})
    assert bench.take().id == lease.id


def test_paused_queue_has_no_arrivals_until_it_goes_on(bench: Bench) -> None:
    bench.queue()
    assert bench.commit(SetPaused("jobs", True, "ada"), put(b"a", b"b")).arrivals == {}
    assert bench.do(LeaseItems("jobs", 5)) == Leased(())
    assert bench.commit(SetPaused("jobs", False, "ada")).arrivals == {"jobs": 2}
    assert [entry.verb for entry in bench.store.read(ListAudit())] == ["resume_queue", "pause_queue"]


# Leases and upkeep


def test_lease_says_when_to_look_again(bench: Bench) -> None:
    bench.queue(lease_timeout=60 * SECOND)
    now = bench.clock.now()
    assert bench.do(LeaseItems("jobs", 1)).next_at is None
    bench.put(b"later", delay=90 * SECOND)
    assert bench.do(LeaseItems("jobs", 1)).next_at == now + 90 * SECOND
    bench.put(b"a")
    bench.take()
    assert bench.do(LeaseItems("jobs", 1)).next_at == now + 60 * SECOND
    assert bench.store.read(NextDue()) == now + 60 * SECOND


def test_overdue_lease_stops_leasing_until_it_is_swept(bench: Bench) -> None:
    bench.queue(lease_timeout=SECOND)
    bench.put(b"a", b"b")
    lost = bench.take()
    bench.clock.advance("1s")
    assert bench.do(LeaseItems("jobs", 1)) == Leased((), overdue=True)
    (overdue,) = bench.store.read(GetOverdue("jobs"))
    assert (overdue.id, overdue.token, overdue.expired) == (lost.id, lost.token, False)
    sweep = Settle(lost.token, Ending.LOST, Again(), 1)
    settled, leased = bench.commit(sweep, LeaseItems("jobs", 1, swept=True)).results
    assert (settled.status, settled.counters.losses) == (Status.PENDING, 1)
    assert leased.leases[0].payload == b"b"


def test_extension_wins_over_the_sweep(bench: Bench) -> None:
    bench.queue(lease_timeout=SECOND)
    bench.put(b"a")
    lease = bench.take()
    bench.clock.advance("1s")
    deadline, refusal = bench.commit(Extend(lease.token), Settle(lease.token, Ending.LOST, Again(), 1)).results
    assert deadline == bench.clock.now() + SECOND
    assert isinstance(refusal, LeaseLost)
    assert bench.store.read(GetActive(lease.token)).deadline == deadline


def test_expired_items_are_never_leased_and_can_still_be_settled(bench: Bench) -> None:
    bench.queue()
    (id,) = bench.put(b"a", expire_timeout=SECOND)
    bench.put(b"b")
    assert isinstance(bench.do(Expire(id, Dead(DeadReason.EXPIRED), 1)), WrongStatus)
    bench.clock.advance("1s")
    assert bench.lease(swept=True)[0].payload == b"b"
    assert bench.store.read(GetOverdue())[0].id == id
    assert bench.do(Expire(id, Dead(DeadReason.EXPIRED), 1)).status is Status.DEAD
    assert isinstance(bench.do(Expire(ItemId("0" * 32), Dead(DeadReason.EXPIRED), 1)), ItemNotFound)


def test_held_failed_item_is_ready_in_its_place_once_unheld(bench: Bench) -> None:
    bench.queue()
    (id,) = bench.put(b"a")
    bench.do(Settle(bench.take().token, Ending.FAILED, Again(SECOND, Status.FAILED), 1, FAILURE))
    assert (bench.do(Hold((id,), "x")), bench.do(Hold((id,), "y"))) == (1, 0)
    bench.clock.advance("2s")
    bench.put(b"b")
    assert bench.do(Promote()) == 0
    assert (bench.do(Unhold("y")), bench.do(Unhold("x"))) == (0, 1)
    assert [lease.payload for lease in bench.lease(limit=5)] == [b"a", b"b"]


# Verdicts and settings


def test_stale_verdict_changes_nothing(bench: Bench) -> None:
    bench.queue()
    bench.put(b"a")
    lease = bench.take()
    bench.do(UpdateQueue("jobs", QueueSettings(max_losses=7), 1, "ada"))
    stale = bench.do(Settle(lease.token, Ending.BURIED, Dead(DeadReason.BURIED), 1))
    assert stale == Stale(bench.store.read(GetQueue("jobs")))
    assert bench.do(UpdateQueue("jobs", QueueSettings(), 1, "ada")) == stale
    assert bench.get(lease.id).status is Status.ACTIVE


def test_verdict_by_settings_of_a_deleted_queue_is_stale(bench: Bench) -> None:
    bench.queue()
    assert bench.do(DeleteQueue("jobs", None, "ada")) == 0
    bench.queue(max_losses=9)
    assert bench.store.read(GetQueue("jobs")).version == 2


@pytest.mark.parametrize("ending", [Ending.BURIED, Ending.RELEASED, Ending.LOST])
def test_verdict_that_does_not_fit_the_ending_is_refused(bench: Bench, ending: Ending) -> None:
    bench.queue()
    bench.put(b"a")
    lease = bench.take()
    bench.clock.advance("1h")
    assert isinstance(bench.do(Settle(lease.token, ending, Again(0, Status.FAILED), 1)), InvalidInput)
    assert bench.get(lease.id).status is Status.ACTIVE


@pytest.mark.parametrize("to", ["jobs", "none"])
def test_death_to_a_queue_that_cannot_take_it_is_refused(bench: Bench, to: str) -> None:
    bench.queue()
    bench.put(b"a")
    lease = bench.take()
    refusal = bench.do(Settle(lease.token, Ending.BURIED, Dead(DeadReason.BURIED, to), 1))
    assert isinstance(refusal, InvalidSetting if to == "jobs" else QueueNotFound)
    assert bench.get(lease.id).status is Status.ACTIVE


def test_dead_queue_rules_hold_from_both_sides() -> None:
    plain, with_dead = QueueSettings(), QueueSettings(dead_queue={"network": "dlq", "default": "dlq2"})
    queues = {"jobs": with_dead, "dlq": plain, "dlq2": plain, "other": plain}
    check_dead_queues("jobs", with_dead, queues)
    assert users_of("dlq2", queues) == ("jobs",)
    for name, settings, problem in [
        ("jobs", QueueSettings(dead_queue="jobs"), "dead_queue cannot reference itself"),
        ("jobs", QueueSettings(dead_queue="x"), "dead_queue 'x' does not exist; create it first"),
        ("other", QueueSettings(dead_queue="jobs"), "dead_queue 'jobs' cannot have its own dead_queue"),
        ("dlq", QueueSettings(dead_queue="other"), "dead_queue 'dlq' cannot have its own dead_queue"),
    ]:
        with pytest.raises(InvalidSetting) as refusal:
            check_dead_queues(name, settings, queues)
        assert str(refusal.value) == problem


# Moves, lineage, dead letters


def test_old_ids_and_tokens_follow_the_item(bench: Bench) -> None:
    bench.queue("dlq")
    bench.queue(dead_queue="dlq")
    (first,) = bench.put(b"a")
    lease = bench.take()
    moved = bench.bury(lease, "dlq")
    assert (moved.queue, moved.status, moved.source_id) == ("dlq", Status.PENDING, first)
    back = bench.change(Verb.REDRIVE, first)
    assert (back.queue, back.source_id, back.counters) == ("jobs", moved.id, Counters(deliveries=1, redrives=1))
    assert bench.get(first) == bench.get(moved.id) == bench.get(back.id)
    assert (bench.get(first).origin_id, bench.get(first).origin_queue) == (first, "jobs")
    assert bench.do(Complete(lease.token)).status == "pending"
    assert isinstance(bench.change(Verb.DROP, moved.id), Settled)
    for id in (first, moved.id, back.id):
        with pytest.raises(ItemNotFound):
            bench.get(id)


def test_redriven_item_is_no_dead_letter_even_where_a_dead_queue_works_on_it(bench: Bench) -> None:
    bench.queue("dlq", keep_dead=SECOND)
    bench.queue(dead_queue="dlq")
    own, moved = bench.put(b"own", queue="dlq")[0], bench.put(b"moved")[0]
    bench.bury(bench.take(), "dlq")
    bench.bury(bench.take("dlq"))
    assert bench.store.read(GetStats("dlq")).dead_letters == 2
    bench.change(Verb.REDRIVE, own)
    assert bench.store.read(GetStats("dlq")).dead_letters == 1
    assert isinstance(bench.change(Verb.ARCHIVE, own), WrongStatus)
    bench.clock.advance("1s")
    assert bench.do(Clean()) == 1
    assert bench.get(own).status is Status.PENDING
    (entry,) = [entry for entry in bench.store.read(ListAudit()) if entry.verb == "purge"]
    assert (entry.actor, entry.queue, entry.count) == ("retention", "dlq", 1)
    with pytest.raises(ItemNotFound):
        bench.get(moved)


def test_redrive_to_a_queue_that_is_gone_leaves_the_item(bench: Bench) -> None:
    bench.queue("dlq")
    bench.queue()
    bench.put(b"a")
    moved = bench.bury(bench.take(), "dlq")
    bench.do(DeleteQueue("jobs", None, "ada"))
    assert isinstance(bench.change(Verb.REDRIVE, moved.id), QueueNotFound)
    assert bench.get(moved.id).status is Status.PENDING
    assert bench.store.read(GetQueue("dlq")).is_dead_queue


def test_force_revokes_the_lease(bench: Bench) -> None:
    bench.queue()
    bench.put(b"a")
    lease = bench.take()
    assert isinstance(bench.change(Verb.RETRY, lease.id), ItemActive)
    assert isinstance(bench.change(Verb.REDRIVE, lease.id, force=True), WrongStatus)
    assert bench.change(Verb.RETRY, lease.id, force=True).status is Status.PENDING
    assert bench.do(Complete(lease.token)).status == "pending"


def test_import_is_ignored_while_the_ledger_knows_it(bench: Bench) -> None:
    bench.queue()
    source = ItemId("a" * 32)
    (id,) = bench.put(b"a", source_id=source)
    bench.do(Complete(bench.take().token))
    assert bench.do(put(b"a", source_id=source)) == (Receipt(id, duplicate=True),)
    bench.clock.advance(LEDGER_TIMEOUT // SECOND)
    assert bench.do(Clean()) == 1
    assert not bench.do(put(b"a", source_id=source))[0].duplicate


def test_moved_item_is_known_by_its_source_while_it_is_there(bench: Bench) -> None:
    bench.queue("dlq")
    bench.queue(dead_queue="dlq")
    (source,) = bench.put(b"a")
    moved = bench.bury(bench.take(), "dlq")
    assert bench.do(put(b"a", queue="dlq", source_id=source)) == (Receipt(moved.id, duplicate=True),)
    bench.do(Complete(bench.take("dlq").token))
    assert not bench.do(put(b"a", queue="dlq", source_id=source))[0].duplicate


def test_item_put_with_a_failure_is_born_as_the_verdict_says(bench: Bench) -> None:
    bench.queue("dlq")
    bench.queue(max_size=1, dead_queue="dlq")
    options: dict[str, Any] = {"idempotency_key": "k", "failure": FAILURE}
    options["version"] = bench.store.read(GetQueue("jobs")).version
    (id,) = bench.put(b"a", verdict=Dead(DeadReason.RETRIES_EXHAUSTED, "dlq"), **options)
    item = bench.get(id)
    assert (item.queue, item.status, item.source_id, item.deaths[0].counters.failures) == ("dlq", "pending", id, 1)
    (again,) = bench.do(put(b"a", verdict=Again(0, Status.FAILED), **options))
    assert again == Receipt(id, duplicate=True)
    assert [entry.failure for entry in bench.get(id).history] == [FAILURE, FAILURE]
    assert (bench.get(id).status, bench.get(id).counters.failures) == (Status.PENDING, 1)
    assert isinstance(bench.do(put(b"x", failure=FAILURE)), InvalidInput)


# The store itself


def test_closed_store_serves_nothing(bench: Bench) -> None:
    bench.queue()
    bench.store.close()
    bench.store.close()
    with pytest.raises(StoreUnavailable):
        bench.commit(put(b"a"))
    with pytest.raises(StoreUnavailable):
        bench.store.read(NextDue())


def test_store_in_memory_takes_part_in_no_transaction(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="no transaction"):
        bench.store.put_within(object(), put(b"a"))
    assert bench.store.durability().level == "none"


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
