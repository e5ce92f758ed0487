"""Consumers of dead letters: the actions of their handlers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from redrive import Broker
from redrive.mailbox import DeadLetter, Discard, DLQConsumer, Keep, MainLoopResult, Replay
from redrive.testing.conformance.mailbox_loops import Ask, Boxes, failing
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class DLQConsumerConformance(Suite):
    """The actions of handlers of dead letters."""

    @pytest.fixture
    def letters(self, broker: Broker, clock: FakeClock) -> Boxes:
        """Return mailboxes with one dead letter."""
        boxes = Boxes(broker, clock)
        boxes.send("poison")
        boxes.run(failing(ValueError("x")), dlq=replace(boxes.policy, max_delivery_count=1))
        boxes.answers()
        return boxes

    def consume(self, boxes: Boxes, decision: Any) -> DLQConsumer[Ask]:
        """Run a consumer once, with a handler that returns or raises this, and return the consumer."""

        def handler(letter: DeadLetter[Ask]) -> Any:
            if isinstance(decision, Exception):
                raise decision
            return decision

        consumer: DLQConsumer[Ask] = DLQConsumer(mailbox=boxes.dead, handler=handler)
        consumer.run(max_iterations=1, wait_time_seconds=0)
        return consumer

    def test_handled_dead_letters_are_counted_in_the_metrics(self, letters: Boxes) -> None:
        metrics = letters.broker.metrics
        letters.clock.advance("1h")
        self.consume(letters, None)
        found = {(metric.name, labels): value for metric, labels, value in metrics.read()}
        assert found["redrive_dead_letters_handled_total", ("requests-dlq", "processed")] == 1
        age: Any = found["redrive_dead_letter_age_seconds", ("requests-dlq",)]
        assert age.sum == 4500  # the age when the consumer ran: 15 minutes after the loop, and an hour

    def test_processed_dead_letter_is_removed(self, letters: Boxes) -> None:
        assert self.consume(letters, None).counts == {"processed": 1}
        assert letters.dead.approximate_count() == 0

    def test_replayed_dead_letter_goes_back_and_begins_anew(self, letters: Boxes) -> None:
        assert self.consume(letters, Replay).counts == {"replay": 1}
        assert letters.dead.approximate_count() == 0
        (message,) = letters.requests.receive()
        assert (message.delivery_count, message.body.request) == (1, "poison")
        message.acknowledge(reply=MainLoopResult(message.body.request_id, 1))
        assert [answer.output for answer in letters.answers()] == [1]

    @pytest.mark.parametrize(("text", "left"), [("replay", (1, 0, 0)), ("keep", (0, 1, 0)), ("discard", (0, 0, 1))])
    def test_action_may_be_its_text(self, letters: Boxes, text: str, left: tuple[int, int, int]) -> None:
        class Text(str):
            def __eq__(self, other: object) -> bool:
                return False

            def __hash__(self) -> int:
                return 0

        assert self.consume(letters, Text(text)).counts == {text: 1}
        dropped = letters.broker.count(queue="requests-dlq", dropped=True, status=None)
        assert (letters.requests.approximate_count(), letters.dead.approximate_count(), dropped) == left

    def test_handler_may_be_a_coroutine_function(self, letters: Boxes) -> None:
        async def handler(letter: DeadLetter[Ask]) -> Any:
            return Replay

        consumer: DLQConsumer[Ask] = DLQConsumer(mailbox=letters.dead, handler=handler)
        consumer.run(max_iterations=1, wait_time_seconds=0)
        assert (consumer.counts, letters.requests.approximate_count()) == ({"replay": 1}, 1)

    @pytest.mark.parametrize("decision", [Keep, ValueError("x")], ids=str)
    def test_dead_letter_dies_of_no_handler_in_a_queue_with_a_limit_of_attempts(
        self, letters: Boxes, decision: Any
    ) -> None:
        letters.broker.update_queue("requests-dlq", max_attempts=2)
        for _ in range(4):
            self.consume(letters, decision)
            letters.clock.advance("1h")
        assert letters.letter().body.request == "poison"

    def test_discarded_dead_letter_is_removed_and_in_the_audit(self, letters: Boxes) -> None:
        assert self.consume(letters, Discard).counts == {"discard": 1}
        assert letters.dead.approximate_count() == 0
        assert letters.broker.audit()[0].verb == "drop"

    @pytest.mark.parametrize(
        ("decision", "counted"), [(Keep, "keep"), (ValueError("x"), "failed"), ("what", "failed")], ids=str
    )
    def test_kept_dead_letter_and_one_whose_handler_fails_come_back_in_an_hour(
        self, letters: Boxes, decision: Any, counted: str
    ) -> None:
        for _ in range(7):  # more often than any delivery count allows: the letter never dies
            assert self.consume(letters, decision).counts == {counted: 1}
            letters.clock.advance("59m")
            assert letters.dead.receive() == []
            letters.clock.advance("1m")
        assert letters.letter().delivery_count == 1
        assert letters.broker.stats("requests-dlq").dead == 0
