"""Batches: calls of several kinds in one transaction, in a fixed order, each with a separate result."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.clock import Instant
from redrive.contract.admin_calls import CreateQueue, DeleteQueue, Hold, ManualChange, ManualTarget, Unhold, UpdateQueue
from redrive.contract.item_calls import Complete, Extend, LeaseByIds, LeaseItems, ReturnLease, Settle, StaleSettings
from redrive.contract.maintenance_calls import ApplyRetention, Expire
from redrive.contract.queries import FindItems, GetOverdue, GetQueue
from redrive.errors import InvalidInput, InvalidSetting, LeaseLost, QueueFull, QueueNotFound
from redrive.model.death import DeadReason
from redrive.model.duration import MINUTE, SECOND
from redrive.model.failure import Failure
from redrive.model.filter import Filter
from redrive.model.ids import Token
from redrive.model.item import Counters, Settled, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict
from redrive.model.queue import QueueSettings
from redrive.model.state_machine import Verb
from redrive.testing.conformance.suite import StoreDriver, StoreSuite, put


class BatchConformance(StoreSuite):
    """Order and instant of the calls of a batch, and refusals of single calls."""

    def test_calls_of_one_batch_take_effect_by_kind(self, direct: StoreDriver) -> None:
        commit = direct.commit(
            LeaseItems("jobs", 10),
            Unhold("canary"),
            put(b"held", held_by="canary"),
            put(b"free"),
            CreateQueue("jobs", QueueSettings()),
        )
        leased, unheld, held, free, queue = commit.results
        assert (queue.name, unheld) == ("jobs", 1)
        assert [lease.id for lease in leased.leases] == [held[0].id, free[0].id]
        assert commit.now == direct.clock.now()

    def test_batch_of_nothing_is_a_commit_of_nothing(self, direct: StoreDriver) -> None:
        commit = direct.commit()
        assert (commit.results, dict(commit.arrivals), commit.now) == ([], {}, direct.clock.now())

    def test_settle_frees_its_item_for_a_lease_in_the_same_batch(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        leased, settled = direct.commit(LeaseItems("jobs", 1), ReturnLease(lease.token)).results
        assert settled.counters == Counters(deliveries=1)
        assert leased.leases[0].id == lease.id
        assert leased.leases[0].token != lease.token

    def test_item_that_waited_long_and_is_returned_is_leased_in_the_same_batch(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=MINUTE)
        direct.put(b"a")
        lease = direct.take()
        pass_time(direct)
        leased, _ = direct.commit(LeaseItems("jobs", 1), ReturnLease(lease.token)).results
        assert [each.id for each in leased.leases] == [lease.id]

    def test_item_that_expired_and_is_returned_stops_leases_of_the_same_batch(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=MINUTE)
        direct.put(b"a", expire_timeout=5 * SECOND)
        lease = direct.take()
        pass_time(direct)
        direct.put(b"b")
        leased, _ = direct.commit(LeaseItems("jobs", 1), ReturnLease(lease.token)).results
        assert (list(leased.leases), leased.overdue) == ([], True)

    def test_completion_with_puts_is_before_the_calls_that_follow_it(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        dead = direct.bury(direct.take())
        (letter,) = direct.do(LeaseByIds((dead.id,), "ada", include_dead=True))
        calls = (Complete(letter.token, puts=(put(b"next"),)), Extend(letter.token), LeaseItems("jobs", 1))
        completed, refusal, leased = direct.commit(*calls).results
        assert isinstance(completed, Settled)
        assert isinstance(refusal, LeaseLost)
        assert [lease.payload for lease in leased.leases] == [b"next"]

    def test_refusal_of_a_token_from_before_the_death_says_that_the_item_is_dead_again(
        self, direct: StoreDriver
    ) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        dead = direct.bury(lease)
        (letter,) = direct.do(LeaseByIds((dead.id,), "ada", include_dead=True))
        returned, refusal = direct.commit(ReturnLease(letter.token), Extend(lease.token)).results
        assert isinstance(refusal, LeaseLost)
        assert (returned.status, refusal.status) == (Status.DEAD, Status.DEAD)

    def test_item_that_is_due_for_long_is_leased_by_the_lease_that_brings_it_in(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", delay=5 * SECOND)
        pass_time(direct)
        assert direct.take().payload == b"a"

    def test_dead_letter_that_is_redriven_beside_retention_is_kept(self, direct: StoreDriver) -> None:
        direct.queue("morgue", keep_dead=SECOND)
        direct.queue(dead_queue="morgue")
        direct.put(b"a")
        letter = direct.bury(direct.take(), "morgue")
        direct.clock.advance("1s")
        redrive = ManualChange(Verb.REDRIVE, (ManualTarget(letter.id),), "ada")
        (redriven,), removed = direct.commit(redrive, ApplyRetention()).results
        assert removed == 0
        assert direct.get(redriven.id).status is Status.PENDING

    def test_key_that_is_over_goes_beside_the_drop_of_its_item(self, direct: StoreDriver) -> None:
        direct.queue(idempotency_timeout=SECOND)
        (id,) = direct.put(b"a", idempotency_key="k")
        direct.clock.advance("1s")
        drop = ManualChange(Verb.DROP, (ManualTarget(id),), "ada")
        assert direct.commit(drop, ApplyRetention()).results[1] == 1
        assert direct.do(ApplyRetention()) == 0

    def test_leases_of_one_batch_share_what_is_there_in_order(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b", b"c")
        first, second, third = direct.commit(*[LeaseItems("jobs", 2, worker) for worker in ("x", "y", "z")]).results
        assert [lease.payload for lease in first.leases] == [b"a", b"b"]
        assert [lease.payload for lease in second.leases] == [b"c"]
        assert [lease.worker for lease in second.leases] == ["y"]
        assert list(third.leases) == []

    def test_refused_call_does_not_disturb_its_neighbours(self, direct: StoreDriver) -> None:
        direct.queue(max_size=2)
        results = direct.commit(
            put(b"a"), put(b"b", b"c"), put(b"d"), put(b"x", queue="none"), Extend(Token("0" * 48))
        ).results
        assert [type(result) for result in results] == [tuple, QueueFull, tuple, QueueNotFound, LeaseLost]
        assert direct.stats().pending == 2

    @pytest.mark.parametrize(
        ("verb", "to", "places"),
        [
            (Verb.MOVE, "others", [("others", "dead")]),
            (Verb.REDRIVE, "others", []),
            (Verb.ARCHIVE, None, [("jobs", "archived")]),
            (Verb.DROP, None, []),
        ],
    )
    def test_item_that_dies_and_is_changed_in_one_batch_is_found_by_its_words_where_it_is(
        self, direct: StoreDriver, verb: Verb, to: str | None, places: list[tuple[str, str]]
    ) -> None:
        direct.queue(keep_dropped=0)
        direct.queue("others")
        direct.put(b"a", b"b")
        changed, other = direct.lease(limit=2)
        settles = [
            Settle(each.token, OutcomeKind.FAILED, Dead(DeadReason.FINAL_ERROR), direct.version(), Failure("E", words))
            for each, words in ((changed, "odd outage"), (other, "other mishap"))
        ]
        results = direct.commit(ManualChange(verb, (ManualTarget(changed.id),), "ada", to=to), *settles).results
        assert [settled.status for settled in results[1:]] == ["dead", "dead"]
        assert isinstance(results[0][0], Settled)
        assert words_find(direct, "odd outage") == places
        assert words_find(direct, "mishap") == [("jobs", "dead")]

    def test_of_two_calls_with_one_token_exactly_one_is_accepted(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b")
        one, two = direct.lease(limit=2)
        calls = (Complete(one.token), ReturnLease(one.token), ReturnLease(two.token), Complete(two.token))
        completed, late, returned, too_late = direct.commit(*calls).results
        assert (completed.status, returned.status) == (None, Status.PENDING)
        assert isinstance(late, LeaseLost)
        assert isinstance(too_late, LeaseLost)
        assert (late.status, too_late.status) == (None, "pending")

    def test_same_completion_twice_in_one_batch_is_accepted_once(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        first, second = direct.commit(Complete(lease.token), Complete(lease.token)).results
        assert isinstance(first, Settled)
        assert isinstance(second, LeaseLost)
        assert direct.stats().completed_total == 1

    def test_key_is_known_to_the_next_call_of_the_batch(self, direct: StoreDriver) -> None:
        direct.queue()
        (first,), (second,) = direct.commit(*[put(b"a", idempotency_key="k")] * 2).results
        assert (first.duplicate, second.duplicate, second.id) == (False, True, first.id)
        assert direct.stats().put_total == 1

    def test_extension_before_the_sweep_wins_over_it(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=SECOND)
        direct.put(b"a")
        lease = direct.take()
        direct.clock.advance("1s")
        sweep = Settle(lease.token, OutcomeKind.LOST, RetryVerdict(), direct.version())
        deadline, refusal = direct.commit(Extend(lease.token), sweep).results
        assert deadline == direct.clock.now() + SECOND
        assert isinstance(refusal, LeaseLost)
        assert direct.get(lease.id).status is Status.ACTIVE

    def test_given_instant_is_the_instant_of_the_transaction(self, direct: StoreDriver) -> None:
        direct.queue()
        later = Instant(direct.clock.now() + 5 * SECOND)
        commit = direct.store.commit([put(b"a", delay=SECOND)], now=later)
        assert commit.now == later
        assert direct.get(commit.results[0][0].id).ready_at == later + SECOND

    def test_unhold_of_all_finds_what_the_same_batch_held(self, direct: StoreDriver) -> None:
        direct.queue()
        ids = direct.put(b"a", b"b")
        held, freed = direct.commit(Hold(tuple(ids), "ada"), Unhold("ada")).results
        assert (held, freed) == (2, 2)
        assert [direct.get(id).held_by for id in ids] == [(), ()]


def pass_time(direct: StoreDriver) -> None:
    """Advance by 10 s after a run of maintenance, so that a store may cache that nothing is overdue."""
    direct.do(ApplyRetention())
    direct.clock.advance("10s")
    assert direct.read(GetOverdue()) == ()


class VerdictConformance(StoreSuite):
    """Verdicts are part of the call. The store checks that they are not stale and can be executed."""

    def test_stale_verdict_changes_nothing(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        version = direct.version()
        direct.do(UpdateQueue("jobs", QueueSettings(max_losses=7), version, "ada"))
        stale = direct.do(Settle(lease.token, OutcomeKind.BURIED, Dead(DeadReason.BURIED), version))
        assert stale == StaleSettings(direct.read(GetQueue("jobs")))
        assert direct.do(UpdateQueue("jobs", QueueSettings(), version, "ada")) == stale
        assert direct.get(lease.id).status is Status.ACTIVE

    def test_stale_expiry_changes_nothing(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a", expire_timeout=SECOND)
        version = direct.version()
        direct.do(UpdateQueue("jobs", QueueSettings(max_losses=7), version, "ada"))
        direct.clock.advance("1s")
        assert isinstance(direct.do(Expire(id, Dead(DeadReason.EXPIRED), version)), StaleSettings)
        assert direct.get(id).status is Status.PENDING

    def test_verdict_by_settings_of_a_deleted_queue_is_stale(self, direct: StoreDriver) -> None:
        direct.queue()
        version = direct.version()
        assert direct.do(DeleteQueue("jobs", None, "ada")) == 0
        direct.queue(max_losses=9)
        born: dict[str, Any] = {"failure": Failure("ValueError", "boom"), "verdict": Dead(DeadReason.POLICY)}
        assert direct.do(put(b"a", version=version, **born)) == StaleSettings(direct.read(GetQueue("jobs")))
        assert direct.stats().put_total == 0

    @pytest.mark.parametrize("outcome_kind", [OutcomeKind.BURIED, OutcomeKind.RELEASED, OutcomeKind.LOST])
    def test_verdict_that_cannot_follow_the_ending_is_refused(
        self, direct: StoreDriver, outcome_kind: OutcomeKind
    ) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        direct.clock.advance("1h")
        refusal = direct.do(Settle(lease.token, outcome_kind, RetryVerdict(0, Status.FAILED), direct.version()))
        assert isinstance(refusal, InvalidInput)
        assert direct.get(lease.id).status is Status.ACTIVE

    @pytest.mark.parametrize(("to", "error"), [("jobs", InvalidSetting), ("none", QueueNotFound)])
    def test_death_to_a_queue_that_cannot_take_it_is_refused(
        self, direct: StoreDriver, to: str, error: type[Exception]
    ) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        refusal = direct.do(Settle(lease.token, OutcomeKind.BURIED, Dead(DeadReason.BURIED, to), direct.version()))
        assert isinstance(refusal, error)
        assert direct.get(lease.id).status is Status.ACTIVE


def words_find(direct: StoreDriver, words: str) -> list[tuple[str, str]]:
    """Return queue and status of the dead letters and archived items that contain these words."""
    pages = [direct.read(FindItems(Filter(words=words, status=status))) for status in (Status.DEAD, Status.ARCHIVED)]
    return [(item.queue, item.status.value) for page in pages for item in page.items]
