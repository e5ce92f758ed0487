"""Replay of dead letters from a dead-letter mailbox, and resolvers of mailboxes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redrive import Broker, Filter
from redrive.mailbox import (
    CompositeResolver,
    InvalidParameterError,
    MailboxResolutionError,
    MainLoopResult,
    RegistryResolver,
    StoreResolver,
    replay,
)
from redrive.model.item import Status
from redrive.testing.conformance.mailbox_loops import Answer, Boxes, failing
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class ReplayConformance(Suite):
    """Replay, by one operation or letter by letter."""

    @pytest.fixture
    def dead(self, broker: Broker, clock: FakeClock) -> Boxes:
        """Mailboxes with four dead letters: two time-outs, two that are invalid."""
        boxes = Boxes(broker, clock)
        policy = replace(boxes.policy, max_delivery_count=1)
        timeout, invalid = TimeoutError("late"), ValueError("wrong")
        for text, error in (("a", timeout), ("b", invalid), ("c", timeout), ("b", invalid)):
            boxes.send(text)
            boxes.run(failing(error), dlq=policy)
        boxes.answers()
        return boxes

    def received(self, boxes: Boxes) -> list[str]:
        """What is in the mailbox of requests, each delivered for the first time and still answered to `replies`."""
        messages = boxes.requests.receive(max_messages=10)
        assert all(message.delivery_count == 1 for message in messages)
        for message in messages:
            message.acknowledge(reply=MainLoopResult(message.body.request_id, 1))
        assert len(boxes.answers()) == len(messages)
        return [message.body.request for message in messages]

    def test_all_are_replayed_by_one_operation_that_can_be_undone(self, dead: Boxes) -> None:
        result = replay(dead.dead)
        assert (result.replayed, result.skipped, result.failed) == (4, 0, 0)
        assert result.operation is not None
        assert self.received(dead) == ["a", "b", "c", "b"]
        assert dead.dead.approximate_count() == 0

    def test_filter_selects_what_is_replayed(self, dead: Boxes) -> None:
        result = replay(dead.dead, where=Filter(status=Status.DEAD, error_type="TimeoutError"))
        assert (result.replayed, result.operation is not None) == (2, True)
        assert self.received(dead) == ["a", "c"]

    def test_predicate_selects_what_is_replayed(self, dead: Boxes) -> None:
        result = replay(dead.dead, where=lambda letter: "TimeoutError" in letter.last_error_type)
        assert (result.replayed, result.skipped, result.operation) == (2, 2, None)
        assert self.received(dead) == ["a", "c"]
        assert dead.dead.approximate_count() == 2

    def test_duplicates_are_replayed_once_and_bodies_may_be_transformed(self, dead: Boxes) -> None:
        result = replay(
            dead.dead,
            dead.requests,
            dedupe=lambda letter: letter.body.request,
            transform=lambda body: replace(body, request=body.request.upper()),
        )
        assert (result.replayed, result.duplicates) == (3, 1)
        assert self.received(dead) == ["A", "B", "C"]

    def test_limit_and_letters_that_a_consumer_holds(self, dead: Boxes) -> None:
        assert len(dead.dead.receive(visibility_timeout=60)) == 1
        result = replay(dead.dead, where=lambda letter: True, limit=2)
        assert (result.replayed, result.skipped) == (2, 1)
        with pytest.raises(InvalidParameterError):
            replay(dead.dead, limit=1, canary=1)

    def test_letter_whose_transformation_fails_stays(self, dead: Boxes) -> None:
        result = replay(dead.dead, transform=lambda body: replace(body, request=17))  # type: ignore[arg-type]
        assert (result.replayed, result.failed) == (0, 4)
        assert dead.dead.approximate_count() == 4

    def test_mailboxes_are_resolved_by_name(self, dead: Boxes) -> None:
        registry = RegistryResolver({"mine": dead.replies})
        resolver = CompositeResolver(registry, StoreResolver(dead.broker, Answer))
        assert resolver.resolve("mine") is dead.replies
        assert resolver.resolve("replies").name == "replies"
        with pytest.raises(MailboxResolutionError):
            resolver.resolve("nowhere")
        with pytest.raises(MailboxResolutionError):
            registry.resolve("replies")
