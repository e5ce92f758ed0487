"""Late: the token decides, not the clock. Extend, and every settle after the deadline, a sweep, or the next owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redrive import Broker, Lease
from redrive.errors import InvalidInput, LeaseLost
from redrive.model.duration import SECOND
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import take, take_all, values
from redrive.testing.conformance.suite import Suite

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
    """The use of a lost lease names what the item is now, by lease and by token, and changes nothing."""
    before = broker.get(lease.id) if status else None
    stats = broker.stats("jobs")
    for proof in (lease, lease.token):
        with pytest.raises(LeaseLost, match=f"it is {status} now" if status else "completed or removed") as refusal:
            use(broker, proof)  # type: ignore[arg-type]  # a token does where a lease does
        assert (refusal.value.status, refusal.value.id) == (status, lease.id)
    assert broker.stats("jobs") == stats
    if before is not None:
        assert broker.get(lease.id) == before


class LateConformance(Suite):
    """Settles that come late are accepted while nobody else took the item, and refused from then on."""

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
        use(broker, take(broker).token)  # type: ignore[arg-type]  # a token does where a lease does

    @every_use
    def test_use_after_the_sweep_is_refused(self, broker: Broker, clock: FakeClock, use: Use) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker, lease_timeout="1s")
        clock.advance("1s")
        assert broker.step().lost == 1
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

    @pytest.mark.parametrize("token", ["", "x", "z" * 48, "0" * 47, "0" * 49, "0" * 31 + "\0" * 17, None, 7], ids=repr)
    def test_token_that_is_none_is_refused(self, broker: Broker, token: Any) -> None:
        for use in USES.values():
            with pytest.raises(InvalidInput):
                use(broker, token)


class ExtendConformance(Suite):
    """A worker that needs longer says so."""

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
        assert broker.step().lost == 1

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
        assert broker.step().lost == 0
        assert take_all(broker) == []
        broker.complete(lease)

    def test_late_extension_wins_over_a_sweep_that_comes_after_it(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="10s")
        broker.put("jobs", 1)
        lease = take(broker)
        clock.advance("1h")
        broker.extend(lease)
        assert broker.step().lost == 0
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
