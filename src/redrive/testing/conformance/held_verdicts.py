"""Verdicts that hold the item, in the transaction of a settle or of a put with a failure."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, Failure, RetryVerdict
from redrive.clock import Instant
from redrive.contract.admin_calls import Unhold, UpdateQueue
from redrive.contract.item_calls import Complete, Settle, StaleSettings
from redrive.errors import InvalidInput
from redrive.model.duration import SECOND
from redrive.model.holder import MAX_HOLDERS
from redrive.model.item import Settled, Status
from redrive.model.judge import OutcomeKind
from redrive.model.queue import QueueSettings
from redrive.testing.conformance.suite import StoreDriver, StoreSuite, put

BOOM = Failure("ValueError", "boom")


class HeldVerdictConformance(StoreSuite):
    """A verdict holds the item that it retries, in the transaction of the settle."""

    @pytest.mark.parametrize("status", [Status.FAILED, Status.PENDING])
    def test_retried_item_is_held_from_then_on(self, direct: StoreDriver, status: Status) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        verdict = RetryVerdict(0, status, ("breaker", "other", "breaker"))
        settled = direct.do(Settle(direct.take().token, OutcomeKind.FAILED, verdict, direct.version(), BOOM))
        assert (settled.status, settled.counters.attempts, settled.counters.failures) == (status, 1, 1)
        assert direct.get(id).lasting_holders == ("breaker", "other")
        for name in ("other", "breaker"):
            assert list(direct.lease()) == []
            assert direct.do(Unhold(name)) == 1
        assert direct.take().id == id

    def test_item_that_is_put_with_a_failure_is_held_by_its_verdict(self, direct: StoreDriver) -> None:
        direct.queue()
        verdict = RetryVerdict(0, Status.FAILED, ("breaker",))
        given: dict[str, Any] = {"failure": BOOM, "verdict": verdict, "version": direct.version()}
        (id,), (both,) = direct.put(b"a", **given), direct.put(b"b", held_by="ann", **given)
        assert (direct.get(id).held_by, direct.get(both).held_by) == (("breaker",), ("ann", "breaker"))
        assert direct.get(both).lasting_holders == ("breaker",)
        assert (direct.do(Unhold("breaker")), [lease.id for lease in direct.lease(limit=2)]) == (2, [id])

    def test_item_that_is_put_with_a_failure_expires_at_its_instant(self, direct: StoreDriver) -> None:
        direct.queue()
        verdict, at = RetryVerdict(SECOND, Status.FAILED), Instant(direct.clock.now() + 3 * SECOND)
        given: dict[str, Any] = {"failure": BOOM, "verdict": verdict, "version": direct.version()}
        (id,) = direct.put(b"a", expire_at=at, **given)
        (keyed,) = direct.put(b"b", expire_at=at, idempotency_key="k", **given)
        assert direct.get(id).expire_deadline == direct.get(keyed).expire_deadline == at

    def test_failure_under_a_known_key_leaves_the_holders_as_they_are(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a", idempotency_key="k", held_by="ann")
        verdict = RetryVerdict(0, Status.FAILED, ("breaker",))
        direct.put(b"a", idempotency_key="k", failure=BOOM, verdict=verdict, version=direct.version())
        assert (direct.get(id).held_by, direct.get(id).counters.failures) == (("ann",), 1)

    def test_verdict_with_too_many_holders_is_refused(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        verdict = RetryVerdict(0, Status.FAILED, tuple(f"holder {number}" for number in range(MAX_HOLDERS + 1)))
        assert isinstance(
            direct.do(Settle(lease.token, OutcomeKind.FAILED, verdict, direct.version(), BOOM)), InvalidInput
        )
        refused = direct.do(put(b"b", failure=BOOM, verdict=verdict, version=direct.version()))
        assert isinstance(refused, InvalidInput)
        assert isinstance(direct.do(Complete(lease.token)), Settled)

    def test_program_does_not_hold_by_its_verdict(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        broker.put("jobs", 1)
        (lease,) = broker.lease("jobs")
        with pytest.raises(InvalidInput, match="hold"):
            broker.fail(lease, "boom", verdict=RetryVerdict(0, Status.FAILED, ("ann",)))
        broker.complete(lease)

    def test_stale_verdict_holds_nothing(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        lease, version = direct.take(), direct.version()
        direct.do(UpdateQueue("jobs", QueueSettings(max_losses=7), version, "ada"))
        verdict = RetryVerdict(0, Status.FAILED, ("breaker",))
        assert isinstance(direct.do(Settle(lease.token, OutcomeKind.FAILED, verdict, version, BOOM)), StaleSettings)
        assert (direct.get(id).status, direct.do(Unhold("breaker"))) == (Status.ACTIVE, 0)
