"""Fencing tokens: the token decides, not the clock. Extend and settle after the deadline; both kinds of release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redrive import Broker, Lease, new_item
from redrive.errors import InvalidInput, LeaseLost, RedriveError
from redrive.model.duration import SECOND
from redrive.model.item import Counters
from redrive.testing.conformance.actions import take, take_all, values
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock

Use = Callable[[Broker, Lease], Any]

USES: dict[str, Use] = {
    "complete": lambda broker, lease: broker.complete(lease),
    "complete with puts": lambda broker, lease: broker.complete(lease, result=1, puts=[("jobs", "follow-up")]),
    "fail": lambda broker, lease: broker.fail(lease, "too late"),
    "fail for good": lambda broker, lease: broker.fail(lease, "too late", final=True),
    "release": lambda broker, lease: broker.release(lease, delay="1s"),
    "release uncounted": lambda broker, lease: broker.release(lease, counted=False, error="too late"),
    "bury": lambda broker, lease: broker.bury(lease, note="too late"),
    "extend": lambda broker, lease: broker.extend(lease, "1h"),
}

every_use = pytest.mark.parametrize("use", USES.values(), ids=USES.keys())


def refused(broker: Broker, use: Use, lease: Lease, status: str | None) -> None:
    """Check that a lost lease is refused, by lease and by token, with the current status, and changes nothing."""
    before = broker.get(lease.id) if status else None
    stats = broker.stats("jobs")
    for proof in (lease, lease.token):
        with pytest.raises(
            LeaseLost, match=f"it is {status} now" if status else "completed, dropped or removed"
        ) as refusal:
            use(broker, proof)  # type: ignore[arg-type]  # a token is accepted instead of a lease
        assert (refusal.value.status, refusal.value.id) == (status, lease.id)
    assert broker.stats("jobs") == stats
    if before is not None:
        assert broker.get(lease.id) == before


WITHOUT_LEASE: dict[str, tuple[str, Callable[[Broker, Lease], object]]] = {
    "pending": ("pending now, and the work may be done again", lambda b, lease: b.release(lease)),
    "failed": ("failed now, and the work may be done again", lambda b, lease: b.fail(lease, "boom")),
    "active": ("active now, and the work may be done again", lambda b, lease: (b.release(lease), take(b))),
    "dead": ("dead now, and is done again only if it is redriven", lambda b, lease: b.bury(lease)),
    "dropped": (
        "archived now, and is done again only if it is restored",
        lambda b, lease: b.drop(lease.id, force=True),
    ),
    "completed": ("it is completed now;", lambda b, lease: b.complete(lease)),
    "removed": ("completed, dropped or removed", lambda b, lease: b.purge(b.drop(lease.id, force=True).id)),
}
"""The ends of a lease, and what a late worker reads after each."""


class FencingConformance(Suite):
    """Late settles are accepted until the item is leased or settled again, and refused after that."""

    @pytest.mark.parametrize(("said", "end"), WITHOUT_LEASE.values(), ids=WITHOUT_LEASE.keys())
    def test_refusal_is_true_of_the_item(
        self, broker: Broker, said: str, end: Callable[[Broker, Lease], object]
    ) -> None:
        broker.create_queue("jobs", retry={"attempts": 5, "cooldown": "1h"}, keep_completed="1h")
        broker.put("jobs", 1)
        lease = take(broker)
        end(broker, lease)
        for use in USES.values():
            with pytest.raises(LeaseLost, match=said):
                use(broker, lease)

    @every_use
    def test_late_use_is_accepted_while_no_sweep_took_the_item(
        self, broker: Broker, clock: FakeClock, use: Use
    ) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker, lease_timeout="1s")
        clock.advance("1d")
        use(broker, lease)

    @every_use
    def test_token_alone_is_proof_enough(self, broker: Broker, use: Use) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        use(broker, take(broker).token)  # type: ignore[arg-type]  # a token is accepted instead of a lease

    @every_use
    def test_use_after_the_sweep_is_refused(self, broker: Broker, clock: FakeClock, use: Use) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker, lease_timeout="1s")
        clock.advance("1s")
        assert broker.run_maintenance().lost == 1
        refused(broker, use, lease, "pending")

    @every_use
    def test_use_after_the_next_owner_got_it_is_refused(self, broker: Broker, clock: FakeClock, use: Use) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        old = take(broker, lease_timeout="1s", worker="old")
        clock.advance("1s")
        new = take(broker, worker="new")
        assert new.id == old.id
        refused(broker, use, old, "active")
        assert broker.complete(new).status is None

    @every_use
    def test_use_after_the_end_is_refused(self, broker: Broker, use: Use) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.complete(lease)
        refused(broker, use, lease, None)

    @every_use
    def test_use_after_a_kept_completion_names_it(self, broker: Broker, use: Use) -> None:
        broker.create_queue("jobs", keep_completed="1d")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.complete(lease)
        refused(broker, use, lease, "completed")

    @every_use
    def test_use_after_death_is_refused(self, broker: Broker, use: Use) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.fail(lease, "boom")
        refused(broker, use, lease, "dead")

    def test_use_while_it_waits_for_its_retry_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1m"})
        broker.put("jobs", 1)
        lease = take(broker)
        broker.fail(lease, "boom")
        refused(broker, USES["complete"], lease, "failed")

    def test_token_that_was_never_given_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        forged = lease.token[:-4] + ("0000" if not lease.token.endswith("0000") else "1111")
        with pytest.raises(LeaseLost) as refusal:
            broker.complete(forged)  # type: ignore[arg-type]  # a text that looks like a token
        assert refusal.value.status == "active"
        assert broker.get(lease.id).status == "active"

    @pytest.mark.parametrize("digit", ["f", "8"])
    def test_token_with_numbers_that_no_store_gives_is_refused(self, broker: Broker, digit: str) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        broker.put("jobs", 1)
        lease = take(broker)
        for forged in (digit * 48, lease.token[:32] + digit * 16, lease.token[:16] + digit * 16 + lease.token[32:]):
            for use in USES.values():
                with pytest.raises(RedriveError) as refusal:
                    use(broker, forged)  # type: ignore[arg-type]  # a text that looks like a token
                assert isinstance(refusal.value, LeaseLost | InvalidInput)
        assert broker.complete(lease).status is None

    @pytest.mark.parametrize("token", ["", "x", "z" * 48, "0" * 47, "0" * 49, "0" * 31 + "\0" * 17, None, 7], ids=repr)
    def test_token_that_is_none_is_refused(self, broker: Broker, token: Any) -> None:
        for use in USES.values():
            with pytest.raises(InvalidInput):
                use(broker, token)


class ExtendConformance(Suite):
    """A worker extends its lease."""

    def test_extension_counts_from_now_and_keeps_the_token(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="10s")
        broker.put("jobs", 1)
        lease = take(broker)
        clock.advance("7s")
        assert broker.extend(lease) == clock.now() + 10 * SECOND
        assert broker.extend(lease, "1m") == clock.now() + 60 * SECOND
        item = broker.get(lease.id)
        assert (item.status, item.lease_deadline) == ("active", clock.now() + 60 * SECOND)
        assert broker.complete(lease).status is None

    def test_extension_can_shorten_a_lease(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker, lease_timeout="1h")
        broker.extend(lease, "1s")
        clock.advance("1s")
        assert broker.run_maintenance().lost == 1

    def test_extension_counts_nothing(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.extend(lease)
        item = broker.get(lease.id)
        assert (item.counters, item.history) == (lease.counters, ())

    def test_extended_lease_is_not_swept(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="10s")
        broker.put("jobs", 1)
        lease = take(broker)
        clock.advance("9s")
        broker.extend(lease)
        clock.advance("9s")
        assert broker.run_maintenance().lost == 0
        assert take_all(broker) == []
        broker.complete(lease)

    def test_late_extension_wins_over_a_sweep_that_comes_after_it(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="10s")
        broker.put("jobs", 1)
        lease = take(broker)
        clock.advance("1h")
        broker.extend(lease)
        assert broker.run_maintenance().lost == 0
        assert take_all(broker) == []
        broker.complete(lease)

    def test_lease_runs_out_at_the_extended_deadline(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="10s")
        broker.put("jobs", 1)
        lease = take(broker)
        clock.advance("5s")
        broker.extend(lease)
        clock.advance("10s")
        assert values(take_all(broker)) == [1]

    @pytest.mark.parametrize("timeout", [0, -1, "x", "40000d", float("nan")], ids=repr)
    def test_bad_extension_is_refused(self, broker: Broker, timeout: Any) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(InvalidInput):
            broker.extend(lease, timeout)
        assert broker.get(lease.id).lease_deadline == lease.deadline


class ReleaseConformance(Suite):
    """Counted release: the attempt counts, and the item moves to the tail."""

    def test_given_back_item_is_pending_and_its_attempt_is_spent(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        clock.advance("5s")
        settled = broker.release(take(broker))
        assert (settled.status, settled.ready_at) == ("pending", clock.now())
        assert settled.counters == Counters(deliveries=1, attempts=1)

    def test_delay_keeps_it_from_being_leased(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        settled = broker.release(take(broker), delay="10s")
        assert (settled.status, settled.ready_at) == ("pending", clock.now() + 10 * SECOND)
        clock.advance("9s")
        assert take_all(broker) == []
        clock.advance("1s")
        assert values(take_all(broker)) == [1]

    def test_text_of_the_error_goes_into_the_history(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        settled = broker.release(take(broker, worker="w1"), error="not my turn")
        (entry,) = broker.get(settled.id).history
        assert (entry.event, entry.note, entry.worker, entry.delivery) == ("released", "not my turn", "w1", 1)
        assert (entry.at, entry.queue) == (clock.now(), "jobs")

    def test_release_never_counts_a_failure(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 2})
        broker.put("jobs", 1)
        for _ in range(3):
            assert broker.release(take(broker), error="busy").counters.failures == 0

    def test_explicit_give_back_dies_at_max_attempts(self, broker: Broker) -> None:
        """Regression test: a predecessor checked the limit at time-outs only, so that released items never died."""
        broker.create_queue("jobs", max_attempts=2)
        broker.put("jobs", 1)
        assert broker.release(take(broker)).status == "pending"
        settled = broker.release(take(broker), delay="1h", error="again")
        assert (settled.status, settled.dead_reason, settled.ready_at) == ("dead", "max_attempts", None)

    @pytest.mark.parametrize("delay", [-1, "x", "40000d", float("inf"), True], ids=repr)
    def test_bad_delay_is_refused(self, broker: Broker, delay: Any) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(InvalidInput):
            broker.release(lease, delay=delay)
        assert broker.get(lease.id).status == "active"


class UncountedReleaseConformance(Suite):
    """Uncounted release: the item did not run, so no attempt counts, and it keeps its position."""

    def test_attempt_is_taken_back_and_the_delivery_stays(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        for n in (1, 2, 3):
            settled = broker.release(take(broker), counted=False)
            assert settled.status == "pending"
            assert settled.counters == Counters(deliveries=n, attempts=0)

    def test_item_takes_its_old_place(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [0, 1, 2])
        leases = take_all(broker)
        clock.advance("1h")
        broker.put("jobs", 3)
        for lease in reversed(leases):
            broker.release(lease, counted=False)
        assert values(take_all(broker)) == [0, 1, 2, 3]

    def test_item_takes_its_old_place_in_its_priority(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [new_item("a", priority=7), new_item("b", priority=7), new_item("c", priority=9)])
        leases = take_all(broker)
        for lease in leases:
            broker.release(lease, counted=False)
        assert values(take_all(broker)) == ["c", "a", "b"]

    def test_place_is_the_one_it_had_before_this_lease(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [0, 1, 2])
        broker.release(take(broker))
        one = take(broker)
        assert one.value == 1
        two, zero = take_all(broker)
        for lease in (zero, two, one):
            broker.release(lease, counted=False)
        assert values(take_all(broker)) == [1, 2, 0]

    def test_it_never_kills(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_attempts=1, max_losses=1)
        broker.put("jobs", 1)
        for _ in range(10):
            assert broker.release(take(broker), counted=False).status == "pending"

    def test_history_is_written_only_with_a_text(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        broker.release(take(broker), counted=False)
        assert broker.get(receipt.id).history == ()
        broker.release(take(broker), counted=False, error="deploy")
        (entry,) = broker.get(receipt.id).history
        assert (entry.event, entry.note) == ("returned", "deploy")

    def test_failures_and_losses_stay(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        take(broker, lease_timeout="1s")
        clock.advance("1s")
        settled = broker.release(take(broker), counted=False)
        assert settled.counters == Counters(deliveries=3, attempts=2, failures=1, losses=1)
