"""Replies to leased items, with completions, and to deaths, in the transaction of the event that they answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from redrive import Broker
from redrive.contract.admin_calls import ManualChange, ManualTarget, StartOperation, StepOperation
from redrive.contract.item_calls import Complete, NewItem, Put, Reply, Settle
from redrive.contract.maintenance_calls import Expire, Import
from redrive.contract.queries import GetResult
from redrive.contract.replies import MAX_ERROR_CHARS, REPLY_ERROR, REPLY_FOR, REPLY_TO, REQUEST_ID
from redrive.errors import InvalidInput, InvalidName, LeaseLost, PayloadTooLarge, QueueFull, QueueNotFound, WrongQueue
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.failure import Failure
from redrive.model.filter import Filter
from redrive.model.ids import ItemId
from redrive.model.item import Lease, Receipt, Result, Settled, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict
from redrive.model.payload import JSON
from redrive.model.redact_rules import redact_rules_from
from redrive.model.state_machine import Verb
from redrive.testing.conformance.actions import values
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StorePair, StorePairSuite, StoreSuite

YES = Result(b'"yes"', JSON)
BOOM = Failure("ValueError", "boom")


def send(direct: StoreDriver, reply_to: str | None = "replies", queue: str = "jobs", **headers: str) -> ItemId:
    """Put an item that names a queue for replies."""
    named = headers if reply_to is None else {REPLY_TO: reply_to, **headers}
    (receipt,) = direct.do(Put(queue, (NewItem(b"1", JSON, named),)))
    return ItemId(receipt.id)


def request(direct: StoreDriver, **headers: str) -> Lease:
    """Put an item into `jobs` that names `replies`, and lease it."""
    send(direct, **headers)
    return direct.take()


def replies(direct: StoreDriver, queue: str = "replies") -> list[tuple[Any, dict[str, str]]]:
    """Lease and complete all replies, and return their values and headers."""
    found = list(direct.lease(queue, 100))
    for lease in found:
        direct.do(Complete(lease.token))
    return [(lease.value, dict(lease.headers)) for lease in found]


def die(direct: StoreDriver, lease: Lease, to: str | None = None, failure: Failure | None = None) -> Settled:
    """End a delivery by a final failure."""
    verdict = Dead(DeadReason.RETRIES_EXHAUSTED, to)
    settled = direct.do(Settle(lease.token, OutcomeKind.FAILED, verdict, direct.version(lease.queue), failure or BOOM))
    assert isinstance(settled, Settled), settled
    return settled


def _expired(direct: StoreDriver, id: ItemId, to: str | None) -> Any:
    return direct.do(Expire(id, Dead(DeadReason.EXPIRED, to), direct.version()))


def _by_hand(direct: StoreDriver, id: ItemId, to: str | None) -> Any:
    target = ManualTarget(id, Dead(DeadReason.BURIED, to), direct.version())
    return direct.do(ManualChange(Verb.BURY, (target,), "ada"))


def _by_operation(direct: StoreDriver, id: ItemId, to: str | None) -> Any:
    started = direct.do(StartOperation(verb=Verb.BURY, where=Filter(queue="jobs", status=Status.PENDING), actor="ada"))
    verdicts = {"jobs": (Dead(DeadReason.BURIED, to), direct.version())}
    return direct.do(StepOperation(started.id, 0, verdicts=verdicts))


def _lost(direct: StoreDriver, id: ItemId, to: str | None) -> Any:
    verdict = Dead(DeadReason.WORKER_LOST, to)
    return direct.do(Settle(direct.take().token, OutcomeKind.LOST, verdict, direct.version(), worker_is_gone=True))


DEATHS: dict[str, tuple[Callable[[StoreDriver, ItemId, str | None], Any], str]] = {
    "expired": (_expired, "expired"),
    "manual": (_by_hand, "buried"),
    "operation": (_by_operation, "buried"),
    "lost": (_lost, "worker_lost"),
}


class ReplyConformance(StoreSuite):
    """The store takes the queue from the item; a consumer never names it."""

    def test_reply_of_a_completion_is_put_with_it(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("replies")
        lease = request(direct, **{REQUEST_ID: "r1", "color": "red"})
        settled = direct.do(Complete(lease.token, reply=YES))
        assert (settled.status, settled.reply_refused) == (None, None)
        assert replies(direct) == [("yes", {REPLY_FOR: lease.id, REQUEST_ID: "r1"})]

    def test_completion_may_have_a_result_follow_up_items_and_a_reply(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("replies")
        lease = request(direct)
        follow_up = Put("jobs", (NewItem(b"2", JSON),))
        direct.do(Complete(lease.token, YES, (follow_up,), 10 * SECOND, reply=YES))
        assert direct.read(GetResult(lease.id)).payload == YES.payload
        assert replies(direct) == [("yes", {REPLY_FOR: lease.id})]
        assert direct.take().value == 2

    def test_several_replies_are_sent_while_the_item_is_leased(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("replies")
        lease = request(direct)
        for n in range(3):
            sent = direct.do(Reply(lease.token, Result(str(n).encode(), JSON)))
            assert isinstance(sent, Receipt)
        direct.do(Complete(lease.token, reply=YES))
        assert [value for value, _ in replies(direct)] == [0, 1, 2, "yes"]

    def test_late_reply_is_refused_and_not_sent(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("replies")
        lease = request(direct)
        direct.do(Settle(lease.token, OutcomeKind.RELEASED, RetryVerdict(), direct.version()))
        assert isinstance(direct.do(Reply(lease.token, YES)), LeaseLost)
        assert isinstance(direct.do(Complete(lease.token, reply=YES)), LeaseLost)
        assert isinstance(direct.do(Reply(direct.take().token, YES, "replies")), WrongQueue)
        assert replies(direct) == []

    def test_item_without_a_queue_for_replies_takes_none(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        assert isinstance(direct.do(Reply(lease.token, YES)), InvalidInput)
        assert isinstance(direct.do(Complete(lease.token, reply=YES)), InvalidInput)
        assert direct.get(lease.id).status is Status.ACTIVE
        assert direct.do(Complete(lease.token)).reply_refused is None

    @pytest.mark.parametrize(
        ("settings", "error"), [(None, QueueNotFound), ({"max_size": 1}, QueueFull)], ids=["gone", "full"]
    )
    def test_refused_reply_refuses_neither_completion_nor_death(
        self, direct: StoreDriver, settings: dict[str, Any] | None, error: type[Exception]
    ) -> None:
        direct.queue()
        if settings is not None:
            direct.queue("replies", **settings)
            direct.put(b"there", queue="replies")
        first, second, third = (request(direct) for _ in range(3))
        assert isinstance(direct.do(Reply(first.token, YES)), error)
        completed, dead = direct.do(Complete(first.token, reply=YES)), die(direct, second)
        for settled in (completed, dead):
            assert "replies" in (settled.reply_refused or "")
        assert (completed.status, dead.status) == (None, Status.DEAD)
        other = Put("nowhere", (NewItem(b"2", JSON),))
        assert isinstance(direct.do(Complete(third.token, None, (other,), reply=YES)), QueueNotFound)
        assert direct.get(third.id).status is Status.ACTIVE

    def test_reply_that_is_too_large_refuses_the_completion(self, direct: StoreDriver) -> None:
        direct.queue(keep_completed=60 * SECOND)
        direct.queue("replies", max_payload_size=3)
        lease = request(direct)
        follow_up = Put("jobs", (NewItem(b"2", JSON),))
        for call in (Reply(lease.token, YES), Complete(lease.token, YES, (follow_up,), 10 * SECOND, reply=YES)):
            assert isinstance(direct.do(call), PayloadTooLarge)
        assert direct.get(lease.id).status is Status.ACTIVE
        assert direct.read(GetResult(lease.id)) is None
        assert not direct.lease()
        assert direct.do(Complete(lease.token, reply=Result(b"1", JSON))).reply_refused is None
        assert [value for value, _ in replies(direct)] == [1]

    def test_answer_to_a_death_fits_into_its_queue(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("replies", max_payload_size=80)
        lease = request(direct, **{REQUEST_ID: "r1"})
        assert die(direct, lease, failure=Failure("E", 'a "long" text ' * 100)).reply_refused is None
        ((body, headers),) = replies(direct)
        assert body["error"].startswith("Dead-lettered after 1 attempt: a")
        assert (headers[REPLY_FOR], headers[REPLY_ERROR]) == (lease.id, "retries_exhausted")

    @pytest.mark.parametrize("to", [None, "morgue"])
    def test_death_is_answered_once(self, direct: StoreDriver, to: str | None) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue=to)
        direct.queue("replies")
        lease = request(direct, **{REQUEST_ID: "r1"})
        assert die(direct, lease, to).reply_refused is None
        error = {"error": "Dead-lettered after 1 attempt: boom", "request_id": "r1"}
        headers = {REPLY_FOR: lease.id, REQUEST_ID: "r1", REPLY_ERROR: "retries_exhausted"}
        assert replies(direct) == [(error, headers)]

    @pytest.mark.parametrize("to", [None, "morgue"])
    @pytest.mark.parametrize("death", DEATHS)
    def test_every_way_to_die_is_answered(self, direct: StoreDriver, death: str, to: str | None) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue=to)
        direct.queue("replies")
        (receipt,) = direct.do(Put("jobs", (NewItem(b"1", JSON, {REPLY_TO: "replies"}, expire_timeout=60 * SECOND),)))
        if death == "expired":
            direct.clock.advance("61s")
        kill, reason = DEATHS[death]
        result = kill(direct, receipt.id, to)
        assert not isinstance(result, Exception), result
        ((body, headers),) = replies(direct)
        assert body["error"].startswith("Dead-lettered after ")
        assert headers == {REPLY_FOR: receipt.id, REPLY_ERROR: reason}

    def test_dropped_death_is_answered(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("replies")
        lease = request(direct)
        verdict = Dead(DeadReason.BURIED, drop=True)
        direct.do(Settle(lease.token, OutcomeKind.BURIED, verdict, direct.version()))
        assert [headers[REPLY_FOR] for _, headers in replies(direct)] == [lease.id]

    def test_retry_is_not_answered(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("replies")
        verdict = RetryVerdict(0, Status.FAILED)
        direct.do(Settle(request(direct).token, OutcomeKind.FAILED, verdict, direct.version(), BOOM))
        assert replies(direct) == []

    def test_each_life_of_an_item_has_its_terminal_reply(self, direct: StoreDriver) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue="morgue")
        direct.queue("replies")
        lease = request(direct)
        moved = die(direct, lease, "morgue")
        again = direct.take("morgue")
        settled = direct.do(Settle(again.token, OutcomeKind.RELEASED, RetryVerdict(), direct.version("morgue")))
        assert settled.id == moved.id
        parked = die(direct, direct.take("morgue"))  # a second death in a dead queue is not answered again
        assert [headers[REPLY_FOR] for _, headers in replies(direct)] == [lease.id]
        direct.change(Verb.REDRIVE, parked.id, to="jobs")
        die(direct, direct.take(), "morgue")
        assert [headers[REPLY_FOR] for _, headers in replies(direct)] == [lease.id]

    def test_death_is_answered_wherever_the_item_was_taken(self, direct: StoreDriver) -> None:
        for name in ("jobs", "moved", "imported", "edited", "replies"):
            direct.queue(name)
        first = send(direct)
        direct.change(Verb.MOVE, first, to="moved")
        die(direct, direct.take("moved"))
        second = die(direct, request(direct)).id
        replies(direct)
        target = ManualTarget(second, headers={REPLY_TO: "replies", "edited": "yes"})
        direct.do(ManualChange(Verb.REDRIVE, (target,), "ada", to="edited"))
        die(direct, direct.take("edited"))
        source = direct.get(send(direct))
        direct.do(Import("imported", (msgspec.structs.replace(source, id=ItemId("f" * 32)),), "ada"))
        die(direct, direct.take("imported"))
        assert [headers[REPLY_FOR] for _, headers in replies(direct)][1:] == ["f" * 32]

    def test_dead_letter_takes_no_second_terminal_reply(self, direct: StoreDriver) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue="morgue")
        direct.queue("replies")
        die(direct, request(direct), "morgue")
        letter = direct.take("morgue")
        assert isinstance(direct.do(Reply(letter.token, YES)), InvalidInput)
        assert isinstance(direct.do(Complete(letter.token, reply=YES)), InvalidInput)
        assert isinstance(direct.do(Complete(letter.token)), Settled)
        assert len(replies(direct)) == 1

    def test_death_is_answered_in_a_queue_that_another_process_first_used_for_replies(
        self, direct: StoreDriver, open_broker: OpenBroker
    ) -> None:
        self.require("supports_processes")
        for name in ("jobs", "others", "replies"):
            direct.queue(name)
        other = StoreDriver(open_broker().core.store, direct.clock)
        other.put(b"so that it knows the queues")
        direct.do(Complete(direct.take().token))
        ours = send(direct, queue="others")  # each store marks one queue, and must read the mark of the other
        theirs = send(other)
        for driver, queue in ((direct, "jobs"), (other, "others")):
            die(driver, driver.take(queue))
        assert sorted(headers[REPLY_FOR] for _, headers in replies(direct)) == sorted([ours, theirs])

    def test_error_of_a_reply_follows_the_rules_of_the_queue(self, direct: StoreDriver) -> None:
        direct.queue(redact=redact_rules_from({"keys": ["patron"]}))
        direct.queue("replies")
        cut = "x" * (MAX_ERROR_CHARS - 25) + " postgres://admin:sk3cretPassw0rd@db.example.com/orders"
        for text in ("patron=4711-xyz", cut):
            die(direct, request(direct), failure=Failure("E", text))
        assert not any(word in body["error"] for body, _ in replies(direct) for word in ("4711", "sk3cret"))

    def test_error_of_a_reply_is_bounded_and_has_no_secrets(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("replies")
        die(direct, request(direct), failure=Failure("E", "password=hunter2hunter2 " + "x" * 100_000))
        ((body, _),) = replies(direct)
        assert "hunter2" not in body["error"]
        assert len(body["error"]) < 3000

    def test_reply_wakes_waiters_of_its_queue(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("replies")
        first, second = request(direct), request(direct)
        assert "replies" in direct.commit(Complete(first.token, reply=YES)).arrivals
        bury = Settle(second.token, OutcomeKind.BURIED, Dead(DeadReason.BURIED), direct.version())
        assert "replies" in direct.commit(bury).arrivals

    def test_item_that_names_a_queue_for_replies_is_not_put_in_a_transaction_of_the_program(
        self, broker: Broker
    ) -> None:
        broker.create_queue("jobs")
        put = Put("jobs", (NewItem(b"1", JSON, {REPLY_TO: "jobs"}),))
        with pytest.raises(InvalidInput, match="names a queue for replies"):
            broker.core.put_in_transaction(object(), put)
        assert broker.stats("jobs").pending == 0

    def test_program_sets_no_reserved_header(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        for name in (REPLY_TO, REPLY_FOR, "redrive-what"):
            with pytest.raises(InvalidName, match="reserved"):
                broker.put("jobs", 1, headers={name: "x"})


class ReplyElsewhereConformance(StorePairSuite):
    """A queue for replies in another store: the reply is put here and moves there."""

    def test_reply_moves_to_the_other_store(self, pair: StorePair) -> None:
        here, there = pair.source, pair.target
        here.create_queue("jobs")
        there.create_queue("replies")
        address = f"replies@{there.core.store.name}"
        ids = []
        for _ in range(2):
            put = Put("jobs", (NewItem(b"1", JSON, {REPLY_TO: address}),))
            ids.append(here.submit(put)[0].id)
        first, second = here.lease("jobs", 2)
        here.submit(Complete(first.token, reply=YES))
        here.bury(second)
        here.run_maintenance()
        leases = there.lease("replies", 5)
        assert [lease.headers[REPLY_FOR] for lease in leases] == ids
        assert values(leases)[0] == "yes"
        assert here.moves() == ()
        assert here.stats("jobs").pending == 0

    def test_limits_of_the_queue_that_it_leaves_from_are_not_those_of_the_reply(self, pair: StorePair) -> None:
        here, there = pair.source, pair.target
        here.create_queue("jobs", max_payload_size=10, max_size=1)
        there.create_queue("replies")
        address = f"replies@{there.core.store.name}"
        here.submit(Put("jobs", (NewItem(b"1", JSON, {REPLY_TO: address}),)))
        (lease,) = here.lease("jobs")
        long = Result(b'"a reply of more than ten bytes"', JSON)
        here.submit(Reply(lease.token, long))
        settled = here.submit(Complete(lease.token, reply=long))
        assert settled.reply_refused is None
        here.run_maintenance()
        assert values(there.lease("replies", 5)) == ["a reply of more than ten bytes"] * 2

    def test_replies_of_an_item_that_moved_to_another_store_come_back(self, pair: StorePair) -> None:
        here, there = pair.source, pair.target
        for broker in (here, there):
            broker.create_queue("jobs")
            broker.create_queue("replies")
        (receipt,) = here.submit(Put("jobs", (NewItem(b"1", JSON, {REPLY_TO: "replies"}),)))
        here.move(receipt.id, pair.there("jobs"))
        here.run_maintenance()
        (lease,) = there.lease("jobs")
        there.submit(Complete(lease.token, reply=YES))
        there.run_maintenance()
        assert there.stats("replies").pending == 0
        assert [(reply.value, reply.headers[REPLY_FOR]) for reply in here.lease("replies")] == [("yes", receipt.id)]
