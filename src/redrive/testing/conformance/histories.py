"""History: one row for each attempt that did not complete, and for each redrive."""

from __future__ import annotations

from redrive import Broker
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import lose, take
from redrive.testing.conformance.suite import Suite


class HistoryConformance(Suite):
    """What is on record, oldest first."""

    def test_every_ending_but_completion_is_on_record(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 5})
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker, worker="w1"), "one")
        clock.advance("1s")
        broker.release(take(broker, worker="w2"))
        lose(broker, clock)
        broker.bury(take(broker), note="enough")
        broker.retry(receipt.id, actor="ada")
        history = broker.get(receipt.id).history
        assert [entry.event for entry in history] == ["failed", "released", "lost", "buried", "redriven"]
        assert [entry.delivery for entry in history] == [1, 2, 3, 4, 4]
        assert [entry.worker for entry in history][:2] == ["w1", "w2"]
        assert {entry.queue for entry in history} == {"jobs"}
        assert [entry.at for entry in history] == sorted(entry.at for entry in history)

    def test_nothing_is_written_at_lease_and_extension(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.extend(lease)
        assert broker.get(lease.id).history == ()

    def test_first_5_and_last_45_are_kept_and_the_rest_counted(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_attempts=0)
        receipt = broker.put("jobs", 1)
        for n in range(1, 71):
            broker.release(take(broker), error=str(n))
            if n in (49, 50, 51, 70):
                item = broker.get(receipt.id)
                kept = list(range(1, n + 1)) if n <= 50 else [1, 2, 3, 4, 5, *range(n - 44, n + 1)]
                assert [int(entry.note or 0) for entry in item.history] == kept
                assert item.history_omitted == max(0, n - 50)

    def test_history_and_what_was_omitted_survive_a_move(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", max_attempts=60, dead_queue="morgue")
        receipt = broker.put("jobs", 1)
        for n in range(1, 61):
            broker.release(take(broker), error=str(n))
        item = broker.get(receipt.id)
        assert (item.queue, len(item.history), item.history_omitted) == ("morgue", 50, 10)
        assert item.history[-1].note == "60"
        broker.redrive(item.id, actor="ada")
        item = broker.get(receipt.id)
        assert (item.queue, len(item.history), item.history_omitted) == ("jobs", 50, 11)
        assert (item.history[-1].event, item.history[-1].queue) == ("redriven", "morgue")

    def test_failure_is_kept_whole_across_redrives(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        try:
            raise ValueError("bad 🦆")
        except ValueError as error:
            broker.fail(take(broker), error)
        before = broker.get(receipt.id).last_failure
        assert before is not None
        assert (before.type, before.text, before.error_class) == ("ValueError", "bad 🦆", "validation")
        assert before.traceback is not None
        assert "test_failure_is_kept_whole" in before.traceback
        assert len(before.fingerprint) == 16
        broker.redrive(receipt.id)
        assert broker.get(receipt.id).last_failure == before
