"""Results that are kept for a time of their own."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker
from redrive.errors import InvalidInput, PayloadTooLarge, QueueNotFound
from redrive.model.duration import SECOND
from redrive.model.ids import ItemId
from redrive.model.item import Result
from redrive.store import Clean, Complete, DeleteQueue, GetResult
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import kill, take
from redrive.testing.conformance.direct import Direct, DirectSuite, put
from redrive.testing.conformance.suite import OpenBroker, Suite

NULL = Result(b"null", "application/json")


class ResultConformance(DirectSuite):
    """What Complete keeps, and GetResult gives."""

    @pytest.mark.parametrize("keep_completed", [0, 60 * SECOND])
    @pytest.mark.parametrize("result", [NULL, Result(b"\x00\xff", "application/octet-stream")], ids=["null", "bytes"])
    def test_result_is_there_whether_the_item_is_or_not(
        self, direct: Direct, keep_completed: int, result: Result
    ) -> None:
        direct.queue(keep_completed=keep_completed)
        direct.put(b"a")
        lease = direct.take()
        assert direct.read(GetResult(lease.id)) is None
        direct.do(Complete(lease.token, result, keep=10 * SECOND))
        assert direct.read(GetResult(lease.id)) == result

    def test_result_is_over_when_its_time_is(self, direct: Direct) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        direct.do(Complete(lease.token, NULL, keep=10 * SECOND))
        direct.clock.advance("9.999999s")
        assert direct.read(GetResult(lease.id)) == NULL
        direct.clock.advance(0.000001)
        assert direct.read(GetResult(lease.id)) is None

    def test_result_outlives_the_item_that_is_kept_for_less(self, direct: Direct) -> None:
        direct.queue(keep_completed=SECOND)
        direct.put(b"a")
        lease = direct.take()
        direct.do(Complete(lease.token, NULL, keep=10 * SECOND))
        direct.clock.advance("5s")
        assert direct.do(Clean()) == 1
        assert direct.read(GetResult(lease.id)) == NULL

    def test_result_outlives_the_queue(self, direct: Direct) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        direct.do(Complete(lease.token, NULL, keep=10 * SECOND))
        assert direct.do(DeleteQueue("jobs", None, "ada")) == 0
        assert direct.read(GetResult(lease.id)) == NULL

    def test_without_keep_and_without_a_result_nothing_is_kept(self, direct: Direct) -> None:
        direct.queue(keep_completed=60 * SECOND)
        direct.put(b"a", b"b")
        one, two = direct.lease(limit=2)
        direct.commit(Complete(one.token, NULL), Complete(two.token, keep=10 * SECOND))
        assert [direct.read(GetResult(lease.id)) for lease in (one, two)] == [None, None]

    def test_refused_completion_keeps_nothing(self, direct: Direct) -> None:
        direct.queue(max_payload_size=3)
        direct.put(b"a")
        lease = direct.take()
        refusals = [
            direct.do(Complete(lease.token, Result(b"long", "text/plain"), keep=SECOND)),
            direct.do(Complete(lease.token, Result(b"ok", "text/plain"), (put(b"b", queue="nowhere"),), keep=SECOND)),
        ]
        assert [type(refusal) for refusal in refusals] == [PayloadTooLarge, QueueNotFound]
        assert direct.read(GetResult(lease.id)) is None

    def test_many_of_one_batch_are_kept_each_for_its_time(self, direct: Direct) -> None:
        direct.queue()
        direct.put(*[b"x"] * 8)
        leases = direct.lease(limit=8)
        results = [Result(f"{n}".encode(), "application/json") for n in range(8)]
        calls = [
            Complete(lease.token, result, (put(b"next"),) if n % 2 else (), keep=(n + 1) * SECOND)
            for n, (lease, result) in enumerate(zip(leases, results, strict=True))
        ]
        direct.commit(*calls)
        assert [direct.read(GetResult(lease.id)) for lease in leases] == results
        direct.clock.advance("4s")
        assert [direct.read(GetResult(lease.id)) for lease in leases] == [None] * 4 + results[4:]

    def test_every_id_that_the_item_had_finds_its_result(self, direct: Direct) -> None:
        direct.queue("morgue")
        direct.queue("third")
        direct.queue()
        (first,) = direct.put(b"a")
        direct.put(b"other")
        second = direct.bury(direct.take(), to="morgue").id
        third = direct.bury(direct.take("morgue"), to="third").id
        assert len({first, second, third}) == 3
        direct.do(Complete(direct.take("third").token, NULL, keep=10 * SECOND))
        assert [direct.read(GetResult(id)) for id in (first, second, third)] == [NULL] * 3
        direct.clock.advance("10s")
        assert [direct.read(GetResult(id)) for id in (first, second, third)] == [None] * 3

    def test_id_that_nobody_has_finds_no_result(self, direct: Direct) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        direct.do(Complete(lease.token, NULL, keep=10 * SECOND))
        same_number = ItemId(f"{int(lease.id[:16], 16) ^ (1 << 40):016x}{lease.id[16:]}")
        for id in (ItemId("0" * 32), ItemId("f" * 32), same_number):
            assert direct.read(GetResult(id)) is None

    def test_results_of_other_namespaces_are_not_seen(self, direct: Direct, open_broker: OpenBroker) -> None:
        self.require("shared")
        other = open_broker("elsewhere")
        other.create_queue("jobs")
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        direct.do(Complete(lease.token, NULL, keep=10 * SECOND))
        assert other.result(lease.id) is None

    def test_cleaning_removes_results_that_are_over_a_bounded_number_at_a_time(self, direct: Direct) -> None:
        direct.queue()
        direct.put(*[b"x"] * 5)
        *over, last = direct.lease(limit=5)
        direct.commit(*[Complete(lease.token, NULL, keep=SECOND) for lease in over])
        direct.do(Complete(last.token, NULL, keep=60 * SECOND))
        assert direct.do(Clean()) == 0
        direct.clock.advance("1s")
        assert [direct.do(Clean(limit=3)), direct.do(Clean(limit=3)), direct.do(Clean(limit=3))] == [3, 1, 0]
        assert direct.read(GetResult(last.id)) == NULL


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
