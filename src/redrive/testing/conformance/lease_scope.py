"""Calls with a token and a queue: only the queue from which the item was leased is accepted."""

from __future__ import annotations

import msgspec
import pytest

from redrive.contract.item_calls import Complete, Extend, ReturnLease, SettleCall
from redrive.errors import LeaseLost, WrongQueue
from redrive.model.duration import SECOND
from redrive.model.feed import FeedKind
from redrive.model.ids import Token
from redrive.model.item import Result, Settled
from redrive.testing.conformance.suite import StoreDriver, StoreSuite, put

_ANY = Token("")
RESULT = Result(b"1", "application/json")
ENDS: dict[str, SettleCall] = {
    "complete": Complete(_ANY, queue="mails"),
    "complete with a result": Complete(_ANY, RESULT, (put(b"next"),), SECOND, "mails"),
    "return": ReturnLease(_ANY, None, "mails"),
    "return with a note": ReturnLease(_ANY, "not now", "mails"),
    "extend": Extend(_ANY, 90 * SECOND, "mails"),
    "extend by the queue's timeout": Extend(_ANY, None, "mails"),
}
SETTINGS: dict[str, dict[str, object]] = {
    "removed": {},
    "kept": {"keep_completed": SECOND},
    "in the feed": {"feed": tuple(FeedKind)},
}
every_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())


class LeasedFromConformance(StoreSuite):
    """The argument `queue` of calls with a token."""

    @every_end
    @pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
    def test_item_of_another_queue_is_refused_and_stays_as_it_is(
        self, direct: StoreDriver, end: SettleCall, settings: dict[str, object]
    ) -> None:
        direct.queue("jobs", **settings)
        direct.queue("mails", lease_timeout=5 * SECOND, **settings)
        direct.put(b"a")
        lease = direct.take()
        before = direct.get(lease.id)
        refusal = direct.do(_with(end, lease.token))
        assert isinstance(refusal, WrongQueue)
        assert (refusal.id, refusal.queue, refusal.named) == (lease.id, "jobs", "mails")
        assert direct.get(lease.id) == before
        assert (direct.stats().active, direct.stats().pending, direct.stats("mails").completed_total) == (1, 0, 0)

    @every_end
    def test_item_of_the_queue_is_taken(self, direct: StoreDriver, end: SettleCall) -> None:
        direct.queue("jobs")
        direct.queue("mails")
        direct.put(b"a", queue="mails")
        result = direct.do(_with(end, direct.take("mails").token))
        assert isinstance(result, int) if isinstance(end, Extend) else isinstance(result, Settled)

    @every_end
    def test_queue_that_does_not_exist_is_another_one(self, direct: StoreDriver, end: SettleCall) -> None:
        direct.queue("jobs")
        direct.put(b"a")
        assert isinstance(direct.do(_with(end, direct.take().token)), WrongQueue)

    @every_end
    def test_lost_lease_is_lost_whatever_the_queue(self, direct: StoreDriver, end: SettleCall) -> None:
        direct.queue("jobs")
        direct.queue("mails")
        direct.put(b"a")
        lease = direct.take()
        direct.do(ReturnLease(lease.token))
        assert isinstance(direct.do(_with(end, lease.token)), LeaseLost)

    def test_in_one_transaction_each_is_judged_by_its_own_queue(self, direct: StoreDriver) -> None:
        direct.queue("jobs")
        direct.queue("mails")
        direct.put(*[b"a"] * 20)
        leases = direct.lease(limit=20)
        calls = [Complete(lease.token, queue="jobs" if n % 2 else "mails") for n, lease in enumerate(leases)]
        results = direct.commit(*calls).results
        assert [isinstance(result, WrongQueue) for result in results] == [n % 2 == 0 for n in range(20)]
        assert (direct.stats().active, direct.stats().completed_total) == (10, 10)
        assert {direct.get(lease.id).status for lease in leases[::2]} == {"active"}


def _with(end: SettleCall, token: Token) -> SettleCall:
    return msgspec.structs.replace(end, token=token)
