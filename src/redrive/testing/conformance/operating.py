"""Operations: each verb in bulk, by filter, ids or group."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker
from redrive.errors import ConfirmMismatch, InvalidInput, QueueNotFound
from redrive.model.filter import Filter
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import dead_queue, places, take
from redrive.testing.conformance.many import die, found, perform
from redrive.testing.conformance.suite import Suite


class BulkConformance(Suite):
    """Each verb, and which items it takes."""

    @pytest.mark.parametrize(
        ("verb", "options", "status"),
        [
            ("redrive", {}, {"pending": 5}),
            ("retry", {}, {"pending": 5}),
            ("archive", {}, {"archived": 5}),
            ("move", {"to": "other", "status": "dead"}, {"dead": 5}),
            ("redrive", {"to": "other"}, {"pending": 5}),
        ],
    )
    def test_dead_letters_are_changed_in_bulk(
        self, broker: Broker, clock: FakeClock, verb: str, options: dict[str, Any], status: dict[str, int]
    ) -> None:
        broker.create_queue("jobs")
        broker.create_queue("other")
        die(broker, 5)
        operation = perform(broker, clock, verb, queue="jobs", actor="ada", note="why", **options)
        assert (operation.verb, operation.status, operation.changed, operation.left_out) == (verb, "finished", 5, {})
        assert (operation.expected, operation.met, operation.actor, operation.note) == (5, 5, "ada", "why")
        assert places(broker.stats(options.get("to", "jobs"))) == status

    def test_pending_items_are_buried_and_moved_in_bulk(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs")
        broker.put_many("jobs", range(4))
        assert perform(broker, clock, "move", queue="jobs", to="other").changed == 4
        assert perform(broker, clock, "bury", queue="other", note="fraud").changed == 4
        assert found(broker, reason="buried", words="fraud") == [0, 1, 2, 3]

    def test_bury_takes_each_item_to_the_dead_queue_of_its_queue(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        broker.create_queue("mails")
        broker.put_many("jobs", range(3))
        broker.put_many("mails", range(3))
        assert perform(broker, clock, "bury", min_redrives=0).changed == 6
        assert (places(broker.stats("morgue")), places(broker.stats("mails"))) == ({"pending": 3}, {"dead": 3})

    def test_archived_items_are_restored_and_purged_in_bulk(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 4)
        broker.archive(ids)
        assert perform(broker, clock, "restore", ids=tuple(ids[:2])).changed == 2
        with pytest.raises(ConfirmMismatch, match="confirm=2"):
            broker.start("purge", queue="jobs")
        with pytest.raises(ConfirmMismatch):
            broker.start("purge", queue="jobs", confirm=3)
        assert perform(broker, clock, "purge", queue="jobs", confirm=2).changed == 2
        assert places(broker.stats("jobs")) == {"dead": 2}

    def test_group_is_redriven_and_others_are_not(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 3, "alpha")
        die(broker, 2, "beta")
        group = broker.groups()[0]
        operation = perform(broker, clock, "redrive", fingerprint=group.fingerprint)
        assert (operation.changed, found(broker)) == (3, [0, 1])

    def test_any_filter_can_be_given(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 3, "odd trouble")
        die(broker, 3, "mishap")
        assert perform(broker, clock, "redrive", where=Filter(words="odd")).changed == 3
        assert perform(broker, clock, "archive", words="mishap", reason="final_error", since="1h").changed == 3

    def test_ids_of_any_time_name_the_items(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        ids = die(broker, 4)
        operation = perform(broker, clock, "redrive", ids=(ids[0], broker.get(ids[2]).id, ids[0], "f" * 32))
        assert (operation.changed, found(broker)) == (2, [1, 3])

    def test_items_that_an_operation_changed_are_found_by_it(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        ids = die(broker, 4)
        operation = perform(broker, clock, "redrive", ids=tuple(ids[:3]))
        assert found(broker, status="pending", operation=operation.id) == [0, 1, 2]
        broker.fail(take(broker), "boom")
        assert found(broker, operation=operation.id) == [0]
        assert found(broker, status="pending", queue="jobs", operation=operation.id) == [1, 2]
        assert found(broker, status=None, operation=operation.id) == [1, 2, 0]

    def test_history_names_operation_actor_and_note(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        (id,) = die(broker, 1)
        operation = perform(broker, clock, "redrive", queue="jobs", actor="ada", note="mended")
        entry = broker.get(id).history[-1]
        assert (entry.event, entry.actor, entry.note) == ("redriven", "ada", "mended")
        assert entry.operation == operation.id

    def test_nothing_that_matches_is_an_operation_that_ends(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        operation = perform(broker, clock, "redrive", queue="jobs")
        assert (operation.status, operation.changed, operation.expected) == ("finished", 0, 0)

    def test_more_than_one_step_takes(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(2_500))
        assert perform(broker, clock, "bury", queue="jobs").changed == 2_500
        operation = perform(broker, clock, "redrive", queue="jobs")
        assert (operation.changed, operation.expected, places(broker.stats("jobs"))) == (
            2_500,
            2_500,
            {"pending": 2_500},
        )
        assert operation.steps >= 3

    def test_refused_before_it_starts(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        for verb in ("put", "complete", "drop", "dance"):
            with pytest.raises(InvalidInput):
                broker.start(verb, queue="jobs")
        with pytest.raises(QueueNotFound):
            broker.start("redrive", queue="nowhere")
        with pytest.raises(QueueNotFound):
            broker.start("redrive", queue="jobs", to="nowhere")
        with pytest.raises(InvalidInput):
            broker.start("move", queue="jobs")
        for wrong in ({"rate": 0}, {"rate": -1}, {"canary": -1}, {"canary": 1, "canary_share": 1.5}):
            with pytest.raises(InvalidInput):
                broker.start("redrive", queue="jobs", **wrong)
        assert broker.operations() == ()
