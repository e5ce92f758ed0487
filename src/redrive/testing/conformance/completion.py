"""Complete: with a result, with follow-up items, in one transaction; results with their own retention."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, new_item
from redrive.contract.admin_calls import DeleteQueue
from redrive.contract.item_calls import Complete, Put
from redrive.contract.maintenance_calls import ApplyRetention, Import
from redrive.contract.queries import GetResult
from redrive.errors import (
    IdempotencyConflict,
    InvalidInput,
    ItemNotFound,
    PayloadTooLarge,
    QueueFull,
    QueueNotFound,
    RedriveError,
)
from redrive.model.duration import SECOND
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Item, KeptResult, Result, Status
from redrive.model.state_machine import Verb
from redrive.testing.conformance.actions import kill, places, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StoreSuite, Suite, put
from redrive.testing.fake_clock import FakeClock

REFUSED_PUTS: list[tuple[type[RedriveError], list[tuple[str, Any]]]] = [
    (QueueNotFound, [("nowhere", 1)]),
    (QueueNotFound, [("mails", 1), ("nowhere", 2)]),
    (QueueFull, [("mails", "ok"), ("full", 2)]),
    (QueueFull, [("mails", "ok"), ("narrow", 1), ("narrow", 2)]),
    (IdempotencyConflict, [("mails", new_item("other", idempotency_key="known"))]),
    (IdempotencyConflict, [("mails", new_item(n, idempotency_key="same")) for n in (1, 2)]),
    (InvalidInput, [("mails", 1), ("mails", float("nan"))]),
    (InvalidInput, [("no good", 1)]),
    (InvalidInput, [("tiny", b"too large")]),
]


class CompleteConformance(Suite):
    """Completion with results and follow-up items."""

    def test_completed_item_is_removed(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        settled = broker.complete(lease)
        assert (settled.id, settled.queue, settled.status) == (lease.id, "jobs", None)
        assert settled.counters == lease.counters
        with pytest.raises(ItemNotFound):
            broker.get(lease.id)
        assert places(broker.stats("jobs")) == {}

    def test_completed_item_is_kept_where_asked_for(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_completed="1h")
        broker.put("jobs", {"n": 1})
        lease = take(broker)
        clock.advance("1s")
        settled = broker.complete(lease, result={"total": 42})
        item = broker.get(lease.id)
        assert (settled.status, settled.ready_at, settled.dead_reason) == ("completed", None, None)
        assert (item.status, item.value, item.ended_at) == ("completed", {"n": 1}, clock.now())
        assert item.result is not None
        assert item.result.value == {"total": 42}
        assert (item.worker, item.lease_deadline, item.counters) == (None, None, lease.counters)
        assert item.history == ()

    def test_result_may_be_bytes(self, broker: Broker) -> None:
        broker.create_queue("jobs", keep_completed="1h")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.complete(lease, result=b"\x00\xff")
        result = broker.get(lease.id).result
        assert result is not None
        assert result.value == b"\x00\xff"

    def test_follow_up_items_are_put_with_the_completion(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("mails")
        broker.put("jobs", 1)
        broker.complete(take(broker), puts=[("mails", "a"), ("jobs", 2), ("mails", new_item("b", priority=9))])
        assert values(take_all(broker, "mails")) == ["b", "a"]
        assert values(take_all(broker)) == [2]

    def test_follow_up_item_takes_the_place_of_the_completed_one_in_a_full_queue(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1)
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(QueueFull):
            broker.complete(lease, puts=[("jobs", 2), ("jobs", 3)])
        broker.complete(lease, puts=[("jobs", 2)])
        assert values(take_all(broker)) == [2]

    def test_follow_up_item_under_a_known_key_is_put_once(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("mails")
        for n in (1, 2):
            broker.put("jobs", n)
            broker.complete(take(broker), puts=[("mails", new_item("m", idempotency_key="k"))])
        assert values(take_all(broker, "mails")) == ["m"]

    @pytest.mark.parametrize(("error", "puts"), REFUSED_PUTS, ids=lambda value: repr(value)[:50])
    def test_refused_put_refuses_the_completion(
        self, broker: Broker, error: type[RedriveError], puts: list[tuple[str, Any]]
    ) -> None:
        broker.create_queue("jobs", keep_completed="1h")
        broker.create_queue("mails")
        broker.create_queue("full", max_size=1)
        broker.create_queue("narrow", max_size=1)
        broker.create_queue("tiny", max_payload_size=3)
        broker.put("full", 0)
        broker.put("mails", "first", idempotency_key="known")
        broker.put("jobs", 1)
        lease = take(broker)
        before = broker.get(lease.id)
        with pytest.raises(error):
            broker.complete(lease, result=1, puts=puts)
        assert broker.get(lease.id) == before
        assert values(take_all(broker, "mails")) == ["first"]
        assert values(take_all(broker, "narrow")) == []
        assert broker.complete(lease).status == "completed"

    def test_completing_is_counted(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(3))
        for lease in take_all(broker):
            broker.complete(lease)
        stats = broker.stats("jobs")
        assert (stats.put_total, stats.completed_total, stats.dead_total) == (3, 3, 0)


NULL = Result(b"null", "application/json")


def kept(result: Result, queue: str = "jobs", put_to: str | None = None) -> KeptResult:
    """Return the result of GetResult."""
    return KeptResult(result.payload, result.content_type, queue, put_to)


class ResultConformance(StoreSuite):
    """Results that Complete keeps and GetResult returns."""

    @pytest.mark.parametrize("keep_completed", [0, 60 * SECOND])
    @pytest.mark.parametrize("result", [NULL, Result(b"\x00\xff", "application/octet-stream")], ids=["null", "bytes"])
    def test_result_is_there_whether_the_item_is_or_not(
        self, direct: StoreDriver, keep_completed: int, result: Result
    ) -> None:
        direct.queue(keep_completed=keep_completed)
        direct.put(b"a")
        lease = direct.take()
        assert direct.read(GetResult(lease.id)) is None
        direct.do(Complete(lease.token, result, keep_result=10 * SECOND))
        assert direct.read(GetResult(lease.id)) == kept(result)

    def test_result_is_over_when_its_time_is(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        direct.do(Complete(lease.token, NULL, keep_result=10 * SECOND))
        direct.clock.advance("9.999999s")
        assert direct.read(GetResult(lease.id)) == kept(NULL)
        direct.clock.advance(0.000001)
        assert direct.read(GetResult(lease.id)) is None

    def test_result_outlives_the_item_that_is_kept_for_less(self, direct: StoreDriver) -> None:
        direct.queue(keep_completed=SECOND)
        direct.put(b"a")
        lease = direct.take()
        direct.do(Complete(lease.token, NULL, keep_result=10 * SECOND))
        direct.clock.advance("5s")
        assert direct.do(ApplyRetention()) == 1
        assert direct.read(GetResult(lease.id)) == kept(NULL)

    def test_result_outlives_the_queue(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        direct.do(Complete(lease.token, NULL, keep_result=10 * SECOND))
        assert direct.do(DeleteQueue("jobs", None, "ada")) == 0
        assert direct.read(GetResult(lease.id)) == kept(NULL)

    def test_without_keep_and_without_a_result_nothing_is_kept(self, direct: StoreDriver) -> None:
        direct.queue(keep_completed=60 * SECOND)
        direct.put(b"a", b"b")
        one, two = direct.lease(limit=2)
        direct.commit(Complete(one.token, NULL), Complete(two.token, keep_result=10 * SECOND))
        assert [direct.read(GetResult(lease.id)) for lease in (one, two)] == [None, None]

    def test_refused_completion_keeps_nothing(self, direct: StoreDriver) -> None:
        direct.queue(max_payload_size=3)
        direct.put(b"a")
        lease = direct.take()
        refusals = [
            direct.do(Complete(lease.token, Result(b"long", "text/plain"), keep_result=SECOND)),
            direct.do(
                Complete(lease.token, Result(b"ok", "text/plain"), (put(b"b", queue="nowhere"),), keep_result=SECOND)
            ),
        ]
        assert [type(refusal) for refusal in refusals] == [PayloadTooLarge, QueueNotFound]
        assert direct.read(GetResult(lease.id)) is None

    def test_many_of_one_batch_are_kept_each_for_its_time(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(*[b"x"] * 8)
        leases = direct.lease(limit=8)
        given = [Result(f"{n}".encode(), "application/json") for n in range(8)]
        calls = [
            Complete(lease.token, result, (put(b"next"),) if n % 2 else (), keep_result=(n + 1) * SECOND)
            for n, (lease, result) in enumerate(zip(leases, given, strict=True))
        ]
        direct.commit(*calls)
        results = [kept(result) for result in given]
        assert [direct.read(GetResult(lease.id)) for lease in leases] == results
        direct.clock.advance("4s")
        assert [direct.read(GetResult(lease.id)) for lease in leases] == [None] * 4 + results[4:]

    def test_every_id_that_the_item_had_finds_its_result(self, direct: StoreDriver) -> None:
        direct.queue("morgue")
        direct.queue("third")
        direct.queue()
        (first,) = direct.put(b"a")
        direct.put(b"other")
        second = direct.bury(direct.take(), to="morgue").id
        third = direct.bury(direct.take("morgue"), to="third").id
        assert len({first, second, third}) == 3
        direct.do(Complete(direct.take("third").token, NULL, keep_result=10 * SECOND))
        assert [direct.read(GetResult(id)) for id in (first, second, third)] == [kept(NULL, "third", "jobs")] * 3
        direct.clock.advance("10s")
        assert [direct.read(GetResult(id)) for id in (first, second, third)] == [None] * 3

    @pytest.mark.parametrize("puts", [(), (put(b"next", queue="entry", source_id="ab" * 16),)], ids=["alone", "puts"])
    def test_result_names_its_queue_and_the_one_that_the_item_was_put_to(
        self, direct: StoreDriver, puts: tuple[Put, ...]
    ) -> None:
        direct.queue("entry")
        direct.queue()
        _, returned = direct.put(b"stayed", b"returned")
        (moved,) = direct.put(b"moved", queue="entry")
        direct.change(Verb.MOVE, moved, to="jobs")
        direct.change(Verb.MOVE, direct.change(Verb.MOVE, returned, to="entry").id, to="jobs")
        now, type = direct.clock.now(), "application/octet-stream"
        item = Item(ItemId("cd" * 16), "elsewhere", Status.PENDING, b"imported", type, {}, 5, now, Counters())
        direct.do(Import("jobs", (item,), "ada"))
        leases = direct.lease(limit=4)
        direct.commit(*[Complete(lease.token, NULL, puts, keep_result=SECOND) for lease in leases])
        origins = {b"stayed": None, b"returned": "jobs", b"moved": "entry", b"imported": "elsewhere"}
        assert {lease.payload: direct.read(GetResult(lease.id)) for lease in leases} == {
            payload: kept(NULL, "jobs", origin) for payload, origin in origins.items()
        }

    def test_id_that_nobody_has_finds_no_result(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        direct.do(Complete(lease.token, NULL, keep_result=10 * SECOND))
        same_number = ItemId(f"{int(lease.id[:16], 16) ^ (1 << 40):016x}{lease.id[16:]}")
        for id in (ItemId("0" * 32), ItemId("f" * 32), same_number):
            assert direct.read(GetResult(id)) is None

    def test_results_of_other_namespaces_are_not_seen(self, direct: StoreDriver, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        other = open_broker("elsewhere")
        other.create_queue("jobs")
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        direct.do(Complete(lease.token, NULL, keep_result=10 * SECOND))
        assert other.result(lease.id) is None

    def test_cleaning_removes_results_that_are_over_a_bounded_number_at_a_time(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(*[b"x"] * 5)
        *over, last = direct.lease(limit=5)
        direct.commit(*[Complete(lease.token, NULL, keep_result=SECOND) for lease in over])
        direct.do(Complete(last.token, NULL, keep_result=60 * SECOND))
        assert direct.do(ApplyRetention()) == 0
        direct.clock.advance("1s")
        assert [
            direct.do(ApplyRetention(limit=3)),
            direct.do(ApplyRetention(limit=3)),
            direct.do(ApplyRetention(limit=3)),
        ] == [3, 1, 0]
        assert direct.read(GetResult(last.id)) == kept(NULL)


class KeepResultConformance(Suite):
    """`complete(keep_result=…)` and `result`."""

    @pytest.mark.parametrize("value", [{"total": 42}, None, b"\x00\xff"], ids=repr)
    def test_result_is_the_value_that_the_work_gave(self, broker: Broker, clock: FakeClock, value: Any) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        assert broker.result(receipt.id) is None
        broker.complete(take(broker), result=value, keep_result="10m")
        result = broker.result(receipt.id)
        assert result is not None
        assert result.value == value
        clock.advance("10m")
        assert broker.result(receipt.id) is None

    def test_receipt_finds_the_result_of_what_died_and_was_brought_back(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        receipt = broker.put("jobs", 1)
        dead = broker.fail(take(broker), "boom")
        broker.redrive(dead.id)
        broker.complete(take(broker), result="at last", keep_result="10m")
        result = broker.result(receipt.id)
        assert result is not None
        assert result.value == "at last"

    def test_secrets_are_not_hidden_from_whoever_asked_for_the_work(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        broker.complete(take(broker), result={"password": "hunter2"}, keep_result="10m")
        result = broker.result(receipt.id)
        assert result is not None
        assert result.value == {"password": "hunter2"}

    def test_dead_item_has_no_result(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        assert broker.result(kill(broker).id) is None

    def test_bad_time_and_bad_id_are_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        for keep_result in (0, -1, "soon"):
            with pytest.raises(InvalidInput):
                broker.complete(lease, result=1, keep_result=keep_result)
        with pytest.raises(InvalidInput):
            broker.result("x")
        assert broker.get(lease.id).status == "active"
