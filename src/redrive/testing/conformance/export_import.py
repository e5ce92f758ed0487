"""Export and import into another store or namespace; an item is found by each id that it had."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redrive import Broker
from redrive.contract.base import LEDGER_RETENTION
from redrive.contract.item_calls import Complete
from redrive.contract.maintenance_calls import ApplyRetention
from redrive.contract.queries import ListAudit
from redrive.errors import InvalidInput, ItemNotFound, LeaseLost, QueueFull, QueueNotFound, RedriveError
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.failure import failure_from_fields
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Receipt, Settled, Status
from redrive.model.judge import Dead, RetryVerdict
from redrive.model.state_machine import Verb
from redrive.testing.conformance.actions import (
    Boom,
    dead_queue,
    die,
    find_all,
    found,
    kill,
    places,
    take,
    take_all,
    values,
)
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StoreSuite, Suite, put
from redrive.testing.fake_clock import FakeClock


class TransferConformance(Suite):
    """`export` from one store, `import_items` into another."""

    @pytest.fixture
    def elsewhere(self, open_broker: OpenBroker) -> Broker:
        """Return a broker on another namespace, without access to the first."""
        return open_broker(namespace="elsewhere")

    def test_dead_letters_keep_everything(self, broker: Broker, elsewhere: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        elsewhere.create_queue("jobs")
        broker.put("jobs", {"n": 1}, headers={"h": "1"}, priority=7)
        broker.fail(take(broker), Boom("odd trouble"))
        broker.redrive(broker.find().items[0].id, actor="ada")
        clock.advance("1h")
        broker.fail(take(broker), Boom("odd trouble"))
        (original,) = broker.find().items
        clock.advance("1h")
        assert elsewhere.import_items(broker.export(redacted=False), actor="bob").imported == 1
        (item,) = elsewhere.find().items
        assert (item.value, item.headers, item.priority, item.status) == ({"n": 1}, {"h": "1"}, 7, "dead")
        assert (item.counters, item.history, item.deaths) == (original.counters, original.history, original.deaths)
        assert (item.source_id, item.origin_id, item.origin_queue) == (original.id, original.id, "jobs")
        assert (item.put_at, item.ended_at, item.dead_reason) == (
            original.put_at,
            original.ended_at,
            "retries_exhausted",
        )
        assert item.id != original.id
        assert found(elsewhere, words="odd", until="30m", min_redrives=1) == [{"n": 1}]
        assert [(group.count, group.last_at) for group in elsewhere.groups()] == [(1, original.ended_at)]
        assert elsewhere.redrive(item.id).status == "pending"
        assert take(elsewhere).value == {"n": 1}

    def test_import_into_the_store_it_came_from_doubles_nothing(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.put("jobs", "waits", delay="1h")
        kill(broker, "moved", "morgue")
        lines = list(broker.export(status="any", redacted=False))
        broker.redrive(broker.find(queue="morgue").items[0].id)
        again = broker.import_items(lines)
        assert (again.imported, again.ignored) == (0, 2)
        assert broker.count(status="any") == 2

    def test_export_of_secrets_is_in_the_audit(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", {"password": "hunter2hunter2"})
        list(broker.export(status="any"))
        assert broker.audit() == ()
        assert b"hunter2" in next(iter(broker.export(status="any", queue="jobs", redacted=False)))
        (row,) = broker.audit()
        assert (row.verb, row.note) == ("export", "items of queue 'jobs'")

    def test_import_twice_ignores_and_counts(self, broker: Broker, elsewhere: Broker) -> None:
        broker.create_queue("jobs")
        elsewhere.create_queue("jobs")
        die(broker, 5)
        lines = list(broker.export(redacted=False))
        assert len(lines) == 5
        first = elsewhere.import_items(lines[:3])
        second = elsewhere.import_items(lines)
        assert ((first.imported, first.ignored), (second.imported, second.ignored)) == ((3, 0), (2, 3))
        assert found(elsewhere) == [0, 1, 2, 3, 4]
        elsewhere.redrive(elsewhere.find().items[0].id)
        assert elsewhere.import_items(lines).ignored == 5

    def test_of_lines_with_one_id_the_first_is_imported(self, broker: Broker, elsewhere: Broker) -> None:
        broker.create_queue("jobs")
        elsewhere.create_queue("jobs")
        broker.put("jobs", 1)
        waiting = list(broker.export(status="any", redacted=False))
        broker.fail(take(broker), Boom("trouble"))
        dead = list(broker.export(redacted=False))
        imported = elsewhere.import_items([*waiting, *dead])
        assert (imported.imported, imported.ignored) == (1, 1)
        assert [item.status for item in elsewhere.find(status="any").items] == ["pending"]

    def test_lines_are_json_one_for_each_item(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        die(broker, 2)
        broker.put("jobs", b"\0\xff")
        for lines, count in (
            (broker.export(redacted=False), 2),
            (broker.export(redacted=False, status=None), 3),
            (broker.export(redacted=False, words="no"), 0),
        ):
            objects = [json.loads(line) for line in lines]
            assert len(objects) == count
            assert all(isinstance(entry["id"], str) for entry in objects)

    def test_bytes_survive(self, broker: Broker, elsewhere: Broker) -> None:
        for each in (broker, elsewhere):
            each.create_queue("jobs")
        broker.put("jobs", bytes(range(256)))
        broker.fail(take(broker), "boom")
        elsewhere.import_items(broker.export(redacted=False))
        assert elsewhere.find().items[0].payload == bytes(range(256))

    def test_statuses_arrive_as_they_are_but_for_work_in_hand(self, broker: Broker, elsewhere: Broker) -> None:
        for each in (broker, elsewhere):
            each.create_queue("jobs", retry={"attempts": 2, "cooldown": "1h"}, keep_completed="1h")
        broker.archive(kill(broker, "archived").id)
        kill(broker, "dead")
        broker.put_many("jobs", ["completed", "failed", "active", "pending"])
        broker.complete(take(broker))
        broker.fail(take(broker), "boom")
        take(broker)
        assert elsewhere.import_items(broker.export(redacted=False, status=None)).imported == 6
        assert places(elsewhere.stats("jobs")) == {"pending": 3, "failed": 1, "dead": 1, "archived": 1}
        assert sorted(values(take_all(elsewhere))) == ["active", "completed", "pending"]
        assert elsewhere.restore(elsewhere.find(status="archived").items[0].id).status == "dead"

    @pytest.mark.parametrize("failures", [1, 60])
    def test_archived_work_that_failed_outside_since_is_work_when_restored(
        self, broker: Broker, elsewhere: Broker, failures: int
    ) -> None:
        for each in (broker, elsewhere):
            each.create_queue("jobs")
        broker.archive(broker.put("jobs", "x", idempotency_key="k").id)
        for _ in range(failures):
            assert broker.put_failed("jobs", "x", "boom", idempotency_key="k").duplicate
        assert elsewhere.import_items(broker.export(redacted=False, status="archived")).imported == 1
        (item,) = elsewhere.find(status="archived").items
        assert item.history == broker.find(status="archived").items[0].history
        assert elsewhere.restore(item.id).status == "pending"

    def test_archived_item_is_after_a_restore_elsewhere_what_it_is_after_one_here(
        self, broker: Broker, elsewhere: Broker
    ) -> None:
        dead_queue(broker)
        moved = broker.put("jobs", "moved out of its dead queue").id
        broker.fail(take(broker), "boom", final=True)
        broker.create_queue("work", retry={"attempts": 100, "cooldown": 0})
        moved = broker.move(broker.get(moved).id, "work").id
        broker.drop(moved)
        redriven = broker.put("work", "redriven", idempotency_key="k").id
        broker.bury_items(redriven)
        broker.redrive(redriven)
        broker.fail(take(broker, "work"), "boom")
        broker.archive(redriven)
        for _ in range(60):  # its history no longer has when it was archived
            broker.put_failed("work", "redriven", "outside", idempotency_key="k")
        completed = broker.put("work", "completed").id
        broker.update_queue("work", keep_completed="1d")
        broker.complete(take(broker, "work"))
        broker.archive(completed)
        elsewhere.create_queue("other")
        for id, status in ((moved, "pending"), (redriven, "failed"), (completed, "pending")):
            lines = list(broker.export(ids=[id], status="archived", dropped=id == moved, redacted=False))
            assert elsewhere.import_items(lines, queue="other").imported == 1
            (item,) = elsewhere.find(status="archived", dropped=id == moved).items
            assert elsewhere.restore(item.id).status == status
            if id != completed:  # its result stays here
                assert broker.restore(id).status == status

    def test_archived_dead_letter_that_failed_outside_since_is_dead_when_restored(
        self, broker: Broker, elsewhere: Broker, clock: FakeClock
    ) -> None:
        for each in (broker, elsewhere):
            each.create_queue("jobs")
        id = broker.put("jobs", "x", idempotency_key="k").id
        broker.archive(id)
        broker.restore(id)
        clock.advance("1s")
        broker.fail(take(broker), "boom")
        broker.archive(id)
        clock.advance("1s")
        assert broker.put_failed("jobs", "x", "boom", idempotency_key="k").duplicate
        elsewhere.import_items(broker.export(redacted=False, status="archived"))
        assert elsewhere.restore(elsewhere.find(status="archived").items[0].id).status == "dead"

    def test_dead_letters_of_a_dead_queue_arrive_as_such(self, broker: Broker, elsewhere: Broker) -> None:
        for each in (broker, elsewhere):
            dead_queue(each)
        die(broker, 2)
        assert elsewhere.import_items(broker.export(redacted=False)).imported == 2
        assert found(elsewhere, queue="morgue") == [0, 1]
        assert elsewhere.stats("morgue").dead_letters == 2
        results = elsewhere.redrive([item.id for item in find_all(elsewhere)])
        assert {result.queue for result in results if not isinstance(result, RedriveError)} == {"jobs"}

    def test_what_was_brought_back_arrives_as_work(self, broker: Broker, elsewhere: Broker, clock: FakeClock) -> None:
        for each in (broker, elsewhere):
            each.create_queue("morgue", retry={"attempts": 3, "cooldown": "1h"})
            each.create_queue("jobs", dead_queue="morgue")
        dead = kill(broker, "x", "morgue")
        broker.redrive(dead.id)
        clock.advance("1s")
        broker.fail(take(broker, "morgue"), "boom")
        broker.retry(dead.id)
        assert found(broker) == []
        assert elsewhere.import_items(broker.export(status=None, redacted=False)).imported == 1
        assert found(elsewhere) == []
        assert elsewhere.stats("morgue").dead_letters == 0

    def test_import_into_a_named_queue(self, broker: Broker, elsewhere: Broker) -> None:
        broker.create_queue("jobs")
        elsewhere.create_queue("inbox")
        die(broker, 2)
        with pytest.raises(QueueNotFound):
            elsewhere.import_items(broker.export(redacted=False))
        assert elsewhere.import_items(broker.export(redacted=False), queue="inbox").imported == 2
        assert found(elsewhere, queue="inbox") == [0, 1]

    def test_import_is_refused_by_a_full_queue(self, broker: Broker, elsewhere: Broker) -> None:
        broker.create_queue("jobs")
        elsewhere.create_queue("jobs", max_size=1)
        broker.put_many("jobs", range(2))
        with pytest.raises(QueueFull):
            elsewhere.import_items(broker.export(redacted=False, status="pending"))

    def test_line_that_is_no_item_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        for line in (b"{", b"[]", b'{"id": 1}', b"\xff"):
            with pytest.raises(InvalidInput):
                broker.import_items([line])
        assert broker.import_items([]).imported == 0

    def test_import_is_told_and_audited(self, broker: Broker, elsewhere: Broker) -> None:
        for each in (broker, elsewhere):
            each.create_queue("jobs")
        (id,) = die(broker, 1)
        elsewhere.import_items(broker.export(redacted=False), actor="ada")
        (entry,) = elsewhere.feed().entries
        assert (entry.kind, entry.actor, entry.source_id, entry.queue) == ("imported", "ada", id, "jobs")
        assert elsewhere.audit(1)[0].actor == "ada"

    def test_very_many_go_in_pages(self, broker: Broker, elsewhere: Broker) -> None:
        for each in (broker, elsewhere):
            each.create_queue("jobs")
        broker.put_many("jobs", range(2_345))
        assert elsewhere.import_items(broker.export(redacted=False, status="pending")).imported == 2_345
        assert values(take_all(elsewhere)) == list(range(1_000))


SOURCE = ItemId("a" * 32)


class LineageConformance(StoreSuite):
    """Former ids, tokens of former leases, and dead letters."""

    def test_old_ids_and_tokens_follow_the_item(self, direct: StoreDriver) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue="morgue")
        (first,) = direct.put(b"a")
        lease = direct.take()
        moved = direct.bury(lease, "morgue")
        assert (moved.queue, moved.status, moved.source_id) == ("morgue", Status.PENDING, first)
        back = direct.change(Verb.REDRIVE, first)
        assert (back.queue, back.source_id, back.counters) == ("jobs", moved.id, Counters(deliveries=1, redrives=1))
        assert direct.get(first) == direct.get(moved.id) == direct.get(back.id)
        assert (direct.get(first).origin_id, direct.get(first).origin_queue) == (first, "jobs")
        late = direct.do(Complete(lease.token))
        assert isinstance(late, LeaseLost)
        assert late.status == "pending"
        assert isinstance(direct.change(Verb.DROP, moved.id), Settled)
        assert direct.get(first) == direct.get(moved.id) == direct.get(back.id)
        assert direct.change(Verb.PURGE, moved.id).status is None
        for id in (first, moved.id, back.id):
            with pytest.raises(ItemNotFound):
                direct.get(id)

    def test_redriven_item_is_no_dead_letter_even_where_a_dead_queue_works_on_it(self, direct: StoreDriver) -> None:
        direct.queue("morgue", keep_dead=SECOND)
        direct.queue(dead_queue="morgue")
        own, moved = direct.put(b"own", queue="morgue")[0], direct.put(b"moved")[0]
        direct.bury(direct.take(), "morgue")
        direct.bury(direct.take("morgue"))
        assert direct.stats("morgue").dead_letters == 2
        direct.change(Verb.REDRIVE, own)
        assert direct.stats("morgue").dead_letters == 1
        assert direct.change(Verb.ARCHIVE, own).dead_reason is None
        direct.change(Verb.RESTORE, own)
        direct.clock.advance("1s")
        assert direct.do(ApplyRetention()) == 1
        assert direct.get(own).status is Status.PENDING
        (entry,) = [entry for entry in direct.read(ListAudit()) if entry.verb == "purge"]
        assert (entry.actor, entry.queue, entry.count) == ("retention", "morgue", 1)
        with pytest.raises(ItemNotFound):
            direct.get(moved)

    def test_item_born_dead_moves_and_is_known_by_its_first_id(self, direct: StoreDriver) -> None:
        direct.queue("morgue")
        direct.queue(max_size=1, dead_queue="morgue")
        failure = failure_from_fields("ValueError", "boom")
        options: dict[str, Any] = {"idempotency_key": "k", "failure": failure, "version": direct.version()}
        (id,) = direct.put(b"a", verdict=Dead(DeadReason.RETRIES_EXHAUSTED, "morgue"), **options)
        item = direct.get(id)
        assert (item.queue, item.status, item.source_id) == ("morgue", "pending", id)
        assert item.deaths[0].counters.failures == 1
        (again,) = direct.do(put(b"a", verdict=RetryVerdict(0, Status.FAILED), **options))
        assert again == Receipt(id, duplicate=True)
        item = direct.get(id)
        assert [entry.failure for entry in item.history] == [failure, failure]
        assert (item.status, item.counters.failures) == (Status.PENDING, 1)


class SourceConformance(StoreSuite):
    """`source_id`: the id that an item had in another store."""

    def test_import_is_ignored_while_the_item_is_there(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a", source_id=SOURCE)
        direct.clock.advance(2 * LEDGER_RETENTION // SECOND)
        direct.do(ApplyRetention())
        assert direct.do(put(b"other", source_id=SOURCE)) == (Receipt(id, duplicate=True),)
        assert direct.get(id).source_id == SOURCE
        assert direct.stats().put_total == 1

    def test_import_is_ignored_for_some_time_after_the_item_is_gone(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a", source_id=SOURCE)
        direct.do(Complete(direct.take().token))
        direct.clock.advance(LEDGER_RETENTION // SECOND - 1)
        direct.do(ApplyRetention())
        assert direct.do(put(b"a", source_id=SOURCE)) == (Receipt(id, duplicate=True),)
        direct.clock.advance("1s")
        assert direct.do(ApplyRetention()) == 1
        assert not direct.do(put(b"a", source_id=SOURCE))[0].duplicate

    def test_queues_do_not_share_imports(self, direct: StoreDriver) -> None:
        for name in ("jobs", "mails"):
            direct.queue(name)
            assert not direct.do(put(b"a", queue=name, source_id=SOURCE))[0].duplicate

    def test_import_twice_in_one_put_puts_one_item(self, direct: StoreDriver) -> None:
        direct.queue(max_size=1)
        first, second = direct.do(put(b"a", b"a", source_id=SOURCE))
        assert (first.duplicate, second) == (False, Receipt(first.id, duplicate=True))
        assert direct.stats().put_total == 1

    def test_moved_item_is_known_by_its_source_while_it_is_there(self, direct: StoreDriver) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue="morgue")
        (source,) = direct.put(b"a")
        moved = direct.bury(direct.take(), "morgue")
        assert direct.do(put(b"a", queue="morgue", source_id=source)) == (Receipt(moved.id, duplicate=True),)
